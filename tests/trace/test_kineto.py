"""The Kineto reader on small recordings: spellings, host side, passes, what is left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kineto_files import (
    annotation,
    call,
    copy,
    gpu_annotation,
    kernel,
    sync_record,
    write,
    write_text,
)

from kdvfs_sim.core.errors import TraceFormatError
from kdvfs_sim.trace.readers import read_trace
from kdvfs_sim.trace.table import Trace


def read(tmp_path: Path, events: list[dict[str, Any]], **metadata: Any) -> Trace:
    return read_trace(write(tmp_path / "t.json.gz", events, **metadata))


def test_every_generation_spells_the_same_kernel(tmp_path: Path) -> None:
    args = {"device": 1, "stream": 7, "correlation": 3, "grid": [4, 2, 1], "block": [128, 1, 1]}
    for cat, pid, tid, event_args in [
        ("Kernel", 1, "stream 7", args),
        ("kernel", 1, 7, args),
        ("KERNEL", "1", "7", args),
        ("kernel", 1, "stream 7", {key: args[key] for key in ("correlation", "grid", "block")}),
        ("kernel", 9, 9, {**args, "device": "1", "stream": "7"}),
    ]:
        runtime = {
            "ph": "X",
            "cat": "Runtime",
            "name": "hipLaunchKernel",
            "pid": 5,
            "tid": "5 (main)",
            "ts": 0,
        }
        trace = read(
            tmp_path,
            [
                {
                    "ph": "X",
                    "cat": cat,
                    "name": "k",
                    "pid": pid,
                    "tid": tid,
                    "ts": 5,
                    "dur": 1,
                    "args": event_args,
                },
                {**runtime, "dur": 2, "args": {"correlation": 3}},
            ],
        )
        assert trace.ops.select("device", "stream", "start_ns", "duration_ns", "host").rows() == [
            (1, 7, 0, 1000, 0)
        ]
        assert trace.kinds[0].grid == (4, 2, 1)
        assert trace.host.select("thread", "start_ns", "name").rows() == [(5, -5000, "hipLaunchKernel")]


@pytest.mark.parametrize("bare", [True, False])
@pytest.mark.parametrize("name", ["t.json", "t.gz", "recording"])
def test_the_name_of_the_file_does_not_matter(tmp_path: Path, name: str, bare: bool) -> None:
    content = json.dumps([kernel()] if bare else {"traceEvents": [kernel()]})
    assert read_trace(write_text(tmp_path / name, content)).n_ops == 1


@pytest.mark.parametrize("ts", ['"10.5"', "10.5", "1.05e1", "10.500", "105E-1"])
def test_times_in_any_notation(tmp_path: Path, ts: str) -> None:
    text = json.dumps([kernel(ts=10, dur=1), kernel(ts=555, dur=1)]).replace("555", ts)
    trace = read_trace(write_text(tmp_path / "t.json", text))
    assert trace.ops["start_ns"].to_list() == [0, 500]


@given(st.lists(st.tuples(st.integers(0, 10**16), st.integers(0, 10**7)), min_size=1, max_size=20))
def test_starts_and_durations_are_exact(
    tmp_path_factory: pytest.TempPathFactory, times: list[tuple[int, int]]
) -> None:
    """Nanoseconds written as decimal microseconds come back, sorted, from the first start on."""
    path = tmp_path_factory.getbasetemp() / "exact.json"
    events = []
    for start, duration in times:
        (ts, ts_ns), (dur, dur_ns) = divmod(start + 1, 1000), divmod(duration, 1000)
        text = f'"ts":{ts}.{ts_ns:03},"dur":{dur}.{dur_ns:03}'
        events.append(f'{{"ph":"X","cat":"kernel","name":"k",{text},"args":{{"device":0,"stream":1}}}}')
    trace = read_trace(write_text(path, f"[{','.join(events)}]"))
    first = min(start for start, _ in times)
    rows = trace.ops.select("start_ns", "duration_ns").rows()
    assert sorted(rows) == sorted((start - first, duration) for start, duration in times)
    assert [start for start, _ in rows] == sorted(start for start, _ in rows)


def test_order_of_ties_is_device_stream_file(tmp_path: Path) -> None:
    events = [
        kernel("d", device=1, stream=1),
        kernel("c", device=0, stream=2),
        kernel("a", device=0, stream=1),
        kernel("b", device=0, stream=1),
    ]
    trace = read(tmp_path, events)
    assert [trace.kinds[kind].name for kind in trace.ops["kind"]] == ["a", "b", "c", "d"]


def test_untimed_and_impossible_operations_are_left_out_and_counted(tmp_path: Path) -> None:
    events = [
        kernel(ts=1000),
        kernel(ts=0, dur=0),
        kernel(ts=0.0, dur=0),
        kernel(ts=1000, dur=-1),
        kernel(ts="soon"),
        kernel(ts=None),
        {**kernel(), "ph": "B"},
        {**kernel(), "ph": "E"},
        {**kernel(), "ph": "s"},
        {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "pid": 0, "tid": "stream"},
        kernel(ts=1e300),
    ]
    trace = read(tmp_path, events)
    assert trace.n_ops == 1
    assert not trace.complete
    assert trace.quarantined == {
        "start and duration 0: the profiler could not time it": 2,
        "negative duration": 1,
        "no readable start or duration": 3,
        "begin and end in two events, which Kineto never writes": 1,
        "no readable device or stream": 1,
    }


def test_if_all_operations_are_left_out_the_error_says_why(tmp_path: Path) -> None:
    with pytest.raises(TraceFormatError, match="2 left out: start and duration 0"):
        read(tmp_path, [kernel(ts=0, dur=0), kernel(ts=0, dur=0)])


def test_host_calls_without_kernels_get_another_hint(tmp_path: Path) -> None:
    with pytest.raises(TraceFormatError, match="host calls but no kernels"):
        read(tmp_path, [call("cudaLaunchKernel", 1, 1, 5)])


def test_relative_times_and_base(tmp_path: Path) -> None:
    base_ns = 1719853884000000000
    assert read(tmp_path, [kernel(ts=2)], baseTimeNanoseconds=base_ns).origin_unix_ns == base_ns + 2000
    assert read(tmp_path, [kernel(ts=2)], baseTimeNanoseconds=str(base_ns)).origin_unix_ns == base_ns + 2000
    assert read(tmp_path, [kernel(ts=2)]).origin_unix_ns is None
    epoch_us = 1712195495505582
    assert read(tmp_path, [kernel(ts=epoch_us)]).origin_unix_ns == epoch_us * 1000


@pytest.mark.parametrize(
    ("properties", "name"),
    [
        ([{"id": 0, "name": "A"}, {"id": 2, "name": "B"}], "B"),
        ([{"id": 0, "name": "A"}], "A"),
        ([{"id": 0, "name": "A"}, {"id": 1, "name": "A"}], "A"),
        ([{"id": 0, "name": "A"}, {"id": 1, "name": "B"}], ""),
        ([{"id": 2, "name": ""}], ""),
        ("odd", ""),
        ([], ""),
    ],
)
def test_device_names(tmp_path: Path, properties: Any, name: str) -> None:
    assert read(tmp_path, [kernel(device=2)], deviceProperties=properties).device_name == name


def test_a_graph_launch_owns_its_kernels_and_lost_launches_are_counted(tmp_path: Path) -> None:
    events = [
        call("cudaGraphLaunch", 1, 2, 10),
        kernel("a", 5, 1, correlation=10),
        kernel("b", 6, 1, correlation=10),
        kernel("orphan", 4, 1, correlation=3),
        kernel("zero", 9, 1, correlation=0),
        call("cudaStreamBeginCapture", 20, 1, 11),
        call("cudaLaunchKernel", 21, 1, 12),
        call("cudaStreamEndCapture", 22, 1, 13),
    ]
    trace = read(tmp_path, events)
    assert trace.complete
    assert trace.ops["host"].to_list() == [None, 0, 0, None]
    lost = read(tmp_path, [*events, call("cudaLaunchKernel", 30, 1, 14), call("hipGraphLaunch", 31, 1, 15)])
    assert not lost.complete
    assert lost.quarantined == {"launched, but the recording holds no operation of it": 2}


def test_a_kernel_may_seem_to_start_before_its_launch(tmp_path: Path) -> None:
    """Clocks of host and GPU differ on some AMD systems; the recorded times stay as they are."""
    trace = read(tmp_path, [call("hipLaunchKernel", 10.5, 2, 5), kernel(ts=10, correlation=5)])
    assert trace.ops.select("start_ns", "host").rows() == [(0, 0)]
    assert trace.host["start_ns"].to_list() == [500]
    assert not trace.repairs


def test_the_outermost_call_is_the_launch(tmp_path: Path) -> None:
    events = [call("cuLaunchKernel", 2, 1, 5), call("cudaLaunchKernel", 1, 3, 5), kernel(correlation=5)]
    assert read(tmp_path, events).host["name"].to_list() == ["cudaLaunchKernel"]


@pytest.mark.parametrize(
    ("name", "op", "end_us", "blocks"),
    [
        ("cudaMemcpy", "Memcpy HtoD (Pageable -> Device)", 20, True),
        ("cudaMemcpyAsync", "Memcpy HtoD (Pinned -> Device)", 20, False),
        ("cudaMemcpyAsync", "Memcpy DtoH (Device -> Pageable)", 20, True),
        ("cudaMemcpyAsync", "Memcpy DtoH (Device -> Pinned)", 20, False),
        ("cudaMemcpyAsync", "Memcpy DtoH (Device -> Pageable)", 99, False),
        ("cudaMemcpy", "Memcpy DtoD (Device -> Device)", 20, False),
        ("hipMemcpyWithStream", "Memcpy DtoH (Device -> Host)", 20, True),
        ("cuMemcpyDtoH_v2", "Memcpy DtoH (Device -> Pageable)", 20, True),
        ("cudaMemsetAsync", "Memset (Device)", 20, False),
    ],
)
def test_a_copy_that_blocks_is_launched_and_awaited(
    tmp_path: Path, name: str, op: str, end_us: int, blocks: bool
) -> None:
    trace = read(tmp_path, [call(name, 1, 24, 5), copy(op, 10, end_us - 10, correlation=5)])
    host = trace.host.select("start_ns", "duration_ns", "action", "awaits").rows()
    if blocks:
        assert host == [(-9000, 0, "launch", None), (-9000, 24000, "sync", 0)]
    else:
        assert host == [(-9000, 24000, "launch", None)]
    assert trace.ops["host"].to_list() == [0]


def two_streams() -> list[dict[str, Any]]:
    """Stream 7 runs a, b; stream 8 runs c after an event recorded between a and b."""
    return [
        call("cudaLaunchKernel", 1, 1, 1),
        call("cudaEventRecord", 3, 1, 2),
        call("cudaLaunchKernel", 5, 1, 3),
        call("cudaStreamWaitEvent", 7, 1, 4),
        call("cudaLaunchKernel", 9, 1, 5),
        call("cudaEventSynchronize", 11, 30, 6),
        call("cudaStreamSynchronize", 42, 30, 7),
        call("cudaDeviceSynchronize", 73, 30, 8),
        call("cudaEventQuery", 110, 1, 9),
        kernel("a", 10, 20, correlation=1),
        kernel("b", 30, 30, correlation=3),
        kernel("c", 35, 60, correlation=5, stream=8),
    ]


def test_synchronization_records_say_what_was_awaited(tmp_path: Path) -> None:
    recorded = {"wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 2}
    records = [
        sync_record("Stream Wait Event", 4, stream=8, **recorded),
        sync_record("Event Sync", 6, **recorded),
        sync_record("Stream Sync", 7, stream=7),
        sync_record("Context Sync", 8),
        sync_record("Event Sync", 9, **recorded),
        sync_record("Stream Wait Event", 400, stream=8, **recorded),
    ]
    trace = read(tmp_path, [*two_streams(), *records])
    names = [trace.kinds[kind].name for kind in trace.ops["kind"]]
    assert names == ["a", "b", "c"]
    syncs = trace.host.filter(action="sync").select("name", "awaits").rows()
    assert syncs == [("cudaEventSynchronize", 0), ("cudaStreamSynchronize", 1), ("cudaDeviceSynchronize", 2)]
    assert trace.waits.rows() == [(2, 0)]
    assert not trace.cross_stream_unknown
    assert trace.complete


def test_without_records_nothing_is_made_up(tmp_path: Path) -> None:
    trace = read(tmp_path, two_streams())
    assert trace.host.filter(action="sync")["awaits"].to_list() == [None, None, None]
    assert trace.waits.is_empty()
    assert trace.cross_stream_unknown


def test_a_wait_that_the_times_contradict_is_dropped_and_counted(tmp_path: Path) -> None:
    events = [e for e in two_streams() if e["name"] != "c"]
    early = kernel("c", 12, 2, correlation=5, stream=8)
    record = sync_record(
        "Stream Wait Event", 4, stream=8, wait_on_stream=7, wait_on_cuda_event_record_corr_id=2
    )
    trace = read(tmp_path, [*events, early, record])
    assert trace.waits.is_empty()
    assert trace.repairs == {"event waits dropped because the times contradict them": 1}


def test_backward_runs_on_another_thread(tmp_path: Path) -> None:
    events = [
        annotation("ProfilerStep#7", 0, 100),
        annotation("## forward ##", 1, 10),
        annotation("backward", 20, 30),
        annotation("Optimizer.step#Adam.step", 45, 4),  # inside backward: the innermost counts
        annotation("data", 60, 10, thread=3),
        annotation("ProfilerStep#8", 100, 100),
        call("cudaLaunchKernel", 2, 1, 1),
        call("cudaLaunchKernel", 25, 1, 2, thread=2),
        call("cudaLaunchKernel", 46, 1, 3),
        call("cudaLaunchKernel", 65, 1, 4),
        call("cudaLaunchKernel", 101, 1, 5),
        *(kernel(f"k{i}", 200 + i, 1, correlation=i) for i in range(1, 6)),
        kernel("before the window", 150, 1, correlation=99),
    ]
    trace = read(tmp_path, events)
    assert trace.ops["pass"].to_list() == [-1, 0, 1, 2, -1, -1]
    assert trace.ops["iteration"].to_list() == [-1, 0, 0, 0, 0, 1]
    ranges = trace.ranges.rows()
    assert ("ProfilerStep#7", 51_000, 55_000) in ranges
    assert ("backward", 52_000, 54_000) in ranges
    assert not any(name == "data" for name, *_ in ranges)  # k4 was launched by another thread


def test_without_launches_the_ranges_on_the_gpu_count(tmp_path: Path) -> None:
    events = [
        gpu_annotation("ProfilerStep#3", 0, 50),
        gpu_annotation("forward", 0, 10),
        kernel("a", 1, 2),
        kernel("b", 20, 2),
    ]
    trace = read(tmp_path, events)
    assert trace.ops["pass"].to_list() == [0, -1]
    assert trace.ops["iteration"].to_list() == [0, 0]
    assert trace.ranges.rows() == [("forward", 0, 2000), ("ProfilerStep#3", 0, 21000)]


@pytest.mark.parametrize("field", ["device", "stream", "correlation", "grid", "block", "bytes"])
@pytest.mark.parametrize(
    "value", [None, True, 1.5, "x", [], [1, 2], {}, -1, 2**63, 2**64 - 1, 10**40, "9" * 5000]
)
def test_odd_values_in_args_never_crash(tmp_path: Path, field: str, value: Any) -> None:
    trace = read(tmp_path, [kernel("a", 1, 1), kernel("b", 5, 1, **{field: value})])
    assert trace.n_ops + sum(trace.quarantined.values()) == 2


@pytest.mark.parametrize("name", [None, 5, [], {}, "é\u0000\n"])
def test_odd_names_never_crash(tmp_path: Path, name: Any) -> None:
    assert read(tmp_path, [{**kernel(), "name": name}, {**call("x", 1, 1, 1), "name": name}]).n_ops == 1
