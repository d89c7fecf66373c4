"""The host side of a Kineto recording: launches, synchronizations and event waits.

Launches are joined to operations by correlation, never by the name of the call: every CUDA and HIP
spelling is covered, and a graph launch owns all operations that carry its correlation. What a
synchronization or an event wait waited for is told by ``cuda_sync`` records, where there are any.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from kdvfs_sim.trace.intervals import Int64s

_SYNCHRONIZE: Final = re.compile(r"(?:cuda|cu|hip)(?:Device|Thread|Ctx|Stream|Event)Synchronize")
_COPY: Final = re.compile(r"(?:cuda|cu|hip)Memcpy")
_LAUNCH: Final = re.compile(r"Launch\w*Kernel|GraphLaunch")
_BEFORE_ALL: Final = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calls:
    """Runtime and driver calls; all arrays have shape (n_calls,)."""

    name: Sequence[str]
    correlation: Int64s
    thread: Int64s
    start_ns: Int64s
    duration_ns: Int64s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GpuOps:
    """GPU operations; all arrays have shape (n_ops,)."""

    name: Sequence[str]
    device: Int64s
    stream: Int64s
    start_ns: Int64s
    end_ns: Int64s
    correlation: Int64s


@dataclass(frozen=True, slots=True)
class SyncRecord:
    """One ``cuda_sync`` event. ``correlation`` is that of the call; -1 stands for what is not given."""

    kind: str  # "stream sync", "event sync", "context sync", "stream wait event"
    correlation: int
    device: int
    stream: int
    recorded_stream: int = -1
    recorded_correlation: int = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostSide:
    """Columns of HOST_SCHEMA and WAITS_SCHEMA; for each operation the row of host that launched it (-1: no
    launch record) and when (before all else, if unknown); and counts of what contradicts itself."""

    host: dict[str, list[Any]]
    waits: dict[str, list[int]]
    op_host: Int64s
    launched_ns: Int64s
    n_lost: int
    n_impossible_waits: int


def host_side(calls: Calls, ops: GpuOps, records: Sequence[SyncRecord]) -> HostSide:
    """Build the host table of a recording from its calls, operations and synchronization records."""
    call_of = _call_by_correlation(calls)
    op_call = np.asarray([call_of.get(c, -1) for c in ops.correlation.tolist()], dtype=np.int64)
    launched_ns = np.where(op_call >= 0, calls.start_ns[op_call] if len(calls.name) else 0, _BEFORE_ALL)
    streams = _Queues(list(zip(ops.device.tolist(), ops.stream.tolist(), strict=True)), launched_ns, ops)
    devices = _Queues(ops.device.tolist(), launched_ns, ops)
    record_of = {record.correlation: record for record in records}
    ops_of: dict[int, list[int]] = {}
    for op, call in enumerate(op_call.tolist()):
        if call >= 0:
            ops_of.setdefault(call, []).append(op)

    host: dict[str, list[Any]] = {
        key: [] for key in ("thread", "start_ns", "duration_ns", "action", "name", "awaits")
    }
    row_of_call: dict[int, int] = {}

    def add(call: int, action: str, duration_ns: int, awaits: int | None) -> None:
        host["thread"].append(int(calls.thread[call]))
        host["start_ns"].append(int(calls.start_ns[call]))
        host["duration_ns"].append(duration_ns)
        host["action"].append(action)
        host["name"].append(calls.name[call])
        host["awaits"].append(awaits)

    for call, name in enumerate(calls.name):
        duration_ns = int(calls.duration_ns[call])
        launched = ops_of.get(call)
        if launched:
            row_of_call[call] = len(host["name"])
            copy = launched[-1]
            waited = ops.end_ns[copy] <= calls.start_ns[call] + duration_ns
            if waited and _blocks(name, ops.name[copy]):
                # the launch takes no time of its own: the call spends it waiting for the copy
                add(call, "launch", 0, None)
                add(call, "sync", duration_ns, copy)
            else:
                add(call, "launch", duration_ns, None)
        elif _SYNCHRONIZE.match(name):
            record = record_of.get(int(calls.correlation[call]))
            add(call, "sync", duration_ns, _awaited(record, call, calls, call_of, streams, devices))

    waits = sorted(set(_event_waits(records, calls, call_of, streams)))
    possible = [(op, on) for op, on in waits if ops.end_ns[on] <= ops.start_ns[op]]
    return HostSide(
        host=host,
        waits={"op": [op for op, _ in possible], "on": [on for _, on in possible]},
        op_host=np.asarray([row_of_call.get(call, -1) for call in op_call.tolist()], dtype=np.int64),
        launched_ns=launched_ns,
        n_lost=_n_lost(calls, ops_of),
        n_impossible_waits=len(waits) - len(possible),
    )


def _call_by_correlation(calls: Calls) -> dict[int, int]:
    """The outermost call of each correlation: a runtime call and the driver call inside it may share one."""
    found: dict[int, int] = {}
    for call in np.argsort(calls.start_ns, kind="stable")[::-1].tolist():
        found[int(calls.correlation[call])] = call
    found.pop(-1, None)
    found.pop(0, None)  # CUPTI and roctracer count from 1
    return found


def _event_waits(
    records: Sequence[SyncRecord], calls: Calls, call_of: dict[int, int], streams: _Queues
) -> Iterator[tuple[int, int]]:
    """(operation, operation it waits for): the first one launched on the waiting stream after the wait, and
    the last one launched on the recorded stream before the event was recorded."""
    for record in records:
        wait, recorded = call_of.get(record.correlation), call_of.get(record.recorded_correlation)
        if record.kind != "stream wait event" or wait is None or recorded is None:
            continue
        op = streams.first_after((record.device, record.stream), int(calls.start_ns[wait]))
        on = streams.last_before((record.device, record.recorded_stream), int(calls.start_ns[recorded]))
        if op is not None and on is not None and record.stream != record.recorded_stream:
            yield op, on


def _blocks(call: str, copy: str) -> bool:
    """Whether a copy call returns only after its copy (CUDA Runtime API, "API synchronization behavior"): the
    synchronous forms, ``hipMemcpyWithStream``, and any copy to pageable host memory; none inside the GPU."""
    if not _COPY.match(call) or "DtoD" in copy:
        return False
    return "Async" not in call or "-> Pageable" in copy


def _awaited(
    record: SyncRecord | None,
    call: int,
    calls: Calls,
    call_of: dict[int, int],
    streams: _Queues,
    devices: _Queues,
) -> int | None:
    if record is None:
        return None
    moment_ns = int(calls.start_ns[call])
    if record.kind == "context sync":
        return devices.last_before(record.device, moment_ns)
    if record.kind == "stream sync":
        return streams.last_before((record.device, record.stream), moment_ns)
    recorded = call_of.get(record.recorded_correlation)
    if record.kind == "event sync" and recorded is not None:
        return streams.last_before((record.device, record.recorded_stream), int(calls.start_ns[recorded]))
    return None


def _n_lost(calls: Calls, ops_of: dict[int, list[int]]) -> int:
    """Kernel and graph launches without any operation recorded; those of a stream capture run nothing."""
    begins = [int(calls.start_ns[c]) for c, name in enumerate(calls.name) if "StreamBeginCapture" in name]
    ends = [int(calls.start_ns[c]) for c, name in enumerate(calls.name) if "StreamEndCapture" in name]
    begins.sort()
    ends.sort()

    def capturing(moment_ns: int) -> bool:
        return int(np.searchsorted(begins, moment_ns)) > int(np.searchsorted(ends, moment_ns))

    return sum(
        call not in ops_of and bool(_LAUNCH.search(name)) and not capturing(int(calls.start_ns[call]))
        for call, name in enumerate(calls.name)
    )


class _Queues:
    """Operations by stream (or by device), in the order of their launches."""

    def __init__(self, key_of_op: Sequence[Hashable], launched_ns: Int64s, ops: GpuOps) -> None:
        members: dict[Hashable, list[int]] = {}
        for op in np.lexsort((ops.start_ns, launched_ns)).tolist():
            members.setdefault(key_of_op[op], []).append(op)
        self._queues: dict[Hashable, tuple[Int64s, Int64s, Int64s]] = {}
        for key, rows in members.items():
            row = np.asarray(rows, dtype=np.int64)
            end_ns = ops.end_ns[row]
            is_latest = end_ns >= np.maximum.accumulate(end_ns)
            latest = row[np.maximum.accumulate(np.where(is_latest, np.arange(row.size), 0))]
            self._queues[key] = (launched_ns[row], row, latest)

    def last_before(self, key: Hashable, moment_ns: int) -> int | None:
        """Of the operations launched before the moment, the one that ended last."""
        if key not in self._queues:
            return None
        launched_ns, _, latest = self._queues[key]
        n = int(np.searchsorted(launched_ns, moment_ns))
        return int(latest[n - 1]) if n else None

    def first_after(self, key: Hashable, moment_ns: int) -> int | None:
        """The first operation launched after the moment."""
        if key not in self._queues:
            return None
        launched_ns, row, _ = self._queues[key]
        n = int(np.searchsorted(launched_ns, moment_ns, side="right"))
        return int(row[n]) if n < row.size else None
