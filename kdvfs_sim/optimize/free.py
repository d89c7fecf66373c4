"""Changes that cost nothing: every group of launches chooses by itself, which is a knapsack."""

from __future__ import annotations

import numpy as np

from kdvfs_sim.core.problem import Problem
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.optimize.additive import Groups, Ints, cells_of, fold, group_launches, host_bound
from kdvfs_sim.optimize.allowed import free_choices
from kdvfs_sim.optimize.assignment import as_schedule
from kdvfs_sim.optimize.knapsack import EXACT, solve_knapsack
from kdvfs_sim.optimize.target import Outcome, Target

FEW_GROUPS = 100  # fewer are closed to the last digit; many equal ones would take for ever to


class Free:
    """A problem's bounds and candidates (``solve.Method``). ``gap`` (relative): how near to close."""

    def __init__(self, problem: Problem, gap: float) -> None:
        self._problem = problem
        self._group = group_launches(problem.chain, problem.granularity)
        self._gap = EXACT if self._group.max(initial=0) < FEW_GROUPS else gap / 100
        self._rows = np.arange(problem.costs.n_clocks)
        self._groups = self._folded(at_least=False)
        self._target = Target.of(problem.objective)
        self._answer = answer = solve_knapsack(self._groups, self._target, gap=self._gap)
        if not problem.chain.additive:
            answer = solve_knapsack(self._folded(at_least=True), self._target, gap=self._gap)
        self.bound = answer.bound
        self.mixed_bound = answer.frontier.bound(Target.of_mean(problem.objective))

    def _folded(self, *, at_least: bool) -> Groups:
        problem = self._problem
        cells = cells_of(problem.chain, problem.costs, self._rows, at_least=at_least)
        if not at_least and problem.chain.floor_ns is not None:
            cells = host_bound(cells, problem.chain)
        return fold(cells, self._group).only(free_choices(problem, self._group))

    def outcomes(self, target: Target) -> list[Outcome]:
        if target != self._target:
            self._target = target
            self._answer = solve_knapsack(self._groups, target, gap=self._gap)
        beyond = [o for o in self._answer.frontier.outcomes if not target.allows(o)]
        return [*self._answer.outcomes, *beyond]

    def placed(self, rows: Ints) -> Schedule:
        return as_schedule(self._problem, rows)

    def schedule(self, outcome: Outcome) -> Schedule:
        problem = self._problem
        return Schedule.from_assignment(
            [problem.costs.clocks[row] for row in outcome.choice[self._group]],
            stream=problem.chain.stream,
            device=problem.chain.device,
            protocol=problem.protocol.name,
            boundary=problem.boundary,
        )
