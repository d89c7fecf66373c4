"""One stream of a program as a chain, with a verdict on whether its times simply add."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kdvfs_sim.core.chain import Chain
from kdvfs_sim.core.errors import InputError
from kdvfs_sim.replay.precedence import PrecedenceOf
from kdvfs_sim.replay.simulate import replay

if TYPE_CHECKING:
    from kdvfs_sim.core.clocks import Clocks
    from kdvfs_sim.core.costs import CostTable
    from kdvfs_sim.replay.program import Int64s, Program


def chain_of(
    program: Program, costs: CostTable | None, stream: tuple[int, int] | None, start: Clocks | None
) -> Chain:
    """See Program.chain, also for what it raises."""
    if stream is None:
        if len(program.streams) > 1:
            known = ", ".join(f"{d}/{s}" for d, s in program.streams)
            raise InputError(f"the trace has several streams; name one as device/stream: {known}")
        stream = program.streams[0]
    index = program.stream_index(*stream)
    ops = program.ops_of_stream[index]
    lag = _gaps(ops, program.recorded_start_ns, program.recorded_start_ns + program.duration_ns)
    reason, floor, exact = _why_not_additive(program, costs, lag, start)
    lag = np.maximum(lag, 0)
    follows = program.after[ops] == program.previous[ops]
    min_lag = np.where(follows, np.minimum(program.after_lag_ns[ops], lag), 0)
    min_lag[0] = 0
    # What the host's launch adds to the pause before an operation is on its way while a change is made.
    launched = program.launch[ops] >= 0
    added = lag if not reason else np.append(0, floor[:-1]) if floor is not None else np.zeros_like(lag)
    hidden = np.where(launched, np.minimum(program.launch_lag_ns[ops], added), 0)
    hidden[0] = 0
    passes = program.passes[ops]
    return Chain(
        kind=program.kind[ops],
        duration_ns=program.duration_ns[ops],
        lag_ns=lag,
        min_lag_ns=min_lag if reason else lag,
        floor_ns=floor,
        floors_exact=exact,
        precedence=PrecedenceOf(program=program, costs=costs, stream=index)
        if costs is not None and (reason or launched.any())
        else None,
        hidden_ns=hidden if (hidden > 0).any() else None,
        additive=not reason,
        reason=reason,
        passes=passes if (passes >= 0).any() else None,
        device=stream[0],
        stream=stream[1],
    )


def _gaps(ops: Int64s, start: Int64s, end: Int64s) -> Int64s:
    """Idle time before each operation of one stream; 0 before the first."""
    gaps = np.zeros(ops.size, dtype=np.int64)
    gaps[1:] = start[ops[1:]] - end[ops[:-1]]
    return gaps


def _why_not_additive(
    program: Program, costs: CostTable | None, recorded: Int64s, start: Clocks | None
) -> tuple[str, Int64s | None, bool]:
    """The reason, empty if there is none, the least times from start to start, where known, and whether they
    say all that there is to say.

    A gap is the longest of several waits. If all durations at their least and all at their most
    leave every gap as recorded, the same wait binds at both ends and so, times being sums and maxima
    of durations, everywhere between. For the same reason no operation ever starts earlier than with
    all durations at their least, nor later, without requests, than with all at their most; and a
    request that delays one operation delays those after it as well.

    Between an operation that always starts at the same time and one whose launch waits for no kernel, the
    least time is the time.
    """
    if len(program.streams) > 1:
        return "operations of other streams may bind", None, False
    if (recorded < 0).any():
        return "operations of the stream overlap", None, False
    if not (program.launch >= 0).any():
        return "", None, True
    if costs is None:
        return "not known without a cost table: launches may bind at other clocks", None, False
    chosen = costs.requestable.copy()
    if start is not None:
        chosen[costs.index(start)] = True
    ratio = np.where(np.isfinite(costs.ratio) & chosen, costs.ratio, np.nan)
    ratio = np.concatenate([ratio, np.ones((costs.n_kinds, 1))], axis=1)[program.kind]
    ops = program.ops_of_stream[0]
    reason = ""
    starts = []
    by_host = np.zeros(ops.size, dtype=np.bool_)
    for extreme, what in ((np.nanmin(ratio, axis=1), "fastest"), (np.nanmax(ratio, axis=1), "slowest")):
        scaled = replace(program, duration_ns=np.rint(program.duration_ns * extreme).astype(np.int64))
        timeline = replay(scaled).timeline
        starts.append(timeline.start_ns[ops])
        changed = np.flatnonzero(_gaps(ops, timeline.start_ns, timeline.end_ns) != recorded)
        by_host[changed] = True
        if changed.size and not reason:
            reason = (
                f"at the {what} clocks {changed.size} of {ops.size} gaps are not as recorded "
                f"(the first before launch {changed[0]}): the host binds"
            )
    waits = np.flatnonzero(recorded[1:] > program.after_lag_ns[ops[1:]]) + 1
    if waits.size and not reason:
        reason = (
            f"{waits.size} of {ops.size} launches wait for the host at all clocks (the first is launch "
            f"{waits[0]}): the host binds"
        )
    if not reason:
        return "", None, True
    earliest, latest = starts
    by_host[waits] = True
    bound = np.flatnonzero(by_host[1:]) + 1
    root = np.asarray(program.links.host.root, dtype=np.int64)[program.launch[ops[bound]]]
    told = (program.launch[ops[bound]] >= 0) & (root == -1) & (earliest[bound - 1] == latest[bound - 1])
    return reason, np.append(np.maximum(earliest[1:] - latest[:-1], 0), 0), bool(told.all())
