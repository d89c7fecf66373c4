"""PyTorch Kineto recordings: Chrome trace JSON written by ``torch.profiler``, all generations since 2020.

What differs between generations is spelling: categories (``Kernel``, ``kernel``), links (``external id``,
``External id``), streams (``"tid": "stream 7"``), times (whole microseconds, decimals, epoch or relative to
``baseTimeNanoseconds``). Categories are matched in lower case, device and stream are taken from ``args``, and
times from the decimal text.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from kdvfs_sim.core.errors import TraceFormatError
from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.trace.annotations import (
    Annotation,
    Marks,
    innermost_marked,
    iteration_values,
    pass_values,
    spans,
)
from kdvfs_sim.trace.assemble import assemble
from kdvfs_sim.trace.categories import category_of
from kdvfs_sim.trace.chrome import ChromeTrace, Event, is_chrome_trace
from kdvfs_sim.trace.exact import to_ns
from kdvfs_sim.trace.kineto_host import Calls, GpuOps, HostSide, Int64s, SyncRecord, host_side
from kdvfs_sim.trace.table import Trace

_ROLES: Final = {
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
_GPU_OPS: Final = ("kernel", "memcpy", "memset")
_UNIX_2001_NS: Final = 10**18  # later than any time since boot, earlier than any recording
_NUMBER: Final = re.compile(r"-?\d+")


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


_args = msgspec.json.Decoder(_Args)
_NO_ARGS: Final = _Args()


class KinetoReader:
    """Reads PyTorch Kineto JSON: plain or gzip, an object with ``traceEvents`` or a bare array of events."""

    format_name = "kineto"

    def can_read(self, path: Path, /) -> bool:
        return is_chrome_trace(path)

    def read(self, path: Path, /) -> Trace:
        file = ChromeTrace(path)
        recording = _Recording(str(path))
        for event in file:
            recording.add(event)
        return recording.trace(file)


def _whole(value: Any) -> int | None:
    """A value as a 64-bit integer: a number, or text that is one; unsigned 64-bit ids wrap. Else None."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**64:
        return None
    return value if value < 2**63 else value - 2**64


def _last_number(value: Any) -> int | None:
    """``7``, ``"7"`` or ``"stream 7"``."""
    if isinstance(value, str) and (found := _NUMBER.findall(value)):
        value = found[-1]
    return _whole(value)


def _triple(value: Any) -> tuple[int, int, int] | None:
    if isinstance(value, list) and len(value) == 3 and all(type(v) is int and 0 <= v < 2**32 for v in value):
        return (value[0], value[1], value[2])
    return None


def _time_ns(raw: msgspec.Raw) -> int | None:
    return to_ns(bytes(raw).decode(errors="replace").strip('"'))


class _Recording:
    """The columns of one recording, filled event by event."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.quarantined: Counter[str] = Counter()
        self.categories: Counter[str] = Counter()
        self.shapes: dict[tuple[Any, ...], int] = {}
        self.op_shape, self.op_device, self.op_stream = array("q"), array("q"), array("q")
        self.op_start, self.op_duration, self.op_correlation = array("q"), array("q"), array("q")
        self.call_name: list[str] = []
        self.call_correlation, self.call_thread = array("q"), array("q")
        self.call_start, self.call_duration = array("q"), array("q")
        self.records: list[SyncRecord] = []
        self.annotations: list[Annotation] = []
        self.gpu_annotations: list[Annotation] = []
        self._threads: dict[str, int] = {}

    def add(self, event: Event) -> None:
        category = event.cat.lower() if isinstance(event.cat, str) else ""
        self.categories[category or "no category"] += 1
        role = _ROLES.get(category)
        if role is None and category.endswith(("runtime", "driver")):
            role = "call"
        if event.ph != "X" or not role:
            return
        start_ns, duration_ns = _time_ns(event.ts), _time_ns(event.dur)
        if role in _GPU_OPS:
            self._add_op(event, role, start_ns, duration_ns)
        elif start_ns is None or duration_ns is None:
            return
        elif role == "call":
            correlation = _whole(self._args(event).correlation)
            if correlation is not None:
                self.call_name.append(str(event.name))
                self.call_correlation.append(correlation)
                self.call_thread.append(self._thread(event.tid))
                self.call_start.append(start_ns)
                self.call_duration.append(duration_ns)
        elif role == "annotation":
            self.annotations.append(
                Annotation(str(event.name), self._thread(event.tid), start_ns, start_ns + duration_ns)
            )
        elif role == "gpu_annotation":
            lane = (_last_number(event.pid), _last_number(event.tid))
            self.gpu_annotations.append(Annotation(str(event.name), lane, start_ns, start_ns + duration_ns))
        elif role == "sync":
            self._add_record(event)

    def _args(self, event: Event) -> _Args:
        try:
            return _args.decode(event.args)
        except msgspec.DecodeError:
            return _NO_ARGS

    def _thread(self, tid: Any) -> int:
        number = _last_number(tid)
        return number if number is not None else self._threads.setdefault(str(tid), -1 - len(self._threads))

    def _add_op(self, event: Event, role: str, start_ns: int | None, duration_ns: int | None) -> None:
        args = self._args(event)
        device = _whole(args.device) if args.device is not None else _last_number(event.pid)
        stream = _whole(args.stream) if args.stream is not None else _last_number(event.tid)
        if start_ns is None or duration_ns is None:
            self.quarantined["no readable start or duration"] += 1
        elif start_ns == 0 and duration_ns == 0:
            self.quarantined["start and duration 0: the profiler could not time it"] += 1
        elif duration_ns < 0:
            self.quarantined["negative duration"] += 1
        elif device is None or stream is None or not -(2**31) <= device < 2**31:
            self.quarantined["no readable device or stream"] += 1
        else:
            shape = (str(event.name), role, _triple(args.grid), _triple(args.block), _whole(args.bytes))
            self.op_shape.append(self.shapes.setdefault(shape, len(self.shapes)))
            self.op_device.append(device)
            self.op_stream.append(stream)
            self.op_start.append(start_ns)
            self.op_duration.append(duration_ns)
            self.op_correlation.append(_whole(args.correlation) or -1)

    def _add_record(self, event: Event) -> None:
        args = self._args(event)
        self.records.append(
            SyncRecord(
                kind=str(args.cuda_sync_kind or event.name).lower(),
                correlation=_or(args.correlation),
                device=_or(args.device),
                stream=_or(args.stream),
                recorded_stream=_or(args.wait_on_stream),
                recorded_correlation=_or(args.wait_on_cuda_event_record_corr_id),
            )
        )

    def trace(self, file: ChromeTrace) -> Trace:
        if not self.op_start:
            raise self._no_gpu_work()
        start_ns, duration_ns = np.asarray(self.op_start), np.asarray(self.op_duration)
        end_ns = start_ns + duration_ns
        names = [shape[0] for shape in self.shapes]
        ops = GpuOps(
            device=np.asarray(self.op_device),
            stream=np.asarray(self.op_stream),
            start_ns=start_ns,
            end_ns=end_ns,
            correlation=np.asarray(self.op_correlation),
            to_pageable=np.asarray(["-> Pageable" in name for name in names], dtype=bool)[self.op_shape],
        )
        calls = Calls(
            name=self.call_name,
            correlation=np.asarray(self.call_correlation),
            thread=np.asarray(self.call_thread),
            start_ns=np.asarray(self.call_start),
            duration_ns=np.asarray(self.call_duration),
        )
        side = host_side(calls, ops, self.records)
        n_untimed = sum(self.quarantined.values())
        if side.n_lost:
            self.quarantined["launched, but the recording holds no operation of it"] = side.n_lost
        if side.n_impossible_waits:
            file.repairs["event waits dropped that the times contradict"] = side.n_impossible_waits
        devices = file.metadata.get("deviceProperties")
        return assemble(
            source=self.source,
            format="kineto",
            kinds=[
                KernelKind(
                    name=name,
                    op_class=op_class,
                    grid=grid,
                    block=block,
                    category=category_of(name) if op_class == "kernel" else "copy",
                    bytes=n_bytes,
                )
                for name, op_class, grid, block, n_bytes in self.shapes
            ],
            ops={
                "kind": self.op_shape,
                "device": self.op_device,
                "stream": self.op_stream,
                "start_ns": start_ns,
                "duration_ns": duration_ns,
                "host": [row if row >= 0 else None for row in side.op_host.tolist()],
                **self._passes(side),
            },
            host=side.host,
            waits=side.waits,
            ranges=self._ranges(side, start_ns, end_ns),
            zero_unix_ns=_zero_unix_ns(file, int(start_ns.min())),
            device_names=_device_names(devices, set(self.op_device)),
            complete=not n_untimed and not side.n_lost,
            cross_stream_unknown=not self.records and self._has_parallel_streams(),
            repairs=file.repairs,
            quarantined=self.quarantined,
        )

    def _marks(self, side: HostSide) -> tuple[Marks, Marks]:
        """Launched operations by their launches, the others by their own starts."""
        launched = np.flatnonzero(side.op_host >= 0)
        thread = side.host["thread"]
        others = np.flatnonzero(side.op_host < 0)
        return (
            Marks(
                launched, side.launched_ns[launched], [thread[row] for row in side.op_host[launched].tolist()]
            ),
            Marks(
                others,
                np.asarray(self.op_start)[others],
                [(self.op_device[row], self.op_stream[row]) for row in others.tolist()],
            ),
        )

    def _passes(self, side: HostSide) -> dict[str, Int64s]:
        both = [*self.annotations, *self.gpu_annotations]
        columns = {}
        for column, value in (("pass", pass_values(both)), ("iteration", iteration_values(both))):
            columns[column] = np.full(len(self.op_start), -1, dtype=np.int64)
            for annotations, marks in zip(
                (self.annotations, self.gpu_annotations), self._marks(side), strict=True
            ):
                columns[column][marks.row] = innermost_marked(annotations, value, marks)
        return columns

    def _ranges(self, side: HostSide, start_ns: Int64s, end_ns: Int64s) -> dict[str, list[Any]]:
        launched, others = self._marks(side)
        if launched.row.size:
            return spans(self.annotations, launched, start_ns, end_ns)
        return spans(self.gpu_annotations, others, start_ns, end_ns)

    def _has_parallel_streams(self) -> bool:
        lanes = set(zip(self.op_device, self.op_stream, strict=True))
        return len(lanes) > len({device for device, _ in lanes})

    def _no_gpu_work(self) -> TraceFormatError:
        seen = ", ".join(f"{name} {count}" for name, count in self.categories.most_common(8))
        if any(self.quarantined.values()):
            reasons = ", ".join(f"{count} {reason}" for reason, count in self.quarantined.items())
            cause = f"all were left out: {reasons}"
        elif self.call_name:
            cause = "the host calls are there but no kernels: end the profile after a warm-up step and synchronize first"
        else:
            cause = "was ProfilerActivity.CUDA on, and did the model run on a GPU?"
        return TraceFormatError(
            self.source, f"a Kineto recording with no GPU operation; it holds {seen or 'no events'}; {cause}"
        )


def _zero_unix_ns(file: ChromeTrace, first_ns: int) -> int | None:
    """Unix time of the recording's 0: 0 where times are epoch times, else ``baseTimeNanoseconds``."""
    if first_ns >= _UNIX_2001_NS:
        return 0
    return _whole(_value(file.metadata.get("baseTimeNanoseconds")))


def _device_names(properties: msgspec.Raw | None, devices: set[int]) -> dict[int, str]:
    """GPU names by recorded device number. Where AMD's agent number is not among the listed ids, the only name
    that the list has holds for it."""
    listed = _value(properties)
    entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    by_id = {entry.get("id"): str(entry.get("name") or "") for entry in entries}
    names = set(by_id.values())
    only = names.pop() if len(names) == 1 else ""
    return {device: name for device in sorted(devices) if (name := by_id.get(device, only))}


def _value(raw: msgspec.Raw | None) -> Any:
    return None if raw is None else msgspec.json.decode(raw)


def _or(value: Any) -> int:
    number = _whole(value)
    return -1 if number is None else number
