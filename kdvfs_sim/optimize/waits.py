"""Bounds where gaps may be longer than a chain says: a call holds up the host, or a gap is not known.

Take the time that the device waits longer than it must out of a schedule. What is left runs the same
launches under the same clocks, but changes may be quicker than they can be, by no more than was waited
in all; and who waits pays for it. So of all schedules that cost less than free switching and some excess,

- none waits longer than the excess buys of the cheapest idling, and
- none runs so much of a launch under clocks that are wrong for it that this alone costs the excess.

A launch under two clocks costs what its parts do. So a change that lands inside a launch costs no less than
landing at its beginning and at its end in proportion, and one of the two is no dearer; the next change is
then issued at a boundary, later or earlier by a part of a launch. All this is what ``lookahead`` may do if
changes are that much quicker. Its least cost, or free switching and the excess if that is less, is a bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kdvfs_sim.core.problem import Problem
from kdvfs_sim.core.switching import LOOKAHEAD, SwitchTable
from kdvfs_sim.optimize.additive import Cells, Floats, cells_of
from kdvfs_sim.optimize.blocks import LONG
from kdvfs_sim.optimize.changes import model_of
from kdvfs_sim.optimize.frontier import ROUNDING, Frontier, Weights, explore
from kdvfs_sim.optimize.paths import ClosedPaths, OpenPaths
from kdvfs_sim.optimize.target import Outcome, Target

LEVELS = (0.125, 1.0)  # of the longest that is waited: how long, for a bound each
MAX_CALLS = 12
NEVER = 2**62


def waiting_frontier(
    problem: Problem, target: Target, known: list[Outcome], seeds: tuple[Weights, ...], *, gap: float
) -> Frontier:
    """Lines that hold however long gaps are; none where they would say nothing new, or nothing is known.
    They speak of all schedules, whatever launches share a choice or keep a rule of their own.

    ``known``: outcomes that cost about as little as can be, which say how quick changes need to be. They and
    ``seeds`` decide how close the bound is, and not whether it is one.
    """
    costs, chain, switching = problem.costs, problem.chain, problem.switching
    start = costs.auto if problem.start is None else problem.start
    rows = np.flatnonzero(costs.requestable | (np.arange(costs.n_clocks) == start))
    by_start = start if problem.boundary == "one-shot" else None
    cells = cells_of(chain, costs, rows, at_least=True, start=by_start)
    if not _alone(problem) or not seeds or not known or cells.allowed.size > LONG:
        return Frontier()
    if not (cells.allowed.any(axis=1).all() and np.isfinite(cells.idle_w).all()):
        return Frontier()
    stalls = bool(switching.stall_ns.any())
    if stalls or not chain.floors_exact:
        cells = cells._replace(floor_ns=0 * cells.floor_ns)
    work = _Work.of(cells, stalls=stalls)
    trigger_ns = 0 if problem.protocol.anticipates else problem.protocol.trigger_ns
    lands_ns = switching.switching_ns + trigger_ns
    asked = costs.requestable & ~np.eye(costs.n_clocks, dtype=np.bool_)
    least_ns = int(lands_ns[rows][asked[rows]].min(initial=NEVER))
    energy_weight, time_weight = seeds[0]
    excess = min(energy_weight * o.energy_j + time_weight * o.time_ns for o in known)
    excess -= float(work.cost(energy_weight, time_weight).min(axis=1).sum())
    waited_ns, parts_ns = work.limits(energy_weight, time_weight, max(excess, 0.0))
    part_ns = float(parts_ns.max())
    # from inside a launch, or the gap after it, to a boundary
    slip_ns = math.ceil((parts_ns + work.gap_ns.max(axis=1)).max())
    issued_ns = slip_ns if problem.protocol.anticipates else 0
    waited_ns = min(waited_ns, least_ns - issued_ns - part_ns - 2)
    if not waited_ns > 0:
        return Frontier()

    def quick(quicker_ns: int) -> OpenPaths | ClosedPaths:
        """Changes that are so much quicker."""
        asked_ns = np.where(asked, np.maximum(lands_ns - quicker_ns, 0), 0)
        calls_ns = switching.host_call_ns - switching.switching_ns - quicker_ns - slip_ns
        model = model_of(
            cells,
            np.ones(len(chain), dtype=np.bool_),
            protocol=LOOKAHEAD,
            switching=SwitchTable(
                host_call_ns=asked_ns + np.where(asked, np.maximum(calls_ns, 0), 0),
                switching_ns=asked_ns,
                stall_ns=0 * asked_ns,
                extra_energy_j=np.where(asked, switching.extra_energy_j, 0.0),
            ),
            boundary=problem.boundary,
            rows=rows,
            requestable=costs.requestable[rows],
            early=True,
        )
        if model.rules.periodic:
            return ClosedPaths(model=model, gap=gap / 10)
        return OpenPaths(model=model, start=int(np.searchsorted(rows, start)))

    waits_ns = [math.ceil(waited_ns * share) for share in LEVELS]
    oracle = _Waiting(
        work=work,
        levels=[(longest_ns, quick(longest_ns + issued_ns)) for longest_ns in waits_ns],
        parts_ns=parts_ns,
        change_ns=least_ns - waits_ns[-1] - issued_ns,
    )
    return explore(oracle, target, near=gap / 2, gap=gap, seeds=seeds, max_calls=MAX_CALLS)


def _alone(problem: Problem) -> bool:
    """Does one launch run after another, and take and draw the same however long the device waits?"""
    if problem.protocol.drains or problem.chain.precedence is None:
        return False
    return problem.chain.precedence().slowest_ns is None


@dataclass(frozen=True, kw_only=True, eq=False)
class _Work:
    """Launches by themselves, (n, C): ``busy_ns``, infinite where not allowed, ``power_w`` and ``gap_ns``
    after them, idling at ``idle_w``, the least, or at up to ``idle_range_w`` more. What stalls waits, too,
    maybe at clocks that nobody may ask for: ``idle_w`` is then no more than that.

    ``bend_ns`` (n,): by how much the gap after a launch under two clocks may be shorter than in proportion,
    where at some clocks it lasts until the host launches the next, and at others not.
    """

    busy_ns: Floats
    power_w: Floats
    gap_ns: Floats
    idle_w: float
    idle_range_w: float
    bend_ns: Floats

    @classmethod
    def of(cls, cells: Cells, *, stalls: bool) -> _Work:
        with np.errstate(invalid="ignore"):
            busy_ns = np.rint(cells.duration_ns[:, None] * cells.ratio[cells.kind])
        shortest = np.where(cells.allowed, busy_ns, np.inf).min(axis=1)
        longest = np.where(cells.allowed, busy_ns, -np.inf).max(axis=1)
        until = cells.floor_ns - cells.gap_ns
        bends = (shortest < until) & (until < longest)
        below, above = np.where(bends, until - shortest, 0.0), np.where(bends, longest - until, 1.0)
        idle_w = float(cells.idle_w.min())
        if stalls:
            idle_w = float(np.nanmin(cells.frozen_w, initial=idle_w))
        return cls(
            busy_ns=np.where(cells.allowed, busy_ns, np.inf),
            power_w=cells.power_w[cells.kind],
            gap_ns=np.maximum(
                cells.gap_ns[:, None], np.where(cells.allowed, cells.floor_ns[:, None] - busy_ns, 0.0)
            ),
            idle_w=idle_w,
            idle_range_w=float(cells.idle_w.max()) - idle_w,
            bend_ns=below * above / (below + above),
        )

    def cost(self, energy_weight: float, time_weight: float) -> Floats:
        """Weighted, with the gap; infinite where it is not allowed."""
        rate = energy_weight * 1e-9 * self.power_w + time_weight
        busy = np.multiply(rate, self.busy_ns, out=self.busy_ns.copy(), where=np.isfinite(self.busy_ns))
        return busy + self.idle(energy_weight, time_weight) * self.gap_ns

    def idle(self, energy_weight: float, time_weight: float) -> float:
        """Weighted cost of a nanosecond, at the least."""
        return energy_weight * 1e-9 * self.idle_w + time_weight

    def limits(self, energy_weight: float, time_weight: float, excess: float) -> tuple[float, Floats]:
        """How long schedules that cost so much more than free switching may wait in all, and how long
        each launch may run before a change cuts it, or the next begins, (n,); in ns."""
        cost = self.cost(energy_weight, time_weight)
        wrong = cost - cost.min(axis=1)[:, None]
        known = np.isfinite(cost)
        parts_ns = np.zeros(cost.shape)
        if excess > 0:
            parts_ns[known] = self.busy_ns[known] * (excess / np.maximum(wrong[known], excess))
        idle = self.idle(energy_weight, time_weight)
        return excess / idle if idle > 0 else 0.0, parts_ns.max(axis=1)


@dataclass(kw_only=True, eq=False)
class _Waiting:
    """What no schedule is below; an Oracle, whose outcomes are those of quicker changes.

    ``levels``: how long is waited at most, in ns, and the least cost of changes that are quicker by that, in
    ascending order. Launches run no longer than ``parts_ns`` (n,) before a change cuts them.
    """

    work: _Work
    levels: list[tuple[float, OpenPaths | ClosedPaths]]
    parts_ns: Floats
    change_ns: int  # the least that a change takes, quicker

    def __call__(self, energy_weight: float, time_weight: float, /) -> tuple[float, Outcome | None]:
        work = self.work
        cost = work.cost(energy_weight, time_weight)
        cheapest = cost.min(axis=1)
        free = float(cheapest.sum()) * (1 - ROUNDING)
        idle = work.idle(energy_weight, time_weight)
        long = np.isfinite(cost) & (work.busy_ns > self.parts_ns[:, None])
        shares = np.broadcast_to(self.parts_ns[:, None], cost.shape)[long] / work.busy_ns[long]
        wrong = (cost - cheapest[:, None])[long] * shares
        excess = min(float(wrong.min(initial=np.inf)), idle * self.levels[-1][0])
        least, waited_ns = free + excess, 0.0
        for longest_ns, paths in self.levels:
            quick, outcome = paths(energy_weight, time_weight)
            least = min(least, quick + idle * waited_ns)
            waited_ns = longest_ns
        return max(free, least) - self._rounding(energy_weight, time_weight, free + excess), outcome

    def _rounding(self, energy_weight: float, time_weight: float, most: float) -> float:
        """What the cut launches of a schedule that costs no more than ``most`` may cost less than
        in proportion: some nanoseconds, and gaps under other clocks or shorter."""
        work, n = self.work, len(self.work.busy_ns)
        n_changes = n
        if time_weight > 0:
            n_changes = min(n, int(most / time_weight / self.change_ns) + 1)
        range_w = energy_weight * 1e-9 * work.idle_range_w
        idle = work.idle(energy_weight, time_weight) + range_w
        gaps = np.sort(range_w * work.gap_ns.max(axis=1) + idle * work.bend_ns)[n - n_changes :].sum()
        nanosecond = time_weight + energy_weight * 1e-9 * float(work.power_w.max(initial=0.0))
        cut_ns = n_changes * self.levels[0][1].model.rules.rounding_ns
        return float(cut_ns * nanosecond + gaps)
