"""Replay a program under a schedule: the judge of every answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from kdvfs_sim.core.checks import one_of
from kdvfs_sim.core.clocks import AUTO_CLOCKS, Clocks
from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.core.errors import InputError
from kdvfs_sim.core.governor import DynamicGovernor
from kdvfs_sim.core.problem import Metrics
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.core.switching import FREE, Boundary, SwitchDraws, SwitchProtocol, SwitchTable
from kdvfs_sim.replay.engine import Carry, Engine
from kdvfs_sim.replay.plan import plan_requests
from kdvfs_sim.replay.program import Program
from kdvfs_sim.replay.states import States
from kdvfs_sim.replay.switcher import DeviceCarry
from kdvfs_sim.replay.timeline import Timeline, build_timeline

MAX_ROUNDS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplayResult:
    """``n_events``: SimPy events of the iteration shown. ``n_rounds``: iterations replayed to find what
    each hands to the next (periodic boundary; else 1)."""

    timeline: Timeline
    metrics: Metrics
    n_events: int
    n_rounds: int


def replay(
    program: Program,
    *,
    costs: CostTable | None = None,
    schedule: Schedule | None = None,
    protocol: SwitchProtocol = FREE,
    switching: SwitchTable | None = None,
    boundary: Boundary = "periodic",
    start: Clocks | None = None,
    governor: DynamicGovernor | None = None,
    draws: SwitchDraws | None = None,
) -> ReplayResult:
    """Replay ``program`` (docs/explanation/replay.md) and measure it.

    ``costs`` None: only the recorded clocks, exact times, no energy. ``start``: the clocks in force at the
    beginning, AUTO unless given (the recorded clocks without ``costs``); a periodic schedule starts
    from its own last request instead. ``governor`` None is the steady one. ``draws``: the luck of each
    request; with a periodic boundary that of every iteration.

    Raises ScheduleError for a schedule that does not fit the program, UnsupportedClocksError for clocks that
    the costs do not list, InputError for missing or misshapen costs and for a duration met that is unknown.
    """
    one_of("boundary", boundary, Boundary)
    plan = plan_requests(program, schedule, costs, switching, protocol, draws)
    first_row = _start_row(program, costs, start)
    if costs is None and governor is not None:
        raise InputError("the dynamic governor needs a cost table")
    states = States(costs, program.kinds, program.recorded_clocks)
    periodic = boundary == "periodic"
    if periodic and governor is not None:
        governor = replace(governor, budget=None)  # one iteration of many: nothing has rested
    carry = Carry(
        tuple(
            DeviceCarry(*(2 * (requests[-1].row if requests and periodic else first_row,)))
            for requests in plan.requests
        )
    )
    settled, n_rounds = False, 0
    while not settled and n_rounds < MAX_ROUNDS:
        n_rounds += 1
        requests = [plan.real(i, device.requested) for i, device in enumerate(carry.devices)]
        engine = Engine(program, states, protocol, switching, requests, carry, governor)
        engine.run()
        before, carry = carry, engine.carry()
        settled = not periodic or carry == before
    timeline = build_timeline(program, states, engine.devices, engine.start_ns, engine.end_ns)
    flags = list(program.flags)
    if not settled:
        flags.append("periodic_not_settled")
    if any(device.switcher.n_dropped for device in engine.devices):
        flags.append("requests_dropped")
    if timeline.overlaps:
        flags.append("overlap_energy_is_a_bound")
    changes = [change for d in timeline.intervals_of for change, _ in d.changes]
    reason = "no cost table: power is not known" if costs is None else timeline.unknown_power()
    return ReplayResult(
        timeline=timeline,
        metrics=Metrics(
            time_s=timeline.time_ns / 1e9,  # nearest: a budget in seconds is met by as many nanoseconds
            energy_j=None if reason else timeline.energy_j,
            n_switches=len(changes),
            switching_s=sum(c.lands_ns - c.issued_ns for c in changes) * 1e-9,
            energy_reason=reason,
            flags=tuple(flags),
        ),
        n_events=engine.n_events,
        n_rounds=n_rounds,
    )


def _start_row(program: Program, costs: CostTable | None, start: Clocks | None) -> int:
    if costs is not None:
        return costs.index(AUTO_CLOCKS if start is None else start)
    if start not in (None, program.recorded_clocks):
        raise InputError(f"replay at {start} needs a cost table; without one only recorded clocks are exact")
    return 0
