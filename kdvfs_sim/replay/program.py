"""A trace compiled into what it waits for: the input of the replay and of the fast evaluator."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.core.errors import InputError

if TYPE_CHECKING:
    from kdvfs_sim.core.chain import Chain
    from kdvfs_sim.core.costs import CostTable
    from kdvfs_sim.core.kinds import KernelKind
    from kdvfs_sim.replay.links import Links
    from kdvfs_sim.trace.table import Trace

Int8s = npt.NDArray[np.int8]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

LONG_AGO: Final = -(1 << 62)  # ns; earlier than any time, and far from overflow


@dataclass(frozen=True, kw_only=True, eq=False)
class Host:
    """Host actions in recorded order; all arrays have shape (n_actions,).

    Action i starts at ``max(end[prev_any] + gap_ns, end[prev_own])``, or at ``start_ns`` where
    ``prev_any`` is -1 (``prev_own`` is -1 where it says nothing more). It ends at ``start + length_ns``,
    and if it is a synchronization not before ``end of operation awaits + await_lag_ns`` (``awaits`` is
    -1 where there is nothing to wait for).
    """

    thread: Int32s  # row of Program.threads
    is_launch: Bools  # it launched at least one operation of the program
    start_ns: Int64s  # as recorded, moved by Program.host_shift_ns
    length_ns: Int64s
    prev_any: Int64s
    gap_ns: Int64s
    prev_own: Int64s
    awaits: Int64s
    await_lag_ns: Int64s

    def __len__(self) -> int:
        return int(self.start_ns.shape[0])


@dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """The operations of a trace, each with its dependencies (docs/explanation/replay.md).

    Arrays of shape (n_ops,), in trace order; an operation is known by its position here, -1 is none:

    - ``row``: row of Trace.ops; ``kind``: row of ``kinds`` and of a cost table; ``stream``: index
      into ``streams``; ``position``: launch number in its stream, what a ClockRequest calls ``launch``
    - ``duration_ns``, ``recorded_start_ns``: as recorded
    - ``previous``: the operation before it on its stream; it never starts earlier than that
    - ``after``, ``after_lag_ns``: stream dependency, end to start
    - ``overlap_ns``: it may start when ``previous`` has made this much of its recorded duration; -1: no
      such dependency
    - ``launch``, ``launch_lag_ns``: host action that launched it, start to start
    - ``last_action``: the last host action that it depends on, by itself or through other operations
    - ``not_before_ns``: recorded start of an operation with no dependency at all, else LONG_AGO
    - ``passes``: index into trace.table.PASSES, or -1

    ``wait_op``, ``wait_on``, ``wait_lag_ns`` (n_waits,): event waits, end of ``wait_on`` to start of
    ``wait_op``, sorted by ``wait_op``. ``streams``: (device, stream) as recorded. ``threads``: host
    threads as recorded. ``host_shift_ns``: how much earlier the host was moved so that no operation
    starts before its launch. ``flags``: what makes results on this program bounds or estimates.
    """

    row: Int64s
    kind: Int32s
    stream: Int32s
    position: Int64s
    duration_ns: Int64s
    recorded_start_ns: Int64s
    previous: Int64s
    after: Int64s
    after_lag_ns: Int64s
    overlap_ns: Int64s
    launch: Int64s
    launch_lag_ns: Int64s
    last_action: Int64s
    not_before_ns: Int64s
    passes: Int8s
    wait_op: Int64s
    wait_on: Int64s
    wait_lag_ns: Int64s
    host: Host
    streams: tuple[tuple[int, int], ...]
    threads: tuple[int, ...]
    kinds: tuple[KernelKind, ...]
    recorded_clocks: Clocks
    host_shift_ns: int = 0
    flags: tuple[str, ...] = ()

    @classmethod
    def from_trace(cls, trace: Trace, *, device: int | None = None) -> Program:
        """Compile ``trace``, or the operations of one ``device`` of it.

        Several devices run side by side, each with its own clocks. Raises InputError for a device
        that the trace does not have.
        """
        from kdvfs_sim.replay.dependencies import compile_trace

        return compile_trace(trace, device)

    @property
    def n_ops(self) -> int:
        return int(self.row.shape[0])

    @cached_property
    def devices(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(device for device, _ in self.streams))

    @cached_property
    def device(self) -> Int32s:
        """(n_ops,): index into ``devices``."""
        of_stream = [self.devices.index(device) for device, _ in self.streams]
        return np.asarray(of_stream, dtype=np.int32)[self.stream]

    @cached_property
    def links(self) -> Links:
        """The program as the replay walks it."""
        from kdvfs_sim.replay.links import Links

        return Links.of(self)

    @cached_property
    def edges(self) -> tuple[Int64s, Int64s, Int64s, Int64s]:
        """The program as a graph: the edges of core.precedence.Precedence."""
        from kdvfs_sim.replay.precedence import edges_of

        return edges_of(self)

    @cached_property
    def ops_of_stream(self) -> tuple[Int64s, ...]:
        """For each stream its operations in order."""
        order = np.argsort(self.stream, kind="stable")
        bounds = np.searchsorted(self.stream[order], np.arange(len(self.streams) + 1))
        return tuple(order[a:b] for a, b in itertools.pairwise(bounds))

    @cached_property
    def typical_ns(self) -> npt.NDArray[np.float64]:
        """(n_kinds,): median recorded duration; 0 for a kind without launches on these devices."""
        typical = np.zeros(len(self.kinds))
        order = np.argsort(self.kind, kind="stable")
        present, first = np.unique(self.kind[order], return_index=True)
        for kind, durations in zip(present, np.split(self.duration_ns[order], first[1:]), strict=True):
            typical[kind] = np.median(durations)
        return typical

    def stream_index(self, device: int | None, stream: int | None) -> int:
        """Index of a recorded stream; None is the only one there is. Raises InputError naming those that
        exist."""
        named = (device, stream)
        if named in self.streams:
            return self.streams.index(named)
        fits = [i for i, (d, s) in enumerate(self.streams) if device in (None, d) and stream in (None, s)]
        if len(fits) == 1:
            return fits[0]
        known = ", ".join(f"{d}/{s}" for d, s in self.streams)
        if fits:
            raise InputError(
                f"the trace has several streams; name the stream and device; device/stream: {known}"
            )
        if device is None and len(self.devices) == 1:
            device = self.devices[0]
        lacks = f"stream {stream}" if stream is not None else "streams"
        where = f" on device {device}" if device is not None else ""
        raise InputError(f"the trace has no {lacks}{where}; device/stream: {known}")

    def scaled(self, factor: npt.NDArray[np.float64], *, down: bool = False) -> Program:
        """The same with every kind's durations times ``factor`` (n_kinds,), rounded, or rounded ``down``.

        What the next operation waits for of one is a part of that one, and scaled with it. Recorded starts
        stay.
        """
        rounded = np.floor if down else np.rint
        of_op = factor[self.kind]
        overlap = rounded(self.overlap_ns * of_op[self.previous])
        return replace(
            self,
            duration_ns=rounded(self.duration_ns * of_op).astype(np.int64),
            overlap_ns=np.where(self.overlap_ns < 0, -1, overlap).astype(np.int64),
        )

    def chain(
        self,
        costs: CostTable | None = None,
        *,
        stream: tuple[int, int] | None = None,
        start: Clocks | None = None,
    ) -> Chain:
        """One stream as a chain (core.chain.Chain): the only one, or ``stream`` = (device, stream).

        Whether its times add is a question about all clocks allowed: with ``costs`` the program is
        replayed at the fastest and at the slowest of them, and is additive if every gap stays as
        recorded and none is the host's. ``start``: clocks in force at first, which may be others than those
        that may be requested. Without ``costs`` only a program without a host side is known to be additive.
        Raises InputError if the stream does not exist, or is not named where there are several.
        """
        from kdvfs_sim.replay.chain import chain_of

        return chain_of(self, costs, stream, start)
