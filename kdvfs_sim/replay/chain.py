"""One stream of a program as a chain, with a verdict on whether its times simply add."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kdvfs_sim.core.chain import Chain
from kdvfs_sim.core.errors import InputError
from kdvfs_sim.replay.simulate import replay

if TYPE_CHECKING:
    from kdvfs_sim.core.costs import CostTable
    from kdvfs_sim.replay.program import Int64s, Program


def chain_of(program: Program, costs: CostTable | None, stream: tuple[int, int] | None) -> Chain:
    """See Program.chain."""
    if stream is None:
        if len(program.streams) > 1:
            known = ", ".join(f"{d}/{s}" for d, s in program.streams)
            raise InputError(f"the trace has several streams; name one as device/stream: {known}")
        stream = program.streams[0]
    ops = program.ops_of_stream[program.stream_index(*stream)]
    lag = _gaps(ops, program.recorded_start_ns, program.recorded_start_ns + program.duration_ns)
    reason = _why_not_additive(program, costs, lag)
    lag = np.maximum(lag, 0)
    follows = program.after[ops] == program.previous[ops]
    min_lag = np.where(follows, np.minimum(program.after_lag_ns[ops], lag), 0)
    min_lag[0] = 0
    passes = program.passes[ops]
    return Chain(
        kind=program.kind[ops],
        duration_ns=program.duration_ns[ops],
        lag_ns=lag,
        min_lag_ns=min_lag if reason else lag,
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


def _why_not_additive(program: Program, costs: CostTable | None, recorded: Int64s) -> str:
    """A gap is the longest of several waits. If all durations at their least and all at their most
    leave every gap as recorded, the same wait binds at both ends and so, times being sums and maxima
    of durations, everywhere between."""
    if len(program.streams) > 1:
        return "operations of other streams may bind"
    if (recorded < 0).any():
        return "operations of the stream overlap"
    if not (program.launch >= 0).any():
        return ""
    if costs is None:
        return "not known without a cost table: launches may bind at other clocks"
    ratio = np.where(np.isfinite(costs.ratio) & costs.requestable, costs.ratio, np.nan)
    ratio = np.concatenate([ratio, np.ones((costs.n_kinds, 1))], axis=1)[program.kind]
    ops = program.ops_of_stream[0]
    for extreme, what in ((np.nanmin(ratio, axis=1), "fastest"), (np.nanmax(ratio, axis=1), "slowest")):
        scaled = replace(program, duration_ns=np.rint(program.duration_ns * extreme).astype(np.int64))
        timeline = replay(scaled).timeline
        changed = np.flatnonzero(_gaps(ops, timeline.start_ns, timeline.end_ns) != recorded)
        if changed.size:
            return (
                f"at the {what} clocks {changed.size} of {ops.size} gaps are not as recorded "
                f"(the first before launch {changed[0]}): the host binds"
            )
    return ""
