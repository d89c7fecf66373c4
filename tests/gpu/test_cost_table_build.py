"""Cost tables built from the catalogue: the H200 as it was measured, and laws on every GPU."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdvfs_sim.core.clocks import AUTO, AUTO_CLOCKS, Clocks
from kdvfs_sim.core.errors import InputError, UnsupportedClocksError
from kdvfs_sim.core.kinds import CATEGORIES, Category, KernelKind
from kdvfs_sim.gpu.build import cost_table
from kdvfs_sim.gpu.catalogue import gpu_names, load_gpu
from kdvfs_sim.gpu.facts import Level
from kdvfs_sim.gpu.transfer import transfer_cost_table
from kdvfs_sim.trace.readers import read_trace

GPUS = {slug: load_gpu(slug) for slug in gpu_names()}
ALL_KINDS = [KernelKind(name=category, category=category) for category in CATEGORIES]
slugs = st.sampled_from(sorted(GPUS))
# operator of h200/ops.json: category and a name as a recording has it
OPERATORS: dict[str, tuple[Category, str]] = {
    "qkv_fwd": ("gemm", "nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN"),
    "proj_fwd": ("gemm", "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_bias_TNT"),
    "fc_fwd": ("gemm", "nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN"),
    "fc2_fwd": ("gemm", "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_bias_TNT"),
    "qkv_dgrad": ("gemm", "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT"),
    "qkv_wgrad": ("gemm", "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN"),
    "fc_dgrad": ("gemm", "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT"),
    "fc_wgrad": ("gemm", "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN"),
    "gemm8192": ("gemm", "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT"),
    "sdpa_fwd": ("attention", "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16"),
    "ln_fwd": ("normalization", "void at::native::vectorized_layer_norm_kernel<c10::BFloat16, float, false>"),
    "gelu_fwd": (
        "elementwise",
        "void at::native::vectorized_elementwise_kernel<8, at::native::GeluCUDAKernelImpl(at",
    ),
    "residual_add": (
        "elementwise",
        "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>, st",
    ),
    "copy": ("copy", "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda"),
    "bias_reduce": ("reduction", "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<c10::BFloat16"),
}


def test_the_h200_runs_its_operators_at_the_clocks_and_powers_that_were_read(shared: Path) -> None:
    readings = {op["name"]: op for op in json.loads((shared / "h200" / "ops.json").read_text())}
    names = list(OPERATORS)
    kinds = [KernelKind(name=OPERATORS[name][1], category=OPERATORS[name][0]) for name in names]
    costs = cost_table(GPUS["h200"], kinds, [readings[name]["us"] * 1e3 for name in names])
    for i, name in enumerate(names):
        read = readings[name]
        clock = costs.clocks[costs.effective[i, costs.auto]].sm_mhz
        assert isinstance(clock, int)
        assert clock == pytest.approx(read["clk_mean"], rel=0.03), name
        # readings of instant power; windows were not aligned, good to about 7 %
        assert costs.request_power_w[i, costs.auto] == pytest.approx(read["inst_mean_W"], rel=0.03), name
        assert costs.duration_ns[i, costs.auto] == pytest.approx(read["us"] * 1e3)
    assert costs.idle_power_w[costs.auto] == pytest.approx(readings["idle_ctx"]["power_W"], abs=1.0)
    assert costs.idle_power_w[costs.index(Clocks(375, AUTO))] == pytest.approx(78.3, abs=1.0)


def test_the_h200_steals_clock_from_gemms_under_a_lower_limit_and_spares_memory_bound_kernels() -> None:
    kinds = [KernelKind(name="g", category="gemm"), KernelKind(name="c", category="copy")]
    full = cost_table(GPUS["h200"], kinds, [1e6, 1e5])
    half = cost_table(GPUS["h200"], kinds, [1e6, 1e5], power_limit_w=500.0)
    assert half.ratio[0, half.auto] > 1.1
    assert half.ratio[1, half.auto] < half.ratio[0, half.auto]
    assert (half.request_power_w[:, half.auto] <= 500.0).all()
    assert half.cap_w == 500.0
    assert full.recorded_effective is None
    assert half.recorded_effective is not None
    # recorded durations belong to the default limit
    np.testing.assert_array_equal(half.recorded_effective, full.effective[:, full.recorded])


def test_the_settled_layer_step_draws_what_was_read() -> None:
    """Operators were read one by one; the step of all of them averaged 676 W (readings good to 7 %)."""
    trace = read_trace("h200_gpt3xl_layer_train_100steps_gpuonly")
    by_kind = trace.ops.group_by("kind").agg(
        pl.col("duration_ns").median().alias("typical"), pl.col("duration_ns").sum().alias("busy")
    )
    typical, busy = np.zeros(len(trace.kinds)), np.zeros(len(trace.kinds))
    rows = by_kind["kind"].to_numpy()
    typical[rows], busy[rows] = by_kind["typical"].to_numpy(), by_kind["busy"].to_numpy()
    costs = cost_table(GPUS["h200"], trace.kinds, typical)
    span_ns = int((trace.ops["start_ns"] + trace.ops["duration_ns"]).max())  # type: ignore[arg-type]
    idle_nj = (span_ns - busy.sum()) * costs.idle_power_w[costs.auto]
    mean_w = (busy @ costs.request_power_w[:, costs.auto] + idle_nj) / span_ns
    assert mean_w == pytest.approx(676, rel=0.03)


@given(slug=slugs, corner=st.sampled_from(["low", "nominal", "high"]), data=st.data())
def test_laws_of_a_cost_table(slug: str, corner: Level, data: st.DataObject) -> None:
    gpu = GPUS[slug]
    durations = data.draw(st.lists(st.floats(1e3, 1e8), min_size=len(ALL_KINDS), max_size=len(ALL_KINDS)))
    pairs = list(gpu.clock_table())
    recorded = data.draw(st.sampled_from(pairs))
    costs = cost_table(gpu, ALL_KINDS, durations, recorded=recorded, corner=corner)
    assert costs.clocks == tuple(pairs)
    assert costs.clocks[costs.recorded] == recorded
    assert (costs.ratio[:, costs.recorded] == 1.0).all()
    ran = costs.effective[:, costs.recorded]
    same = costs.effective == ran[:, None]
    assert (costs.ratio[same] == 1.0).all()
    np.testing.assert_allclose(costs.duration_ns[np.arange(len(ALL_KINDS)), ran], durations, rtol=1e-12)
    sm = np.array([np.inf if c.sm_mhz is AUTO else c.sm_mhz for c in costs.clocks], dtype=float)
    mem = np.array([0 if c.mem_mhz is AUTO else c.mem_mhz for c in costs.clocks])
    effective_sm = sm[costs.effective]
    assert np.isfinite(effective_sm).all()
    assert (mem[costs.effective] == np.where(mem == 0, gpu.default_memory_mhz, mem)).all()
    assert (effective_sm <= sm).all(), "a request is an upper bound"
    numeric = np.flatnonzero(np.isfinite(sm))
    for memory in {*mem}:
        rows = [row for row in numeric if mem[row] == memory]
        assert (np.diff(effective_sm[:, rows]) >= 0).all(), "a higher request never lowers the clock"
    cap = gpu.need("power.limit_w").value
    lowest = np.isclose(effective_sm, gpu.sm.values_mhz[0])
    assert ((costs.request_power_w <= cap) | lowest).all()
    assert (costs.request_power_w >= costs.idle_power_w[costs.effective]).all()


@given(slug=slugs, caps=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_a_lower_cap_never_raises_a_clock(slug: str, caps: tuple[float, float]) -> None:
    gpu = GPUS[slug]
    low_w, high_w = gpu.need("power.limit_min_w").value, gpu.need("power.limit_w").value
    tight, loose = (
        cost_table(gpu, ALL_KINDS, [1e6] * 9, power_limit_w=low_w + part * (high_w - low_w))
        for part in sorted(caps)
    )
    sm = np.array([np.inf if c.sm_mhz is AUTO else c.sm_mhz for c in tight.clocks], dtype=float)
    assert (sm[tight.effective] <= sm[loose.effective]).all()
    assert (tight.ratio >= loose.ratio - 1e-12).all()


@pytest.mark.parametrize("slug", sorted(GPUS))
def test_corners_are_ordered(slug: str) -> None:
    """Below the recorded clocks, "high" costs most time and "low" least; energy likewise, to 2 %."""
    gpu = GPUS[slug]
    corners: tuple[Level, ...] = ("low", "nominal", "high")
    tables = [cost_table(gpu, ALL_KINDS, [1e6] * 9, corner=corner) for corner in corners]
    rows = [i for i, c in enumerate(tables[0].clocks) if c.sm_mhz is not AUTO and c.mem_mhz is AUTO]
    sm = np.array([tables[0].clocks[row].sm_mhz for row in rows])
    for k, kind in enumerate(ALL_KINDS):
        ran = [t.clocks[t.effective[k, t.auto]].sm_mhz for t in tables]
        below = np.array(rows)[sm <= min(mhz for mhz in ran if isinstance(mhz, int))]
        time_low, time_nominal, time_high = (t.ratio[k, below] for t in tables)
        assert (time_low <= time_nominal + 1e-12).all(), kind.name
        assert (time_nominal <= time_high + 1e-12).all(), kind.name
        energy = [
            t.ratio[k, below] * t.request_power_w[k, below] / t.request_power_w[k, t.auto] for t in tables
        ]
        assert (energy[0] <= energy[1] + 0.02).all(), kind.name
        assert (energy[1] <= energy[2] + 0.02).all(), kind.name
    assert any((tables[2].ratio > 1.01 * tables[0].ratio).any(axis=1)), "the corners differ"


@given(slug=slugs, data=st.data())
def test_fewer_requests_keep_every_effective_clock(slug: str, data: st.DataObject) -> None:
    gpu = GPUS[slug]
    subset = data.draw(st.lists(st.sampled_from(gpu.sm.values_mhz), min_size=1, max_size=5, unique=True))
    limit = data.draw(st.sampled_from([None, gpu.need("power.limit_min_w").value]))
    full = cost_table(gpu, ALL_KINDS, [1e6] * 9, power_limit_w=limit)
    some = cost_table(gpu, ALL_KINDS, [1e6] * 9, power_limit_w=limit, sm_clocks=subset)
    assert {c.sm_mhz for c, ok in zip(some.clocks, some.requestable, strict=True) if ok} <= {AUTO, *subset}
    assert AUTO_CLOCKS in some.clocks
    for i, clocks in enumerate(some.clocks):
        j = full.index(clocks)
        np.testing.assert_array_equal(some.ratio[:, i], full.ratio[:, j])
        np.testing.assert_array_equal(some.request_power_w[:, i], full.request_power_w[:, j])
        for k in range(len(ALL_KINDS)):
            assert some.clocks[some.effective[k, i]] == full.clocks[full.effective[k, j]]


def test_the_one_memory_clock_may_be_asked_for_and_is_what_auto_gives() -> None:
    costs = cost_table(GPUS["h200"], ALL_KINDS, [1e6] * 9)
    assert costs.n_clocks == 222
    assert costs.requestable.all()
    auto, locked = (costs.index(Clocks(1410, mem)) for mem in (AUTO, 3201))
    assert costs.effective[0, auto] == locked
    np.testing.assert_array_equal(costs.ratio[:, auto], costs.ratio[:, locked])
    np.testing.assert_array_equal(costs.request_power_w[:, auto], costs.request_power_w[:, locked])
    both = cost_table(GPUS["h200"], ALL_KINDS, [1e6] * 9, untested=True)
    assert both.requestable[both.index(Clocks(1410, 2201))]
    assert both.n_clocks == 333


def test_a_lower_memory_clock_gives_capped_gemms_clock_and_starves_copies() -> None:
    kinds = [KernelKind(name="g", category="gemm"), KernelKind(name="c", category="elementwise")]
    costs = cost_table(GPUS["rtx-3080-ti"], kinds, [19e6, 1.6e6])
    # the paper's fc matmul is 2.7 % faster at (5001, auto) than at (auto, auto)
    assert costs.ratio[0, costs.index(Clocks(AUTO, 5001))] == pytest.approx(0.977, abs=0.015)
    assert costs.ratio[1, costs.index(Clocks(AUTO, 5001))] == pytest.approx(9501 / 5001, rel=0.03)
    # its GELU loses nothing and saves a third at 630 MHz
    at_630 = costs.index(Clocks(630, 9501))
    assert costs.ratio[1, at_630] < 1.01
    assert costs.ratio[1, at_630] * costs.request_power_w[1, at_630] / costs.request_power_w[
        1, costs.auto
    ] == pytest.approx(0.668, abs=0.04)


def test_the_table_names_the_assumed_numbers_it_used_and_no_others() -> None:
    gpu = GPUS["h200"]
    assumed = cost_table(gpu, [KernelKind(name="g", category="gemm")], [1e6]).assumed
    assert "h200.voltage.knee_mhz" in assumed
    assert "h200.voltage.rise" not in assumed
    assert "h200.category.gemm.work_share" in assumed
    assert "h200.auto_resolved_by_governor" in assumed
    assert not any("category.copy" in name or "switching" in name or "kernel" in name for name in assumed)
    for name in assumed:
        fact = gpu.facts.get(name.removeprefix("h200."))
        assert fact is None or fact.kind == "assumed"


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        (
            {"recorded": Clocks(1411, AUTO)},
            UnsupportedClocksError,
            "sm=1411.*not supported by NVIDIA H200; nearest",
        ),
        ({"recorded": Clocks(AUTO, 2201)}, UnsupportedClocksError, "mem=2201"),
        ({"sm_clocks": [1980, 1000]}, UnsupportedClocksError, "sm=1000"),
        ({"power_limit_w": 900.0}, InputError, "power limit 900 W: NVIDIA H200 takes 200 to 700 W"),
    ],
)
def test_requests_that_the_gpu_does_not_take_are_refused(
    options: dict[str, object], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        cost_table(GPUS["h200"], ALL_KINDS, [1e6] * 9, **options)  # type: ignore[arg-type]


def test_2000_kinds_at_222_clocks_take_less_than_a_fifth_of_a_second() -> None:
    kinds = [
        KernelKind(name=f"k{i}", category=CATEGORIES[i % 9], flops=1e9 * i, bytes=1e6 * (i + 1))
        for i in range(2000)
    ]
    durations = np.linspace(2e3, 1e6, 2000)
    cost_table(GPUS["h200"], kinds, durations)
    took = []
    for _ in range(5):
        start = time.perf_counter()
        costs = cost_table(GPUS["h200"], kinds, durations)
        took.append(time.perf_counter() - start)
    assert costs.duration_ns.shape == (2000, 222)
    assert min(took) < 0.2


class TestTransfer:
    kinds = (
        KernelKind(name="g", category="gemm"),
        KernelKind(name="c", category="copy"),
        KernelKind(name="Memcpy HtoD", op_class="memcpy"),
    )

    def test_to_the_same_gpu_nothing_changes(self) -> None:
        there = transfer_cost_table(GPUS["h200"], self.kinds, [1e6, 1e5, 1e4], recorded_on=GPUS["h200"])
        here = cost_table(GPUS["h200"], self.kinds, [1e6, 1e5, 1e4])
        np.testing.assert_allclose(there.duration_scale, 1.0)
        np.testing.assert_allclose(there.costs.ratio, here.ratio)
        np.testing.assert_allclose(there.costs.power_w, here.power_w)

    def test_h100_to_h200_speeds_up_what_the_memory_holds_back(self) -> None:
        moved = transfer_cost_table(GPUS["h200"], self.kinds, [1e6, 1e5, 1e4], recorded_on=GPUS["h100-sxm"])
        gemm, copy, link = moved.duration_scale
        assert 0.9 < gemm < 1.1
        assert 0.65 < copy < 0.8  # 3.35 TB/s to 4.9 TB/s
        assert link == 1.0
        assert "transfer.h100-sxm.to.h200" in moved.costs.assumed
        assert any(name.startswith("h100-sxm.category.gemm") for name in moved.costs.assumed)
        assert any(name.startswith("h200.category.gemm") for name in moved.costs.assumed)
        assert moved.costs.clocks[moved.costs.recorded] == AUTO_CLOCKS

    def test_a_recording_at_locked_clocks_moves_too(self) -> None:
        auto = transfer_cost_table(GPUS["b200"], self.kinds, [1e6, 1e5, 1e4], recorded_on=GPUS["h200"])
        locked = transfer_cost_table(
            GPUS["b200"], self.kinds, [1e6, 1e5, 1e4], recorded_on=GPUS["h200"], recorded=Clocks(705, AUTO)
        )
        assert locked.duration_scale[0] < 0.6 * auto.duration_scale[0]

    def test_a_gpu_without_a_model_is_refused(self) -> None:
        gpu = GPUS["v100"]
        facts = {path: fact for path, fact in gpu.facts.items() if not path.startswith("category.gemm")}
        bare = replace(gpu, facts=facts)
        for source, target in ((bare, GPUS["h200"]), (GPUS["h200"], bare)):
            with pytest.raises(
                InputError, match="transfer: NVIDIA V100 SXM2 has no model of gemm kernels such as 'g'"
            ):
                transfer_cost_table(target, self.kinds, [1e6, 1e5, 1e4], recorded_on=source)
