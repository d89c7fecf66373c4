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
from dataclasses import dataclass, field

import numpy as np

from kdvfs_sim.core.problem import Problem
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.optimize.additive import Bools, Cells, Ints, cells_of, fold, group_launches
from kdvfs_sim.optimize.changes import Model, model_of
from kdvfs_sim.optimize.closing import close
from kdvfs_sim.optimize.descent import descend, objective, weighed
from kdvfs_sim.optimize.frontier import Frontier, Weights, explore
from kdvfs_sim.optimize.knapsack import solve_knapsack
from kdvfs_sim.optimize.paths import ClosedPaths, OpenPaths
from kdvfs_sim.optimize.placement import place
from kdvfs_sim.optimize.target import Outcome, Target

COARSE = 24  # clocks that a first look at the multiplier makes do with
NEAR = 1e-6  # relative: where the multiplier is taken to be found
N_STARTS = 3  # choices of the free problem that a descent starts from


@dataclass(kw_only=True, eq=False)
class Chase:
    """A model being explored; what is known of it is kept while the budget is tightened."""

    model: Model
    start: int
    gap: float
    seeds: tuple[Weights, ...] = ()
    frontier: Frontier = field(default_factory=Frontier)

    def __post_init__(self) -> None:
        periodic = self.model.rules.periodic
        self.paths: OpenPaths | ClosedPaths = (
            ClosedPaths(model=self.model) if periodic else OpenPaths(model=self.model, start=self.start)
        )

    def solve(self, target: Target) -> tuple[list[Outcome], float]:
        """Outcomes on both sides of the budget, and a bound that no outcome takes part in."""
        near = min(NEAR, self.gap)
        explore(self.paths, target, frontier=self.frontier, near=near, gap=self.gap, seeds=self.seeds)
        bound = self.frontier.bound(target)
        best = self.frontier.best(target)
        closed = best is not None and target.value(best.time_ns, best.energy_j) <= bound * (1 + self.gap)
        outcomes = list(self.frontier.outcomes)
        if isinstance(self.paths, OpenPaths) and not closed and target.binds and np.isfinite(bound):
            found, proven = close(self.paths, target, gap=self.gap)
            outcomes += [] if found is None else [found]
            bound = max(bound, proven)
        return outcomes, bound


class Charged:
    """A problem's bound and candidates. ``restrict`` says which clocks the launches may run at."""

    def __init__(self, problem: Problem, restrict: Callable[[Cells, Ints], Cells], gap: float) -> None:
        self._problem, self._restrict, self._gap = problem, restrict, gap
        costs = problem.costs
        start = costs.auto if problem.start is None else problem.start
        self._rows = np.flatnonzero(costs.requestable | (np.arange(costs.n_clocks) == start))
        self._start = int(np.searchsorted(self._rows, start))
        self._group = group_launches(problem.chain, problem.granularity)
        self._begins: Bools = np.diff(self._group, prepend=-1) != 0
        self._target = Target.of(problem.objective)
        relaxed = self._model(self._rows, at_least=True)
        chase = Chase(model=relaxed, start=self._start, gap=gap, seeds=self._seeds(self._target))
        self._outcomes, self.bound = chase.solve(self._target)
        self._chase = chase
        predicted = self._model(self._rows, at_least=False)
        if not _alike(relaxed, predicted, gap):
            seeds = chase.frontier.tightest(self._target)
            self._chase = Chase(model=predicted, start=self._start, gap=gap, seeds=seeds)
            self._outcomes = []

    def outcomes(self, target: Target) -> list[Outcome]:
        """What is predicted near a budget, on both sides of it."""
        if target != self._target or not self._outcomes:
            self._outcomes, _ = self._chase.solve(target)
            self._target = target
        comes_back = self._begins.sum() > self._group.max(initial=0) + 1
        return self._descents(target) if comes_back else self._outcomes

    def schedule(self, outcome: Outcome) -> Schedule | None:
        """The requests that bring an outcome about."""
        model, problem = self._chase.model, self._problem
        begin = outcome.begin if model.rules.periodic and outcome.begin is not None else (0, self._start)
        placed = place(model, outcome.choice, begin)
        if placed is None:
            return None
        return placed.schedule(
            tuple(problem.costs.clocks[row] for row in self._rows),
            protocol=problem.protocol.name,
            boundary=problem.boundary,
            stream=problem.chain.stream,
            device=problem.chain.device,
        )

    def _model(self, rows: Ints, *, at_least: bool) -> Model:
        problem = self._problem
        cells = self._restrict(cells_of(problem.chain, problem.costs, rows, at_least=at_least), rows)
        requestable = problem.costs.requestable[rows]
        return model_of(
            cells, problem.protocol, problem.switching, problem.boundary, rows, requestable, self._begins
        )

    def _seeds(self, target: Target) -> tuple[Weights, ...]:
        """The weights that matter with few clocks: those of all are near."""
        step = len(self._rows) // COARSE
        if step < 2:
            return ()
        kept = np.arange(len(self._rows)) % step == step // 2
        kept[self._start] = True
        start = int(kept[: self._start].sum())
        chase = Chase(model=self._model(self._rows[kept], at_least=True), start=start, gap=self._gap)
        explore(chase.paths, target, frontier=chase.frontier, near=NEAR, gap=self._gap)
        return chase.frontier.tightest(target)

    def _descents(self, target: Target) -> list[Outcome]:
        """From choices of the free problem, and from the best without any change."""
        model = self._chase.model
        free = solve_knapsack(fold(model.cells, self._group), target).outcomes[:N_STARTS]
        found = []
        for outcome in free:
            clocks = outcome.choice
            for weights in self._chase.frontier.tightest(target):
                clocks, outcome = descend(model, self._group, self._start, clocks, weighed(*weights))
                found.append(outcome)
            found.append(descend(model, self._group, self._start, clocks, objective(target))[1])
        n_groups = int(self._group.max(initial=0)) + 1
        for c in _unchanged(model, target):
            clocks = np.full(n_groups, c, dtype=np.int64)
            found.append(descend(model, self._group, self._start, clocks, objective(target))[1])
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
