"""A program as Python lists with the links followed forwards: what the replay walks along.

Indexing a list is several times faster than indexing an array; this is built once per program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from kdvfs_sim.replay.program import Program


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostLinks:
    """Columns of Host, and the launches of each thread in order."""

    thread: list[int]
    is_launch: list[bool]
    start_ns: list[int]
    length_ns: list[int]
    prev_any: list[int]
    gap_ns: list[int]
    prev_own: list[int]
    awaits: list[int]
    await_lag_ns: list[int]
    launches_of_thread: list[list[int]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Links:
    """Columns of Program and, for each operation:

    ``next``: the one after it on its stream (-1: none). ``on_end``: those whose stream or wait
    dependency it is. ``early``: its ``next`` may start while it runs. ``waits``: (operation, lag)
    pairs. ``alone``: the tuple of its kind. ``in_launch_order``: nothing before it on its stream was
    launched later. ``ops_of_launch``: by host action.
    """

    kind: list[int]
    alone: list[tuple[int]]
    device: list[int]
    duration_ns: list[int]
    previous: list[int]
    next: list[int]
    early: list[bool]
    after: list[int]
    after_lag_ns: list[int]
    overlap_ns: list[int]
    launch: list[int]
    launch_lag_ns: list[int]
    not_before_ns: list[int]
    waits: dict[int, list[tuple[int, int]]]
    on_end: list[tuple[int, ...]]
    in_launch_order: list[bool]
    first: list[int]
    ops_of_launch: dict[int, list[int]]
    host: HostLinks

    @classmethod
    def of(cls, program: Program) -> Links:
        n = program.n_ops
        later = np.full(n, -1, dtype=np.int64)
        has_previous = np.flatnonzero(program.previous >= 0)
        later[program.previous[has_previous]] = has_previous
        on_end: list[tuple[int, ...]] = [()] * n
        for op in np.flatnonzero(program.after >= 0).tolist():
            on_end[program.after[op]] += (op,)
        waits: dict[int, list[tuple[int, int]]] = {}
        columns = (program.wait_op, program.wait_on, program.wait_lag_ns)
        for op, on, lag in zip(*(c.tolist() for c in columns), strict=True):
            waits.setdefault(op, []).append((on, lag))
            on_end[on] += (op,)
        ops_of_launch: dict[int, list[int]] = {}
        for op in np.flatnonzero(program.launch >= 0).tolist():
            ops_of_launch.setdefault(int(program.launch[op]), []).append(op)
        in_order = np.ones(n, dtype=bool)
        for ops in program.ops_of_stream:
            in_order[ops] = program.launch[ops] >= np.maximum.accumulate(program.launch[ops])
        kind = program.kind.tolist()
        alone = {k: (k,) for k in set(kind)}
        host = program.host
        return cls(
            kind=kind,
            alone=[alone[k] for k in kind],
            device=program.device.tolist(),
            duration_ns=program.duration_ns.tolist(),
            previous=program.previous.tolist(),
            next=later.tolist(),
            early=((later >= 0) & (program.after[later] != np.arange(n))).tolist(),
            after=program.after.tolist(),
            after_lag_ns=program.after_lag_ns.tolist(),
            overlap_ns=program.overlap_ns.tolist(),
            launch=program.launch.tolist(),
            launch_lag_ns=program.launch_lag_ns.tolist(),
            not_before_ns=program.not_before_ns.tolist(),
            waits=waits,
            on_end=on_end,
            in_launch_order=in_order.tolist(),
            first=np.flatnonzero(program.previous < 0).tolist(),
            ops_of_launch=ops_of_launch,
            host=HostLinks(
                thread=host.thread.tolist(),
                is_launch=host.is_launch.tolist(),
                start_ns=host.start_ns.tolist(),
                length_ns=host.length_ns.tolist(),
                prev_any=host.prev_any.tolist(),
                gap_ns=host.gap_ns.tolist(),
                prev_own=host.prev_own.tolist(),
                awaits=host.awaits.tolist(),
                await_lag_ns=host.await_lag_ns.tolist(),
                launches_of_thread=[
                    np.flatnonzero(host.is_launch & (host.thread == t)).tolist()
                    for t in range(len(program.threads))
                ],
            ),
        )
