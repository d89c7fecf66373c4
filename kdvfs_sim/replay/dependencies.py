"""What each operation and each host action of a trace waits for, found from when they ran."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kdvfs_sim.core.errors import InputError
from kdvfs_sim.replay.program import LONG_AGO, Host, Int64s, Program

if TYPE_CHECKING:
    import polars as pl

    from kdvfs_sim.trace.table import Trace


def compile_trace(trace: Trace, device: int | None = None) -> Program:
    """See Program.from_trace, also for what it raises."""
    ops = trace.ops.with_row_index("row")
    if device is not None:
        if device not in trace.devices:
            raise InputError(f"the trace has no device {device}; devices: {list(trace.devices)}")
        ops = ops.filter(ops["device"] == device)
    start, duration = _ints(ops["start_ns"]), _ints(ops["duration_ns"])
    end = start + duration
    streams, stream = _streams(ops)
    previous, position = _stream_order(stream)
    running = (previous >= 0) & (end[previous] > start)
    after = _latest_ended(stream, previous, start, end)
    launch = _ints(ops["host"].fill_null(-1))
    launched_ns, shift = _launch_times(trace.host, launch, start)
    op_of_row = np.full(trace.n_ops, -1, dtype=np.int64)
    op_of_row[_ints(ops["row"])] = np.arange(ops.height)
    wait_op, wait_on = _waits(trace, op_of_row, stream, start, end)
    last_action = _last_actions(launch, previous, wait_op, wait_on)

    anchors = (
        np.where(after >= 0, end[after], LONG_AGO),
        np.where(running, start[previous], LONG_AGO),
        launched_ns,
        np.full(ops.height, LONG_AGO),
    )
    np.maximum.at(anchors[3], wait_op, end[wait_on])
    latest = np.maximum.reduce(anchors)
    after_lag, overlap, launch_lag = (_lags(start, anchor, latest) for anchor in anchors[:3])
    wait_lag = _lags(start[wait_op], end[wait_on], latest[wait_op])

    flags = [
        name
        for name, applies in (
            ("cross_stream_unknown", trace.cross_stream_unknown),
            ("incomplete_trace", not trace.complete),
        )
        if applies
    ]
    return Program(
        row=_ints(ops["row"]),
        kind=ops["kind"].to_numpy().astype(np.int32),
        stream=stream,
        position=position,
        duration_ns=duration,
        recorded_start_ns=start,
        previous=previous,
        after=after,
        after_lag_ns=after_lag,
        overlap_ns=np.where(running, overlap, -1),
        launch=launch,
        launch_lag_ns=launch_lag,
        last_action=last_action,
        not_before_ns=np.where(latest == LONG_AGO, start, LONG_AGO),
        passes=ops["pass"].to_numpy().astype(np.int8),
        wait_op=wait_op,
        wait_on=wait_on,
        wait_lag_ns=wait_lag,
        host=_host(trace.host, op_of_row, launch, last_action, end, shift),
        streams=streams,
        threads=tuple(trace.host["thread"].unique().sort().to_list()),
        kinds=trace.kinds,
        recorded_clocks=trace.recorded_clocks,
        host_shift_ns=shift,
        flags=tuple(flags),
    )


def _ints(column: pl.Series) -> Int64s:
    return column.to_numpy().astype(np.int64)


def _streams(ops: pl.DataFrame) -> tuple[tuple[tuple[int, int], ...], npt.NDArray[np.int32]]:
    pairs = list(zip(ops["device"].to_list(), ops["stream"].to_list(), strict=True))
    streams = tuple(sorted(set(pairs)))
    index = {pair: i for i, pair in enumerate(streams)}
    return streams, np.asarray([index[pair] for pair in pairs], dtype=np.int32)


def _stream_order(stream: npt.NDArray[np.int32]) -> tuple[Int64s, Int64s]:
    """For each operation the one before it on its stream (-1: none), and its number there."""
    order = np.argsort(stream, kind="stable")
    first = np.ones(order.size, dtype=bool)
    first[1:] = stream[order[1:]] != stream[order[:-1]]
    previous, position = np.empty(order.size, dtype=np.int64), np.empty(order.size, dtype=np.int64)
    previous[order] = np.where(first, -1, np.concatenate(([-1], order[:-1])))
    count = np.arange(order.size)
    position[order] = count - np.maximum.accumulate(np.where(first, count, 0))
    return previous, position


def _latest_ended(stream: npt.NDArray[np.int32], previous: Int64s, start: Int64s, end: Int64s) -> Int64s:
    """For each operation the one that ended last among the earlier ones of its stream that had ended.

    Where nothing overlaps that is the previous one.
    """
    after = previous.copy()
    for s in np.unique(stream[(previous >= 0) & (end[previous] > start)]).tolist():
        ended: list[tuple[int, int]] = []  # (end, operation), sorted
        for op in np.flatnonzero(stream == s).tolist():
            i = bisect.bisect_right(ended, (int(start[op]), op))
            after[op] = ended[i - 1][1] if i else -1
            bisect.insort(ended, (int(end[op]), op))
    return after


def _launch_times(host: pl.DataFrame, launch: Int64s, start: Int64s) -> tuple[Int64s, int]:
    """When each operation was launched (LONG_AGO: unknown), and how much earlier the host was moved
    so that nothing starts before its launch."""
    if not host.height:
        return np.full(start.size, LONG_AGO), 0
    launched = _ints(host["start_ns"])[launch]
    known = launch >= 0
    shift = max(0, int((launched - start)[known].max())) if known.any() else 0
    return np.where(known, launched - shift, LONG_AGO), shift


def _waits(
    trace: Trace, op_of_row: Int64s, stream: npt.NDArray[np.int32], start: Int64s, end: Int64s
) -> tuple[Int64s, Int64s]:
    """Event waits that bind two streams. One that the recording itself contradicts is left out."""
    op, on = op_of_row[_ints(trace.waits["op"])], op_of_row[_ints(trace.waits["on"])]
    holds = (op >= 0) & (on >= 0) & (on < op) & (stream[op] != stream[on]) & (end[on] <= start[op])
    op, on = op[holds], on[holds]
    order = np.argsort(op, kind="stable")
    return op[order], on[order]


def _last_actions(launch: Int64s, previous: Int64s, wait_op: Int64s, wait_on: Int64s) -> Int64s:
    """The last host action that each operation depends on, by itself or through other operations."""
    waits: dict[int, list[int]] = {}
    for op, on in zip(wait_op.tolist(), wait_on.tolist(), strict=True):
        waits.setdefault(op, []).append(on)
    last: list[int] = launch.tolist()
    for op, before in enumerate(previous.tolist()):
        if before >= 0 and last[before] > last[op]:
            last[op] = last[before]
        for on in waits.get(op, ()):
            last[op] = max(last[op], last[on])
    return np.asarray(last, dtype=np.int64)


def _lags(start: Int64s, anchor: Int64s, latest: Int64s) -> Int64s:
    """The binding dependencies' recorded residuals; the class minimum where another one binds."""
    there = anchor > LONG_AGO
    residual = np.where(there, start - anchor, 0)
    minimum = int(residual[there].min()) if there.any() else 0
    return np.where(there & (anchor < latest), minimum, residual)


def _host(
    host: pl.DataFrame, op_of_row: Int64s, launch: Int64s, last_action: Int64s, op_end: Int64s, shift: int
) -> Host:
    start, length = _ints(host["start_ns"]) - shift, _ints(host["duration_ns"])
    end = start + length
    everyone = np.arange(start.size)
    prev_any = _latest_completed(everyone, start, end)
    prev_own = np.full(start.size, -1, dtype=np.int64)
    thread_ids = np.unique(_ints(host["thread"]))
    thread = np.searchsorted(thread_ids, _ints(host["thread"]))
    for t in range(thread_ids.size):
        own = everyone[thread == t]
        found = _latest_completed(own, start, end)
        prev_own[own] = found
    is_sync = (host["action"] == "sync").to_numpy()
    is_launch = np.zeros(start.size, dtype=bool)
    is_launch[launch[launch >= 0]] = True  # calls that launched nothing here only take time

    awaits = np.full(start.size, -1, dtype=np.int64)
    await_lag = np.zeros(start.size, dtype=np.int64)
    by_end = np.lexsort((np.arange(op_end.size), op_end))
    ends = op_end[by_end]
    told = host["awaits"].fill_null(-1).to_numpy().astype(np.int64)
    for i in np.flatnonzero(is_sync).tolist():
        op = int(op_of_row[told[i]]) if told[i] >= 0 else -1
        if op < 0 or last_action[op] >= i or op_end[op] > end[i]:
            at = int(np.searchsorted(ends, end[i], side="right")) - 1
            while at >= 0 and last_action[by_end[at]] >= i:
                at -= 1
            op = int(by_end[at]) if at >= 0 else -1
        awaits[i] = op
        if op >= 0 and op_end[op] > start[i]:
            await_lag[i] = end[i] - op_end[op]
            length[i] = 0
    return Host(
        thread=thread.astype(np.int32),
        is_launch=is_launch,
        start_ns=start,
        length_ns=length,
        prev_any=prev_any,
        gap_ns=np.where(prev_any >= 0, start - end[prev_any], 0) if start.size else start,
        prev_own=np.where(prev_own == prev_any, -1, prev_own),
        awaits=awaits,
        await_lag_ns=await_lag,
    )


def _latest_completed(actions: Int64s, start: Int64s, end: Int64s) -> Int64s:
    """For each of ``actions`` (in order) the earlier one of them that ended last by its start, or -1."""
    by_end = actions[np.argsort(end[actions], kind="stable")]
    at = np.searchsorted(end[by_end], start[actions], side="right") - 1
    found = np.where(at >= 0, by_end[at], -1) if actions.size else actions.copy()
    for i in np.flatnonzero(found >= actions).tolist():  # actions of no length at one instant
        j = int(at[i])
        while j >= 0 and by_end[j] >= actions[i]:
            j -= 1
        found[i] = by_end[j] if j >= 0 else -1
    return found
