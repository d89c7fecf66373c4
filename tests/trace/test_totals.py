"""Every recording of totals.csv: its integers, exactly, and where its kernel time goes."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest

from kdvfs_sim.core.errors import TraceFormatError
from kdvfs_sim.trace.readers import read_trace
from kdvfs_sim.trace.summary import summary
from kdvfs_sim.trace.table import Trace

TRACES = Path(__file__).resolve().parents[2].parent / "shared" / "traces"
NO_GPU_WORK = "hta__cpu_only_rank34.json.gz"
pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="no folder 'shared' beside the checkout")


def rows() -> list[dict[str, str]]:
    if not TRACES.is_dir():
        return []
    with (TRACES / "totals.csv").open(newline="") as file:
        return list(csv.DictReader(file))


READABLE = [row for row in rows() if row["file"] != NO_GPU_WORK]


@pytest.fixture(scope="module")
def traces() -> dict[str, Trace]:
    return {row["file"]: read_trace(TRACES / row["file"]) for row in READABLE}


@pytest.mark.parametrize("row", READABLE, ids=lambda row: row["file"])
def test_totals(row: dict[str, str], traces: dict[str, Trace]) -> None:
    found = summary(traces[row["file"]])
    expected = {column: int(value) for column, value in row.items() if column != "file"}
    assert {column: getattr(found, column) for column in expected} == expected
    assert found.format == "kineto"
    assert found.n_launches == found.n_kernels + found.n_memcpy + found.n_memset
    assert found.complete
    assert not found.quarantined
    assert not found.repairs


def test_a_recording_without_gpu_work_is_refused() -> None:
    with pytest.raises(TraceFormatError) as caught:
        read_trace(TRACES / NO_GPU_WORK)
    assert str(caught.value).startswith(f"{TRACES / NO_GPU_WORK}: no GPU work in this Kineto recording")
    assert "user_annotation 11, cpu_op 4" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_at_most_5_percent_of_kernel_time_is_in_no_category(traces: dict[str, Trace]) -> None:
    time_ns: Counter[str] = Counter()
    for trace in traces.values():
        for kind, duration_ns in trace.ops.select("kind", "duration_ns").iter_rows():
            if trace.kinds[kind].op_class == "kernel":
                time_ns[trace.kinds[kind].category] += duration_ns
    assert len(time_ns) == 9
    assert time_ns["other"] <= 0.05 * time_ns.total()


def test_an_operation_never_starts_before_its_launch(traces: dict[str, Trace]) -> None:
    """In these recordings host and GPU clocks agree: a wrong join would show here."""
    for trace in traces.values():
        launched = trace.ops.drop_nulls("host")
        launch_ns = trace.host["start_ns"].gather(launched["host"])
        assert (launched["start_ns"] >= launch_ns).all()
        assert (trace.host["action"].gather(launched["host"]) == "launch").all()


def test_what_a_synchronization_awaits_has_ended_when_it_returns(traces: dict[str, Trace]) -> None:
    n = 0
    for trace in traces.values():
        syncs = trace.host.drop_nulls("awaits")
        awaited = trace.ops[syncs["awaits"]]
        assert (syncs["action"] == "sync").all()
        assert (
            awaited["start_ns"] + awaited["duration_ns"] <= syncs["start_ns"] + syncs["duration_ns"]
        ).all()
        n += syncs.height
    assert n > 70


def test_event_waits_are_between_streams_and_causal(traces: dict[str, Trace]) -> None:
    n = 0
    for trace in traces.values():
        op, on = trace.ops[trace.waits["op"]], trace.ops[trace.waits["on"]]
        assert (on["start_ns"] + on["duration_ns"] <= op["start_ns"]).all()
        assert (on["stream"] != op["stream"]).all()
        n += trace.waits.height
    assert n == 7


def test_flops_and_bytes_stay_below_what_the_gpu_can_do(traces: dict[str, Trace]) -> None:
    """Peaks of the data sheets (dense, HBM). Caches exceed HBM on small tensors: from 50 us on only."""
    peaks = {
        "h200_gpt3xl_layer_train.json.gz": (989, 4800),
        "tracelens__qwen_h100.json.gz": (989, 3350),
        "triosim__vgg13_train_h100.json": (495, 3350),
    }
    for name, (tflops, gb_per_s) in peaks.items():
        trace = traces[name]
        n = 0
        for kind, duration_ns in trace.ops.select("kind", "duration_ns").iter_rows():
            flops, n_bytes = trace.kinds[kind].flops, trace.kinds[kind].bytes
            if flops is not None and n_bytes is not None and duration_ns > 50_000:
                n += 1
                assert flops / duration_ns / 1e3 < tflops, trace.kinds[kind]
                assert n_bytes / duration_ns < gb_per_s, trace.kinds[kind]
        assert n > 10


def test_graph_kernels_share_their_launch(traces: dict[str, Trace]) -> None:
    trace = traces["tracelens__vllm_decode_hipgraph_mi300x.json.gz"]
    per_launch = trace.ops.group_by("host").len()["len"].max()
    assert per_launch == 421
    assert traces["h200_gpt3xl_layer_infer_cudagraph.json.gz"].ops.drop_nulls("host").height == 75


def test_times_are_those_of_the_file(traces: dict[str, Trace]) -> None:
    assert traces["hta__ns_resolution_v100.json.gz"].origin_unix_ns == 1712195495505582988
    assert traces["hta__event_sync_multi_stream_a100.json.gz"].origin_unix_ns == 1712867402348667000
    relative = traces["hta__mi250_rocm62_toy_train.json.gz"]
    assert relative.origin_unix_ns == 1735632360000000000 + 4203669603454206


def test_gpus_are_named(traces: dict[str, Trace]) -> None:
    assert traces["h200_gpt3xl_full_train.json.gz"].device_name == "NVIDIA H200"
    mi300x = traces["tracelens__bert_mi300x.json.gz"]
    assert mi300x.devices == (2,)  # an agent number that the list of GPUs does not have
    assert mi300x.device_name == "AMD Instinct MI300X VF"
    assert traces["hta__sampled_rank1_of_128.json.gz"].device_name == ""


def test_where_dependencies_between_streams_are_unknown(traces: dict[str, Trace]) -> None:
    assert traces["h200_gpt3xl_layer_train_two_streams_copies.json.gz"].cross_stream_unknown
    assert traces["hta__nccl_rank0_of_2_a100.json.gz"].cross_stream_unknown
    assert not traces["hta__alexnet_a100_two_streams.json.gz"].cross_stream_unknown
    assert not traces["h200_gpt3xl_layer_train.json.gz"].cross_stream_unknown


def test_passes_and_iterations(traces: dict[str, Trace]) -> None:
    trace = traces["h200_gpt3xl_layer_train.json.gz"]
    counts = dict(trace.ops.group_by("pass").len().iter_rows())
    assert counts == {0: 57, 1: 123, 2: 12}
    per_iteration = trace.ops.group_by("iteration", "pass").len()
    assert set(per_iteration["iteration"].to_list()) == {0, 1, 2}
    assert (
        per_iteration.filter(iteration=0)
        .sort("pass")
        .drop("iteration")
        .equals(per_iteration.filter(iteration=2).sort("pass").drop("iteration"))
    )
    names = Counter(trace.ranges["name"].to_list())
    assert names["forward"] == names["backward"] == names["attn"] == names["ProfilerStep#0"] * 3 == 3
    assert dict(traces["h200_gpt3xl_full_train.json.gz"].ops.group_by("pass").len().iter_rows()) == {
        0: 370,
        1: 885,
        2: 72,
    }
