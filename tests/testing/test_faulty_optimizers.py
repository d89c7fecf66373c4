"""Optimizers with mistakes that people make are caught, by cases that a person can read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kdvfs_sim.core.problem import Problem, Solution
from kdvfs_sim.core.protocols import Optimizer
from kdvfs_sim.optimize.baselines import static_lock, static_mix
from kdvfs_sim.testing.law import LAWS, Broken, Law
from kdvfs_sim.testing.laws import optimizer as laws
from kdvfs_sim.testing.notation import costs, problem, trace
from kdvfs_sim.testing.run import run_law
from tests.testing.faulty import FAULTY, OwnEstimate


@pytest.mark.parametrize(
    ("faulty", "name"), FAULTY.items(), ids=lambda value: getattr(value, "__name__", value)
)
def test_a_faulty_optimizer_is_caught_by_a_small_case(faulty: Any, name: str) -> None:
    law = getattr(laws, name)
    verdict = run_law(law, faulty(), n_examples=1000)
    assert verdict.outcome == "broken"
    problem = verdict.case if isinstance(verdict.case, Problem) else verdict.case[0]
    assert len(problem.chain) <= 5
    assert problem.costs.n_clocks <= 3
    # what is printed is code that breaks the same law again
    with pytest.raises(Broken):
        exec(verdict.code(), {"plugin": faulty()})


class Habits:
    """The two habits of docs/how-to/test-your-optimizer.md, and ``plan`` for the plan of one's own."""

    def __init__(self, plan: Optimizer | None) -> None:
        self.plan = plan

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        answers = [static_lock(problem), static_mix(problem)]
        if self.plan is not None:
            answers.append(self.plan.solve(problem, seed=seed))
        return min(answers, key=lambda answer: problem.objective.value_of(answer.metrics))


@pytest.mark.parametrize("plan", [None, OwnEstimate()], ids=["baselines alone", "a plan that errs"])
@pytest.mark.parametrize("law", LAWS["optimizer"], ids=lambda law: law.name)
def test_two_habits_keep_every_law(plan: Optimizer | None, law: Law) -> None:
    assert run_law(law, Habits(plan), n_examples=20).outcome in ("held", "not judged")


def test_a_baseline_claims_to_be_optimal_only_where_nothing_else_is_asked_for() -> None:
    table = costs(["auto", "sm=300,mem=auto"], time=[[1.0, 1.5]], power_w=[[100.0, 40.0]], idle_w=[9.0, 9.0])
    for granularity, status in (("launch", "feasible"), ("static", "optimal")):
        posed = replace(problem(trace((0, 0, 1000)), table, max_time_s=1.2e-6), granularity=granularity)
        for baseline in (static_lock(posed), static_mix(posed)):
            assert baseline.status == status
            assert (baseline.lower_bound is None) == (status == "feasible")
