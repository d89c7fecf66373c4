"""PyTorch Kineto recordings: Chrome trace JSON written by ``torch.profiler``, all generations since 2020."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from kdvfs_sim.core.errors import TraceFormatError
from kdvfs_sim.core.kinds import Category, KernelKind
from kdvfs_sim.trace.annotations import Marks, innermost_marked, iteration_values, pass_values, spans
from kdvfs_sim.trace.assemble import assemble
from kdvfs_sim.trace.categories import category_of
from kdvfs_sim.trace.chrome import SYNTAX_ERRORS, ChromeTrace, is_chrome_trace
from kdvfs_sim.trace.intervals import Int64s, innermost
from kdvfs_sim.trace.kineto_events import KinetoEvents, whole
from kdvfs_sim.trace.kineto_host import Calls, GpuOps, host_side
from kdvfs_sim.trace.table import Trace

_UNIX_2001_NS: Final = 10**18  # later than any time since boot, earlier than any recording


class KinetoReader:
    """Reads PyTorch Kineto JSON: plain or gzip, an object with ``traceEvents`` or a bare array of events.

    A TraceReader; raises TraceFormatError as described there.
    """

    format_name = "kineto"

    def can_read(self, path: Path, /) -> bool:
        return is_chrome_trace(path)

    def read(self, path: Path, /) -> Trace:
        file = ChromeTrace(path)
        events = KinetoEvents()
        for event in file:
            events.add(event)
        if not len(events.ops):
            raise _no_gpu_work(str(path), events)
        return _Recording(file, events).trace()


class _Recording:
    """Joins the events of one recording: operations to calls, calls to annotations and operators."""

    def __init__(self, file: ChromeTrace, events: KinetoEvents) -> None:
        self.file = file
        self.events = events
        self.names = [name for name, *_ in events.shapes]
        self.categories: list[Category] = [
            category_of(name) if role == "kernel" else "copy" for name, role, *_ in events.shapes
        ]
        self.start_ns = events.ops["start_ns"]
        self.end_ns = self.start_ns + events.ops["duration_ns"]
        self.shape = events.ops["shape"]
        call_names = list(events.call_names)
        self.calls = Calls(
            name=[call_names[index] for index in events.calls["name"].tolist()],
            correlation=events.calls["correlation"],
            thread=events.calls["thread"],
            start_ns=events.calls["start_ns"],
            duration_ns=events.calls["duration_ns"],
        )
        self.side = host_side(
            self.calls,
            GpuOps(
                device=events.ops["device"],
                stream=events.ops["stream"],
                start_ns=self.start_ns,
                end_ns=self.end_ns,
                correlation=events.ops["correlation"],
                name=[self.names[shape] for shape in self.shape.tolist()],
            ),
            events.sync_records,
        )
        self.launched = self._launched()
        self.not_launched = self._not_launched()

    def trace(self) -> Trace:
        events, side, file = self.events, self.side, self.file
        n_left_out = sum(events.quarantined.values())
        quarantined = dict(events.quarantined)
        if side.n_lost:
            quarantined["launched, but the recording holds no operation of it"] = side.n_lost
        if side.n_impossible_waits:
            file.repairs["event waits dropped because the times contradict them"] = side.n_impossible_waits
        kind, kinds = self._kinds()
        devices = set(events.ops["device"].tolist())
        lanes = set(zip(events.ops["device"].tolist(), events.ops["stream"].tolist(), strict=True))
        return assemble(
            source=str(file.path),
            format=KinetoReader.format_name,
            kinds=kinds,
            ops={
                "kind": kind,
                "device": events.ops["device"],
                "stream": events.ops["stream"],
                "start_ns": self.start_ns,
                "duration_ns": events.ops["duration_ns"],
                "host": [row if row >= 0 else None for row in side.op_host.tolist()],
                "pass": self._marked(pass_values([*events.annotations, *events.gpu_annotations])),
                "iteration": self._marked(iteration_values([*events.annotations, *events.gpu_annotations])),
            },
            host=side.host,
            waits=side.waits,
            ranges=self._ranges(),
            zero_unix_ns=_zero_unix_ns(file, int(self.start_ns.min())),
            device_names=_device_names(file, devices),
            complete=not n_left_out and not side.n_lost,
            cross_stream_unknown=not events.sync_records and len(lanes) > len(devices),
            repairs=dict(file.repairs),
            quarantined=quarantined,
        )

    def _launched(self) -> Marks:
        """Operations with a launch record, by their launches."""
        rows = np.flatnonzero(self.side.op_host >= 0)
        thread = self.side.host["thread"]
        lanes = [thread[row] for row in self.side.op_host[rows].tolist()]
        return Marks(rows, self.side.launched_ns[rows], lanes)

    def _not_launched(self) -> Marks:
        """Operations without one, by themselves."""
        rows = np.flatnonzero(self.side.op_host < 0)
        device, stream = self.events.ops["device"][rows], self.events.ops["stream"][rows]
        return Marks(rows, self.start_ns[rows], list(zip(device.tolist(), stream.tolist(), strict=True)))

    def _marked(self, values: dict[str, int]) -> Int64s:
        column = np.full(self.start_ns.shape, -1, dtype=np.int64)
        column[self.launched.row] = innermost_marked(self.events.annotations, values, self.launched)
        column[self.not_launched.row] = innermost_marked(
            self.events.gpu_annotations, values, self.not_launched
        )
        return column

    def _ranges(self) -> dict[str, list[Any]]:
        if self.launched.row.size:
            return spans(self.events.annotations, self.launched, self.start_ns, self.end_ns)
        return spans(self.events.gpu_annotations, self.not_launched, self.start_ns, self.end_ns)

    def _kinds(self) -> tuple[Int64s, list[KernelKind]]:
        """Kinds by shape and, where the recording tells, by cost: one kernel name and grid with different
        FLOPs is several kinds."""
        costs = self._costs()
        key = np.stack([self.shape, costs], axis=1)
        keys, kind = np.unique(key, axis=0, return_inverse=True)
        shapes = list(self.events.shapes)
        kinds = []
        for shape, cost_index in keys.tolist():
            name, role, grid, block, n_bytes = shapes[shape]
            cost = self.events.costs[cost_index]
            kinds.append(
                KernelKind(
                    name=name,
                    op_class=role,
                    grid=grid,
                    block=block,
                    category=self.categories[shape],
                    flops=cost.flops if cost else None,
                    bytes=cost.bytes if cost else n_bytes and float(n_bytes),
                )
            )
        return kind.reshape(-1), kinds

    def _costs(self) -> Int64s:
        """For each operation the index of its cost: that of the framework operator inside which it was
        launched, if it is the kernel that does the operator's work."""
        costs = np.zeros(self.start_ns.shape, dtype=np.int64)
        cpu_ops = self.events.cpu_ops
        roles = [role for _, role, *_ in self.events.shapes]
        threads = np.asarray(self.launched.lane, dtype=np.int64)
        for thread in np.unique(threads).tolist():
            on_thread = np.flatnonzero(cpu_ops["thread"] == thread)
            cost_of = np.append(cpu_ops["cost"][on_thread], 0)  # the last is for -1: inside no operator
            mine = threads == thread
            found = innermost(
                cpu_ops["start_ns"][on_thread], cpu_ops["end_ns"][on_thread], self.launched.moment_ns[mine]
            )
            launched_in: dict[int, list[int]] = {}
            for row, cpu_op in zip(self.launched.row[mine].tolist(), found.tolist(), strict=True):
                if cost_of[cpu_op] and roles[self.shape[row]] == "kernel":
                    launched_in.setdefault(cpu_op, []).append(row)
            for cpu_op, rows in launched_in.items():
                cost = self.events.costs[cost_of[cpu_op]]
                if cost is not None:
                    shapes = self.shape[rows].tolist()
                    kernels = [
                        (r, self.names[s], self.categories[s]) for r, s in zip(rows, shapes, strict=True)
                    ]
                    costs[cost.kernels(kernels)] = cost_of[cpu_op]
        return costs


def _no_gpu_work(source: str, events: KinetoEvents) -> TraceFormatError:
    found = ", ".join(f"{' '.join(name.split())[:40]} {n}" for name, n in events.categories.most_common(8))
    if events.quarantined:
        cause = "; ".join(f"{n} left out: {reason}" for reason, n in events.quarantined.items())
    elif len(events.calls):
        cause = "it has host calls but no kernels: synchronize before the profile ends, after a warm-up step"
    else:
        cause = "was it recorded with ProfilerActivity.CUDA, on a machine with a GPU?"
    return TraceFormatError(
        source, f"no GPU work in this Kineto recording (events: {found or 'none'}); {cause}"
    )


def _zero_unix_ns(file: ChromeTrace, first_ns: int) -> int | None:
    """Unix time of the recording's 0: 0 where times are epoch times, else ``baseTimeNanoseconds``."""
    if first_ns >= _UNIX_2001_NS:
        return 0
    base_ns = whole(_value(file, "baseTimeNanoseconds"))
    return base_ns if base_ns is not None and 0 < base_ns < 2**62 else None


def _device_names(file: ChromeTrace, devices: set[int]) -> dict[int, str]:
    """GPU names by recorded device number. AMD records may count devices differently from the list of GPUs;
    if that list has one name only, it holds for all."""
    listed = _value(file, "deviceProperties")
    entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    name_of = {str(entry.get("id")): str(entry.get("name") or "") for entry in entries}
    only = next(iter(name_of.values())) if len(set(name_of.values())) == 1 else ""
    return {device: name for device in sorted(devices) if (name := name_of.get(str(device), only))}


def _value(file: ChromeTrace, key: str) -> Any:
    raw = file.metadata.get(key)
    try:
        return None if raw is None else msgspec.json.decode(raw)
    except (*SYNTAX_ERRORS, RecursionError):
        return None
