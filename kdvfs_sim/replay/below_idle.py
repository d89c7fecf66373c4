"""Kernels far below the idle power: what runs at once may then draw less than nothing.

Power while kernels overlap is idle + sum(power - idle). One kernel a little below idle is noise, and does no
harm; several far below it make energies below 0, of which no saving, EDP or bound says anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import numpy as np

from kdvfs_sim.core.errors import InputError
from kdvfs_sim.replay.states import ROUNDING, States

if TYPE_CHECKING:
    from kdvfs_sim.core.costs import CostTable
    from kdvfs_sim.replay.program import Program
    from kdvfs_sim.replay.timeline import Timeline

N_NAMED: Final = 3

Running = tuple[int, tuple[int, ...]]  # index of the device, kinds in order


def refuse_below_zero(program: Program, tables: Iterable[CostTable]) -> None:
    """Raises InputError if the recording, with what overlaps in it, takes less than no energy at clocks that
    may be requested: which kinds, at which clocks, and what would be right."""
    for costs in dict.fromkeys(tables):
        _refuse_at_locks(program, costs)


def _refuse_at_locks(program: Program, costs: CostTable) -> None:
    if not (costs.power_w < costs.idle_power_w).any() or not _overlap(program):
        return
    lasts = _running_ns(program)
    states = States(costs, program.kinds, program.recorded_clocks)
    for request in np.flatnonzero(costs.requestable).tolist():
        spent = [(ns, kinds, states.resolve(kinds, request)) for (_, kinds), ns in lasts.items()]
        watts = [states.power_w(kinds, row) for _, kinds, row in spent]
        parts = [ns * w for (ns, _, _), w in zip(spent, watts, strict=True)]
        if sum(parts) < -ROUNDING * sum(map(abs, parts)):
            below = [(ns, kinds, row) for (ns, kinds, row), w in zip(spent, watts, strict=True) if w < 0]
            raise InputError(_words(program, costs, below))


def refuse_energy_below_zero(timeline: Timeline, costs: CostTable) -> None:
    """The same of a replay that took less than no energy."""
    if not timeline.energy_j < 0:  # or not known
        return
    states, program = timeline.states, timeline.program
    met: list[tuple[int, tuple[int, ...], int]] = []
    for d in timeline.intervals_of:
        lasts_ns = d.end_ns - d.start_ns
        power_w = states.power_w[d.state]
        bounds = np.searchsorted(d.member_interval, np.arange(d.state.size + 1))
        for i in np.flatnonzero(power_w < 0).tolist():
            ops = d.member_op[bounds[i] : bounds[i + 1]]
            kinds = tuple(sorted(program.kind[ops].tolist()))
            met.append((int(lasts_ns[i]), kinds, int(states.effective[d.state[i]])))
    raise InputError(_words(program, costs, met))


def _overlap(program: Program) -> bool:
    """Did two operations of a device ever run at once when recorded?"""
    start_ns, end_ns = program.recorded_start_ns, program.recorded_start_ns + program.duration_ns
    for device in range(len(program.devices)):
        mine = np.flatnonzero(program.device == device)
        mine = mine[np.argsort(start_ns[mine], kind="stable")]
        if (start_ns[mine][1:] < np.maximum.accumulate(end_ns[mine])[:-1]).any():
            return True
    return False


def _running_ns(program: Program) -> Counter[Running]:
    """For how long which kinds ran at once when recorded, on each device."""
    start_ns, end_ns = program.recorded_start_ns, program.recorded_start_ns + program.duration_ns
    whole_ns = int(end_ns.max())
    lasts: Counter[Running] = Counter()
    for device in range(len(program.devices)):
        mine = np.flatnonzero((program.device == device) & (program.duration_ns > 0))
        times = np.concatenate([start_ns[mine], end_ns[mine]])
        kinds = np.concatenate([program.kind[mine]] * 2)
        steps = np.repeat([1, -1], mine.size)
        order = np.lexsort((steps, times))
        running: Counter[int] = Counter()
        now = 0
        for at, kind, step in zip(
            times[order].tolist(), kinds[order].tolist(), steps[order].tolist(), strict=True
        ):
            if at > now:
                lasts[device, tuple(sorted(running.elements()))] += at - now
                now = at
            running[kind] += step
        lasts[device, ()] += whole_ns - now
    return lasts


def _words(program: Program, costs: CostTable, met: Iterable[tuple[int, tuple[int, ...], int]]) -> str:
    """``met``: nanoseconds, the kinds that ran and at which row, where power was below 0."""
    lacking: dict[tuple[int, int], float] = {}  # row and kind: what they fall short of idle by, in W ns
    for ns, kinds, row in met:
        for kind in kinds:
            short_w = float(costs.idle_power_w[row] - costs.power_w[kind, row])
            if short_w > 0:
                lacking[row, kind] = lacking.get((row, kind), 0.0) + short_w * ns
    worst_first = sorted(lacking, key=lambda each: lacking[each], reverse=True)
    row = worst_first[0][0]
    worst = [kind for at, kind in worst_first if at == row]
    named = ", ".join(
        f"{program.kinds[kind].name!r} draws {costs.power_w[kind, row]:.4g} W" for kind in worst[:N_NAMED]
    )
    more = f" and {len(worst) - N_NAMED} more" if len(worst) > N_NAMED else ""
    idle_w = f"{costs.idle_power_w[row]:.4g} W"
    return (
        f"{costs.source or 'cost table'}: at {costs.clocks[row]} the idle device draws {idle_w}, "
        f"{named}{more}: what runs at once in this recording would take less than no energy; a kernel's "
        "power is that of the "
        f"whole device, {idle_w} or more there is right"
    )
