"""The events of a Kineto recording that a replay needs, as columns.

Kineto's generations differ in spelling: categories (``Kernel``, ``kernel``), streams (``"stream 7"``, ``7``),
times (whole microseconds or decimals). Categories are compared in lower case, device and stream are taken
from ``args``, times from the decimal text. Everything else in the file (Python frames, flows, counters) is
skipped as it is read.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from typing import Any, Final, Literal, TypeAlias

import msgspec
import numpy as np

from kdvfs_sim.core.kinds import OpClass
from kdvfs_sim.trace.annotations import Annotation
from kdvfs_sim.trace.chrome import SYNTAX_ERRORS, Event, repair
from kdvfs_sim.trace.exact import to_ns
from kdvfs_sim.trace.intervals import Int64s
from kdvfs_sim.trace.kineto_host import SyncRecord
from kdvfs_sim.trace.op_costs import OpCost, has_formula, op_cost

Role: TypeAlias = Literal[
    "kernel", "memcpy", "memset", "call", "sync", "annotation", "gpu_annotation", "cpu_op"
]

_ROLES: Final[dict[str, Role]] = {
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
    "cuda_sync": "sync",
    "user_annotation": "annotation",
    "gpu_user_annotation": "gpu_annotation",
    "cpu_op": "cpu_op",
    "operator": "cpu_op",
}
_GPU_ROLES: Final = ("kernel", "memcpy", "memset")
_NUMBER: Final = re.compile(r"-?\d{1,20}", re.ASCII)
_TIMES_NS: Final = range(-(2**60), 2**62)  # up to the year 2116; beyond, sums of two would overflow


class _Args(msgspec.Struct, gc=False):
    """What is read of ``args``. Types are checked where a value is used."""

    device: Any = None
    stream: Any = None
    correlation: Any = None
    grid: Any = None
    block: Any = None
    bytes: Any = None
    cuda_sync_kind: Any = None
    wait_on_stream: Any = None
    wait_on_cuda_event_record_corr_id: Any = None


class _OpArgs(msgspec.Struct, gc=False):
    dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input type")
    values: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Concrete Inputs")


_args = msgspec.json.Decoder(_Args)
_op_args = msgspec.json.Decoder(_OpArgs)
Shape: TypeAlias = tuple[str, OpClass, tuple[int, int, int] | None, tuple[int, int, int] | None, int | None]


class Columns:
    """Equally long columns of 64-bit integers, filled row by row at eight bytes a value."""

    def __init__(self, *names: str) -> None:
        self._columns = {name: array("q") for name in names}
        self._appends = [column.append for column in self._columns.values()]

    def add(self, *row: int) -> None:
        for append, value in zip(self._appends, row, strict=True):
            append(value)

    def __getitem__(self, name: str) -> Int64s:
        return np.frombuffer(self._columns[name], dtype=np.int64)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))


class KinetoEvents:
    """Operations, calls, synchronization records, annotations and framework operators of one recording.

    ``ops``: shape (index into ``shapes``), device, stream, start_ns, duration_ns, correlation (-1: none).
    ``calls``: name (index into ``call_names``), correlation, thread, start_ns, duration_ns.
    ``cpu_ops``: thread, start_ns, end_ns, cost (index into ``costs``; 0 is no cost).
    """

    def __init__(self) -> None:
        self.categories: Counter[str] = Counter()
        self.quarantined: Counter[str] = Counter()
        self.ops = Columns("shape", "device", "stream", "start_ns", "duration_ns", "correlation")
        self.shapes: dict[Shape, int] = {}
        self.calls = Columns("name", "correlation", "thread", "start_ns", "duration_ns")
        self.call_names: dict[str, int] = {}
        self.cpu_ops = Columns("thread", "start_ns", "end_ns", "cost")
        self.costs: list[OpCost | None] = [None]
        self.sync_records: list[SyncRecord] = []
        self.annotations: list[Annotation] = []
        self.gpu_annotations: list[Annotation] = []
        self._threads: dict[str, int] = {}
        self._cost_of: dict[tuple[str, bytes, bytes, bytes], int] = {}

    def add(self, event: Event) -> None:
        """Keep what is needed of one event."""
        category = event.cat.lower() if isinstance(event.cat, str) else ""
        if category:
            self.categories[category] += 1
        role = _ROLES.get(category)
        if role is None and category.endswith(("runtime", "driver")):  # cuda_, hip_, xpu_ and older spellings
            role = "call"
        if role is None:
            return
        if event.ph != "X":
            if role in _GPU_ROLES and event.ph in ("B", "b"):
                self.quarantined["begin and end in two events, which Kineto never writes"] += 1
            return
        start_ns, duration_ns = _time_ns(event.ts), _time_ns(event.dur)
        if role in _GPU_ROLES:
            self._add_op(event, role, start_ns, duration_ns)
        elif start_ns is None or duration_ns is None or duration_ns < 0:
            return
        elif role == "call":
            self._add_call(event, start_ns, duration_ns)
        elif role == "cpu_op":
            self.cpu_ops.add(self._thread(event.tid), start_ns, start_ns + duration_ns, self._cost(event))
        elif role == "annotation":
            thread = self._thread(event.tid)
            self.annotations.append(Annotation(str(event.name), thread, start_ns, start_ns + duration_ns))
        elif role == "gpu_annotation":
            lane = (_last_number(event.pid), _last_number(event.tid))
            self.gpu_annotations.append(Annotation(str(event.name), lane, start_ns, start_ns + duration_ns))
        else:
            self._add_sync_record(event)

    def _add_op(self, event: Event, role: OpClass, start_ns: int | None, duration_ns: int | None) -> None:
        args = _decode_args(event)
        device = _last_number(event.pid if args.device is None else args.device)
        stream = _last_number(event.tid if args.stream is None else args.stream)
        if start_ns is None or duration_ns is None:
            self.quarantined["no readable start or duration"] += 1
        elif start_ns == 0 and duration_ns == 0:
            self.quarantined["start and duration 0: the profiler could not time it"] += 1
        elif duration_ns < 0:
            self.quarantined["negative duration"] += 1
        elif device is None or stream is None or not -(2**31) <= device < 2**31:
            self.quarantined["no readable device or stream"] += 1
        else:
            n_bytes = whole(args.bytes)
            n_bytes = n_bytes if n_bytes is not None and n_bytes >= 0 else None
            shape = (str(event.name), role, _triple(args.grid), _triple(args.block), n_bytes)
            index = self.shapes.setdefault(shape, len(self.shapes))
            correlation = whole(args.correlation) or -1  # CUPTI and roctracer count from 1
            self.ops.add(index, device, stream, start_ns, duration_ns, correlation)

    def _add_call(self, event: Event, start_ns: int, duration_ns: int) -> None:
        correlation = whole(_decode_args(event).correlation)
        if correlation:
            name = self.call_names.setdefault(str(event.name), len(self.call_names))
            self.calls.add(name, correlation, self._thread(event.tid), start_ns, duration_ns)

    def _add_sync_record(self, event: Event) -> None:
        args = _decode_args(event)
        fields = (
            args.correlation,
            args.device,
            args.stream,
            args.wait_on_stream,
            args.wait_on_cuda_event_record_corr_id,
        )
        numbers = [-1 if (number := whole(value)) is None else number for value in fields]
        self.sync_records.append(SyncRecord(str(args.cuda_sync_kind or event.name).lower(), *numbers))

    def _cost(self, event: Event) -> int:
        name = event.name
        if not isinstance(name, str) or not has_formula(name):
            return 0
        try:
            args = _op_args.decode(event.args)
            key = (name, bytes(args.dims), bytes(args.types), bytes(args.values))
            if key not in self._cost_of:
                dims, types, values = (msgspec.json.decode(text) if text else None for text in key[1:])
                self.costs.append(op_cost(name, dims, types, values))
                self._cost_of[key] = len(self.costs) - 1
        except (*SYNTAX_ERRORS, RecursionError):
            return 0
        return self._cost_of[key]

    def _thread(self, tid: Any) -> int:
        number = _last_number(tid)
        return number if number is not None else self._threads.setdefault(str(tid), -1 - len(self._threads))


def _decode_args(event: Event) -> _Args:
    try:
        return _args.decode(event.args)
    except (*SYNTAX_ERRORS, RecursionError):
        pass  # skipped until now, so not yet repaired
    try:
        return _args.decode(repair(bytes(event.args), Counter()))
    except (*SYNTAX_ERRORS, RecursionError):
        return _Args()


def _time_ns(raw: msgspec.Raw) -> int | None:
    """Exact nanoseconds; None if it is no number, or so far off that sums of two would overflow."""
    time_ns = to_ns(str(memoryview(raw), "ascii", "replace").strip('"'))
    return time_ns if time_ns is not None and time_ns in _TIMES_NS else None


def whole(value: Any) -> int | None:
    """A value as a 64-bit integer: a number, or text that is one; unsigned 64-bit ids wrap. Else None."""
    if (isinstance(value, str) and _NUMBER.fullmatch(value)) or (
        isinstance(value, float) and value.is_integer()
    ):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**64:
        return None
    return value if value < 2**63 else value - 2**64


def _last_number(value: Any) -> int | None:
    """``7``, ``"7"`` or ``"stream 7"``."""
    if isinstance(value, str) and (found := _NUMBER.findall(value)):
        value = found[-1]
    return whole(value)


def _triple(value: Any) -> tuple[int, int, int] | None:
    if isinstance(value, list) and len(value) == 3 and all(type(v) is int and 0 <= v < 2**32 for v in value):
        return (value[0], value[1], value[2])
    return None
