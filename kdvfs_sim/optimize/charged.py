"""Changes that cost: bound and schedules of a problem under a protocol that charges them.

The bound speaks of a model whose gaps are the least that any clocks leave; schedules come from one
whose gaps are as recorded, where the two differ enough to matter. A choice a launch is solved by
``frontier`` over ``paths``, and one-shot by ``labels`` where the multiplier leaves more open than
is asked for. The same holds for groups that are runs of launches: changes then happen only at their
beginnings. Groups that come back, such as kinds, are bounded by the freedom to choose anew each
time, and searched by ``descent``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from kdvfs_sim.core.problem import Problem
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.optimize.additive import Bools, Cells, Ints, cells_of, fold, group_launches
from kdvfs_sim.optimize.blocks import LONG, LongPaths
from kdvfs_sim.optimize.changes import Model, model_of, most_begun
from kdvfs_sim.optimize.closing import close
from kdvfs_sim.optimize.descent import MAX_STEPS, descend, objective, weighed
from kdvfs_sim.optimize.exchange import exchanges
from kdvfs_sim.optimize.frontier import Frontier, Weights, explore
from kdvfs_sim.optimize.knapsack import solve_knapsack, weigh
from kdvfs_sim.optimize.paths import CONVERGED, ClosedPaths, OpenPaths
from kdvfs_sim.optimize.shift import shift
from kdvfs_sim.optimize.splice import splice
from kdvfs_sim.optimize.target import Effort, Outcome, Target
from kdvfs_sim.optimize.waits import waiting_frontier

COARSE = 24  # clocks, or some more, and
SHORT = 20_000  # launches that a first look at the multiplier makes do with
NEAR = 1e-4  # relative: where that look takes the multiplier to be found
N_STARTS = 3  # choices of the free problem that a descent starts from


@dataclass(kw_only=True, eq=False)
class Chase:
    """An oracle being explored; what is known of it is kept while the budget is tightened."""

    paths: OpenPaths | ClosedPaths | LongPaths
    gap: float
    seeds: tuple[Weights, ...] = ()
    frontier: Frontier = field(default_factory=Frontier)

    def solve(self, target: Target) -> tuple[list[Outcome], float]:
        """Outcomes on both sides of the budget, and a bound that no outcome takes part in."""
        joints: list[Outcome] = []
        for near in (self.gap / 2, self.gap / 10):  # splices close most of what is left
            seeds = () if self.frontier.lines else self.seeds
            explore(self.paths, target, frontier=self.frontier, near=near, gap=self.gap, seeds=seeds)
            outcomes, bound = self.frontier.outcomes + joints, self.frontier.bound(target)
            if not np.isfinite(bound) or self._closed(outcomes, target, bound):
                return outcomes, bound
            if not target.binds:
                if target.at_budget is not None:
                    outcomes, _ = self.solve(target.at_budget)
                return outcomes, self.frontier.bound(target)
            within, beyond = self.frontier.sides(target)
            if within is not None and beyond is not None:
                joints = splice(self.paths.place, within, beyond, target, bound * (1 + self.gap / 2))
                outcomes += joints
            if self._closed(outcomes, target, bound):
                return outcomes, bound
        if not isinstance(self.paths, LongPaths):
            outcomes += self._altered(self.paths, target, bound)
        if isinstance(self.paths, OpenPaths) and not self._closed(outcomes, target, bound):
            values = (target.value(o.time_ns, o.energy_j) for o in outcomes if target.allows(o))
            enough = min(values, default=np.inf) / (1 + self.gap)
            found, proven = close(self.paths, target, gap=self.gap, enough=enough)
            outcomes += [] if found is None else [found]
            bound = max(bound, proven)
        return outcomes, bound

    def _altered(self, paths: OpenPaths | ClosedPaths, target: Target, bound: float) -> list[Outcome]:
        """What stretches of the outcomes known make, and what comes of those next to the budget when
        their changes move."""
        weights, enough = self.frontier.tightest(target)[0], bound * (1 + self.gap / 2)
        outcomes = self.frontier.outcomes
        found = exchanges(paths.model, outcomes, target, weights, gap=self.gap, enough=enough)
        for outcome in self.frontier.sides(target):
            if outcome is not None and not self._closed(found, target, bound):
                found.append(shift(paths.place, outcome, target, weights, enough))
        return found

    def _closed(self, outcomes: list[Outcome], target: Target, bound: float) -> bool:
        values = (target.value(o.time_ns, o.energy_j) for o in outcomes if target.allows(o))
        return min(values, default=np.inf) <= bound * (1 + self.gap)


class Charged:
    """A problem's bound and candidates. ``restrict`` says which clocks the launches may run at."""

    def __init__(self, problem: Problem, restrict: Callable[[Cells, Ints], Cells], gap: float) -> None:
        self._problem, self._restrict, self._gap = problem, restrict, gap
        costs = problem.costs
        self._start = costs.auto if problem.start is None else problem.start
        self._rows = np.flatnonzero(costs.requestable | (np.arange(costs.n_clocks) == self._start))
        self._group = group_launches(problem.chain, problem.granularity)
        self._begins: Bools = np.diff(self._group, prepend=-1) != 0
        self._target = Target.of(problem.objective)
        relaxed = self._paths(self._rows, at_least=True, gap=gap / 10)
        chase = Chase(paths=relaxed, gap=gap, seeds=self._seeds(self._target))
        self._outcomes, self.bound = chase.solve(self._target)
        self.mixed_bound = chase.frontier.bound(Target.of_mean(problem.objective))
        self._chase = self._sure = chase
        self._relaxed = chase.frontier
        if not (problem.chain.additive or isinstance(relaxed, LongPaths)):
            predicted = self._paths(self._rows, at_least=False, gap=gap / 10)
            assert not isinstance(predicted, LongPaths)
            if not _alike(relaxed.model, predicted.model, gap):
                self._chase = Chase(paths=predicted, gap=gap, seeds=chase.frontier.tightest(self._target))
                self._outcomes = []

    def waiting(self) -> Frontier:
        """Lines that hold where gaps may be longer than the chain's, too; none if none are known."""
        known, seeds = self._relaxed.outcomes, self._relaxed.tightest(self._target)
        return waiting_frontier(
            self._problem, Target.of(self._problem.objective), known, seeds, gap=self._gap
        )

    def outcomes(self, target: Target) -> list[Outcome]:
        """What is predicted near a budget, on both sides of it."""
        if target != self._target or not self._outcomes:
            self._outcomes, _ = self._chase.solve(target)
            self._target = target
        return self._descents(target) if self._comes_back else self._outcomes

    def schedule(self, outcome: Outcome) -> Schedule | None:
        """The requests that bring an outcome about."""
        problem = self._problem
        # A request that comes too early waits for the last change, and is then made inside a launch, of which
        # bounds say nothing. So no gap is counted on that may be shorter.
        follows = not (problem.protocol.drains or problem.protocol.anticipates)
        placed = (self._sure if follows else self._chase).paths.place(outcome)
        if placed is None:
            return None
        if not problem.costs.requestable[self._rows[placed.requests[0, 2]]]:
            placed = replace(placed, requests=placed.requests[:0])  # stays at a start that nobody can ask for
        return placed.schedule(
            tuple(problem.costs.clocks[row] for row in self._rows),
            protocol=problem.protocol.name,
            boundary=problem.boundary,
            stream=problem.chain.stream,
            device=problem.chain.device,
        )

    def placed(self, rows: Ints) -> Schedule | None:
        """One row of the cost table for every launch as the requests of this protocol, as far as they can
        be had in time."""
        choice = np.searchsorted(self._rows, rows).clip(max=len(self._rows) - 1)
        if not (self._rows[choice] == rows).all():
            return None
        begin = self._start if self._problem.boundary == "one-shot" else rows[-1]
        return self.schedule(Outcome(0, 0.0, choice, (0, int(np.searchsorted(self._rows, begin)))))

    @property
    def _comes_back(self) -> bool:
        """Do launches that share a choice lie apart?"""
        return bool(self._begins.sum() > self._group.max(initial=0) + 1)

    def _cells(self, rows: Ints, *, at_least: bool, n_launches: int | None = None) -> Cells:
        """What the first launches of the chain cost, all unless said otherwise."""
        problem = self._problem
        start = self._start if problem.boundary == "one-shot" else None
        cells = cells_of(problem.chain, problem.costs, rows, at_least=at_least, start=start)
        cells = self._restrict(cells, rows)
        return cells.first(len(problem.chain) if n_launches is None else n_launches)

    def _paths(
        self, rows: Ints, *, at_least: bool, n_launches: int | None = None, gap: float = CONVERGED
    ) -> OpenPaths | ClosedPaths | LongPaths:
        """The schedules of the first launches of the chain, of all unless said otherwise."""
        problem, part = self._problem, slice(n_launches)
        cells = self._cells(rows, at_least=at_least, n_launches=n_launches)
        begin = int(np.searchsorted(rows, self._start))
        build = partial(
            model_of,
            protocol=problem.protocol,
            switching=problem.switching,
            boundary=problem.boundary,
            rows=rows,
            requestable=problem.costs.requestable[rows],
        )
        if problem.boundary == "periodic":
            return ClosedPaths(model=build(cells, self._begins[part]), gap=gap)
        if cells.allowed.size > LONG and not self._comes_back:
            longest = max(problem.switching.switching_ns.max(), problem.switching.host_call_ns.max())
            n_ahead = most_begun(cells, int(longest) + problem.protocol.trigger_ns)
            if n_ahead < len(cells.kind) // 4:
                return LongPaths(
                    cells=cells, may_change=self._begins[part], build=build, start=begin, n_ahead=n_ahead
                )
        return OpenPaths(model=build(cells, self._begins[part]), start=begin)

    def _seeds(self, target: Target) -> tuple[Weights, ...]:
        """The weights that matter with few clocks, or few launches: those of all are near.

        And near to those are the weights that matter with free switching.
        """
        n = len(self._problem.chain)
        step = max(1, len(self._rows) // COARSE)
        few = (np.arange(len(self._rows)) % step == step // 2) | (self._rows == self._start)
        if (step == 1 and n <= 2 * SHORT) or not target.binds or target.max_energy_j < np.inf:
            return ()  # of no use: soon found without, or asked for extremes first
        if n > 2 * SHORT:
            duration_ns = self._problem.chain.duration_ns
            share = float(duration_ns[:SHORT].sum() / duration_ns.sum())
            target = replace(
                target, max_time_ns=target.max_time_ns * share, max_energy_j=target.max_energy_j * share
            )
            n = SHORT
        free = fold(self._cells(self._rows, at_least=True, n_launches=n), self._group[:n])
        seeds = explore(partial(weigh, free), target, near=NEAR).tightest(target)
        for rows in (self._rows[few], self._rows) if n == SHORT and step > 1 else (self._rows[few],):
            paths = self._paths(rows, at_least=True, n_launches=n, gap=self._gap)
            near = max(NEAR, self._gap / 5)
            seeds = explore(paths, target, near=near, gap=self._gap, seeds=seeds).tightest(target)
        return seeds

    def _descents(self, target: Target) -> list[Outcome]:
        """From the best without any change, and from choices of the free problem."""
        paths = self._chase.paths
        assert not isinstance(paths, LongPaths)
        model, start = paths.model, int(np.searchsorted(self._rows, self._start))
        found, effort = [], Effort(MAX_STEPS)
        n_groups = int(self._group.max(initial=0)) + 1
        for c in _unchanged(model, target):
            clocks = np.full(n_groups, c, dtype=np.int64)
            found.append(descend(model, self._group, start, clocks, objective(target), effort)[1])
        for outcome in solve_knapsack(fold(model.cells, self._group), target).outcomes[:N_STARTS]:
            clocks = outcome.choice
            for weights in self._chase.frontier.tightest(target):
                clocks, outcome = descend(model, self._group, start, clocks, weighed(*weights), effort)
                found.append(outcome)
            found.append(descend(model, self._group, start, clocks, objective(target), effort)[1])
        return found


def _alike(relaxed: Model, predicted: Model, gap: float) -> bool:
    """Do the least gaps and the recorded ones add up to the same, to within a tenth of ``gap``?"""
    a, b = relaxed.runs.start_ns[:, -1], predicted.runs.start_ns[:, -1]
    return bool((np.abs(b - a) <= 0.1 * gap * b).all())


def _unchanged(model: Model, target: Target) -> list[int]:
    """The best clocks to stay on, if any keep the budget."""
    n = len(model.cells.kind)
    runs = model.runs
    stays = [
        (target.value(float(time_ns), energy_j), c)
        for c, (time_ns, energy_j) in enumerate(zip(runs.start_ns[:, n], runs.energy_j[:, n], strict=True))
        if model.rules.requestable[c]
        and runs.barred[c, n] == 0
        and time_ns <= target.max_time_ns
        and energy_j <= target.max_energy_j
    ]
    return [min(stays)[1]] if stays else []
