"""A program as Python lists with the links followed forwards: what the replay walks along.

Indexing a list is several times faster than indexing an array; this is built once per program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kdvfs_sim.replay.program import LONG_AGO

if TYPE_CHECKING:
    from kdvfs_sim.replay.program import Host, Program

NO_ROOT: Final = -2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostLinks:
    """Columns of Host, and roots.

    As long as no request delays a thread, action i starts ``root_lag_ns`` after the end of ``root``: of
    the last synchronization before it, or of nothing (-1: at ``root_lag_ns``). ``root`` is NO_ROOT where
    that is not certain.
    """

    thread: list[int]
    start_ns: list[int]
    length_ns: list[int]
    prev_any: list[int]
    gap_ns: list[int]
    prev_own: list[int]
    awaits: list[int]
    await_lag_ns: list[int]
    is_launch: list[bool]
    root: list[int]
    root_lag_ns: list[int]

    @classmethod
    def of(cls, program: Program) -> HostLinks:
        host = program.host
        root, root_lag_ns = _roots(host)
        return cls(
            thread=host.thread.tolist(),
            is_launch=host.is_launch.tolist(),
            start_ns=host.start_ns.tolist(),
            length_ns=host.length_ns.tolist(),
            prev_any=host.prev_any.tolist(),
            gap_ns=host.gap_ns.tolist(),
            prev_own=host.prev_own.tolist(),
            awaits=host.awaits.tolist(),
            await_lag_ns=host.await_lag_ns.tolist(),
            root=root,
            root_lag_ns=root_lag_ns,
        )


def _roots(host: Host) -> tuple[list[int], list[int]]:
    root, lag_ns = [NO_ROOT] * len(host), [0] * len(host)
    columns = (host.prev_any, host.gap_ns, host.prev_own, host.start_ns)
    end_of: list[tuple[int, int]] = []  # of each action: root and lag of its end
    awaits, length_ns = host.awaits.tolist(), host.length_ns.tolist()
    for i, (before, gap, own, start) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        anchor, lag = (-1, start) if before < 0 else (end_of[before][0], end_of[before][1] + gap)
        if own < 0 or (end_of[own][0] == anchor and end_of[own][1] <= lag):
            root[i], lag_ns[i] = anchor, lag
            end_of.append((anchor, lag + length_ns[i]) if awaits[i] < 0 else (i, 0))
        else:
            end_of.append((i, 0))
    return root, lag_ns


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Links:
    """Columns of Program and, for each operation:

    ``needs``: (special, after, lag, root, lag). Special is what waits for more, or for something else, than
    its predecessor's end and its launch; root is that of its launch (HostLinks), with the lag to its start.
    ``next``: the one after it on its stream (-1: none). ``follower``: that, if it waits for this one's end.
    ``on_end``: others that do. ``early``: its ``next`` may start while it runs. ``waits``: (operation, lag)
    pairs. ``alone``: the tuple of its kind. ``ops_of_launch``: by host action.
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
    needs: list[tuple[bool, int, int, int, int]]
    waits: dict[int, list[tuple[int, int]]]
    follower: list[int]
    on_end: dict[int, list[int]]
    ops_of_stream: list[list[int]]
    last_action: list[int]
    first: list[int]
    ops_of_launch: dict[int, list[int]]
    host: HostLinks

    @classmethod
    def of(cls, program: Program) -> Links:
        n = program.n_ops
        later = np.full(n, -1, dtype=np.int64)
        has_previous = np.flatnonzero(program.previous >= 0)
        later[program.previous[has_previous]] = has_previous
        follows = has_previous[program.after[has_previous] == program.previous[has_previous]]
        follower = np.full(n, -1, dtype=np.int64)
        follower[program.previous[follows]] = follows
        on_end: dict[int, list[int]] = {}
        for op in np.flatnonzero((program.after >= 0) & (program.after != program.previous)).tolist():
            on_end.setdefault(int(program.after[op]), []).append(op)
        waits: dict[int, list[tuple[int, int]]] = {}
        columns = (program.wait_op, program.wait_on, program.wait_lag_ns)
        for op, on, lag in zip(*(c.tolist() for c in columns), strict=True):
            waits.setdefault(op, []).append((on, lag))
            on_end.setdefault(on, []).append(op)
        ops_of_launch: dict[int, list[int]] = {}
        for op in np.flatnonzero(program.launch >= 0).tolist():
            ops_of_launch.setdefault(int(program.launch[op]), []).append(op)
        special = (program.after < 0) | (program.after != program.previous) | (program.overlap_ns >= 0)
        special[program.wait_op] = True
        host = HostLinks.of(program)
        launched = program.launch >= 0
        root, root_lag = np.full(n, -1), np.full(n, LONG_AGO)
        root[launched] = np.asarray(host.root, dtype=np.int64)[program.launch[launched]]
        root_lag[launched] = np.asarray(host.root_lag_ns, dtype=np.int64)[program.launch[launched]]
        kind = program.kind.tolist()
        alone = {k: (k,) for k in set(kind)}
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
            needs=list(
                zip(
                    special.tolist(),
                    program.after.tolist(),
                    program.after_lag_ns.tolist(),
                    root.tolist(),
                    (root_lag + program.launch_lag_ns).tolist(),
                    strict=True,
                )
            ),
            waits=waits,
            follower=follower.tolist(),
            on_end=on_end,
            ops_of_stream=[ops.tolist() for ops in program.ops_of_stream],
            last_action=program.last_action.tolist(),
            first=np.flatnonzero(program.previous < 0).tolist(),
            ops_of_launch=ops_of_launch,
            host=host,
        )
