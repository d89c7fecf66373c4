"""FLOPs and bytes from recorded shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kineto_files import call, kernel, operator, write

from kdvfs_sim.trace.op_costs import OpCost, op_cost
from kdvfs_sim.trace.readers import read_trace

BF16 = "c10::BFloat16"


def cost(name: str, dims: list[Any], types: list[str], values: list[str] | None = None) -> OpCost:
    found = op_cost(f"aten::{name}", dims, types, values)
    assert found is not None
    return found


def test_matrix_products() -> None:
    m, k, n = 16384, 2048, 8192
    assert cost("mm", [[m, k], [k, n]], [BF16, BF16]).flops == 2 * m * k * n
    assert cost("mm", [[m, k], [k, n]], [BF16, BF16]).bytes == 2 * (m * k + k * n + m * n)
    assert cost("addmm", [[n], [m, k], [k, n], [], []], [BF16] * 3 + ["Scalar"] * 2).bytes == 2 * (
        m * k + k * n + m * n + n
    )
    assert cost("bmm", [[8, 4, 5], [8, 5, 6]], ["float"] * 2).flops == 2 * 8 * 4 * 5 * 6
    assert cost("linear", [[2, 3, 5], [7, 5], [7]], [BF16] * 3).flops == 2 * 2 * 3 * 5 * 7
    assert cost("_scaled_mm", [[4, 5], [5, 6]], ["c10::Float8_e4m3fn"] * 2).bytes is None


def test_convolutions() -> None:
    x, w = [512, 3, 224, 224], [64, 3, 3, 3]
    values = ["", "", "[1, 1]", "[1, 1]", "[1, 1]", "1", "False", "False", "True"]
    found = cost(
        "cudnn_convolution", [x, w] + [[]] * 7, ["float"] * 2 + ["ScalarList"] * 3 + ["Scalar"] * 4, values
    )
    assert found.flops == 2 * 512 * 224 * 224 * 64 * 27
    strided = ["", "", "[3, 3]", "[2, 2]", "[1, 1]", "1", "False", "False", "True"]
    found = cost("cudnn_convolution", [[32, 3, 224, 224], [64, 3, 7, 7]], ["float"] * 2, strided)
    assert found.flops == 2 * 32 * 112 * 112 * 64 * 3 * 49
    grad, x, w = [8, 512, 14, 14], [8, 256, 14, 14], [512, 256, 3, 3]
    backward = ["", "", "", "[512]", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]
    both = cost("convolution_backward", [grad, x, w], ["float"] * 3, [*backward, "[True, True, False]"])
    assert (both.n_kernels, both.flops) == (2, 2 * 8 * 14 * 14 * 512 * 256 * 9)
    one = cost("convolution_backward", [grad, x, w], ["float"] * 3, [*backward, "[False, True, True]"])
    assert (one.n_kernels, one.flops) == (1, both.flops)


@pytest.mark.parametrize("causal", [True, False])
def test_attention(causal: bool) -> None:
    b, h, s, d = 8, 16, 2048, 128
    pairs = s * (s + 1) // 2 if causal else s * s
    values = [""] * 10 + [str(causal), "False", ""]
    forward = cost("_cudnn_attention_forward", [[b, h, s, d]] * 3, [BF16] * 3, values)
    assert forward.flops == 4 * b * h * pairs * d
    assert forward.bytes == 4 * b * h * s * d * 2
    flash = cost("_flash_attention_forward", [[b, s, h, d]] * 3, [BF16] * 3, [""] * 8 + [str(causal)])
    assert flash == forward
    values = [""] * 14 + [str(causal), ""]
    backward = cost("_cudnn_attention_backward", [[b, h, s, d]] * 4, [BF16] * 4, values)
    assert backward.flops == 2.5 * forward.flops


def test_causal_attention_over_unequal_lengths_is_not_guessed() -> None:
    dims = [[1, 1, 16, 128], [1, 4096, 16, 128], [1, 4096, 16, 128]]
    assert op_cost("aten::_flash_attention_forward", dims, [BF16] * 3, [""] * 8 + ["True"]) is None
    assert (
        cost("_flash_attention_forward", dims, [BF16] * 3, [""] * 8 + ["False"]).flops == 4 * 16 * 4096 * 128
    )


def test_streams_of_data() -> None:
    x = [8, 2048, 2048]
    n = 8 * 2048 * 2048
    assert cost("add", [x, x, []], [BF16, BF16, "Scalar"]) == OpCost(n, 6 * n)
    assert cost("add", [x, [], []], [BF16, "double", "Scalar"]).bytes == 4 * n + 8
    assert cost("mul", [[4, 1], [3]], ["float", "float"]).flops == 12
    assert cost("add_", [[4, 3], [3]], ["float", "float"]).bytes == 4 * (12 + 3 + 12)
    assert cost("copy_", [x, x, []], ["float", BF16, "Scalar"]).bytes == 6 * n
    assert cost("fill_", [x, []], ["float", "Scalar"]).bytes == 4 * n
    assert (
        cost(
            "native_layer_norm", [x, [], [2048], [2048], []], [BF16, "ScalarList", BF16, BF16, "Scalar"]
        ).bytes
        == 4 * n
    )
    assert cost("sum", [[16, 8], []], ["float", "ScalarList"], ["", "[0]", "True"]).bytes == 4 * (128 + 8)
    for everything in ("[]", "", "None"):
        assert cost("sum", [[16, 8], []], ["float", ""], ["", everything]).bytes == 4 * (128 + 1)
    assert cost("mean", [[16, 8], []], ["float", "ScalarList"], ["", "[-1]"]).bytes == 4 * (128 + 16)
    assert cost(
        "index_select", [[1000, 64], [], [10]], [BF16, "Scalar", "long int"], ["", "0", ""]
    ).bytes == (2 * 10 * 64 * 2 + 80)


def test_what_the_recording_does_not_tell_has_no_cost() -> None:
    assert op_cost("aten::_cat", [[], []], ["GenericList", "Int"], None) is None
    assert op_cost("aten::mm", [[4, 5], [6, 7]], ["float", "float"], None) is None
    assert op_cost("aten::mm", [[4, 5], [5, 7]], ["float", "GenericList"], None) is None
    assert op_cost("aten::cudnn_convolution", [[1, 3, 8, 8], [4, 3, 3, 3]], ["float", "float"], None) is None
    assert op_cost("vllm::moe_forward", [[4, 5]], ["float"], None) is None


JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 2**50),
        st.text(max_size=5),
        st.just("float"),
        st.just("[1, 1]"),
    ),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=12,
)


@given(
    st.sampled_from(
        ["mm", "addmm", "linear", "convolution_backward", "_flash_attention_forward", "sum", "add", "copy_"]
    ),
    JSON,
    JSON,
    JSON,
)
def test_any_recorded_value_gives_a_cost_or_none(name: str, dims: Any, types: Any, values: Any) -> None:
    found = op_cost(f"aten::{name}", dims, types, values)
    assert found is None or found.flops is None or found.flops >= 0


def test_one_kernel_name_with_different_flops_is_several_kinds(tmp_path: Path) -> None:
    def product(at: int, n: int, correlation: int) -> list[dict[str, Any]]:
        return [
            operator("aten::mm", at, 8, [[4, 5], [5, n]], [BF16, BF16]),
            call("cudaLaunchKernel", at + 1, 2, correlation),
            call("cudaLaunchKernel", at + 4, 2, correlation + 1),
            kernel("nvjet_tst", at + 30, 1, correlation=correlation, grid=[1, 1, 1]),
            kernel("splitKreduce_kernel", at + 32, 1, correlation=correlation + 1, grid=[1, 1, 1]),
        ]

    trace = read_trace(
        write(tmp_path / "t.json", [*product(0, 6, 1), *product(10, 6, 3), *product(20, 7, 5)])
    )
    flops = [trace.kinds[kind].flops for kind in trace.ops["kind"]]
    assert flops == [240.0, None, 240.0, None, 280.0, None]
    assert len(trace.kinds) == 3


def test_an_unexpected_number_of_kernels_has_no_cost(tmp_path: Path) -> None:
    events = [
        operator("aten::mm", 0, 8, [[4, 5], [5, 6]], [BF16, BF16]),
        call("cudaLaunchKernel", 1, 2, 1),
        call("cudaLaunchKernel", 4, 2, 2),
        kernel("ampere_sgemm", 30, 1, correlation=1),
        kernel("ampere_sgemm", 32, 1, correlation=2),
    ]
    assert read_trace(write(tmp_path / "t.json", events)).kinds[0].flops is None


def test_only_the_innermost_operator_of_the_thread_counts(tmp_path: Path) -> None:
    events = [
        operator("aten::linear", 0, 20, [[4, 5], [9, 5]], [BF16, BF16]),
        operator("aten::addmm", 1, 10, [[6], [4, 5], [5, 6]], [BF16] * 3),
        operator("aten::mm", 1, 9, [[7, 7], [7, 7]], [BF16] * 2, thread=2),
        call("cudaLaunchKernel", 2, 2, 1),
        kernel("ampere_sgemm", 30, 1, correlation=1),
    ]
    assert read_trace(write(tmp_path / "t.json", events)).kinds[0].flops == 240.0
