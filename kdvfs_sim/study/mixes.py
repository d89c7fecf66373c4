"""Mixes of two schedules that are not worth their second one."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kdvfs_sim.core.problem import Problem, Solution
from kdvfs_sim.optimize.baselines import static_mix
from kdvfs_sim.optimize.solve import GAP

SMALL_PART: Final = 0.01  # of the iterations


def without_noise(problem: Problem, solution: Solution) -> Solution:
    """The larger part of a mix alone, where the other is for less than SMALL_PART of the iterations and gains
    less than GAP, which any answer may leave open.

    Such a mix uses the last thousandths of a budget; one schedule is easier to run, replay and explain. The
    budget is kept, and the answer is no worse than the best mix of two locks.
    """
    mixed = solution.metrics
    if solution.alternate is None or solution.schedule is None or mixed is None:
        return solution
    minor = min(solution.share, 1 - solution.share)
    major = solution.schedule if solution.share > 0.5 else solution.alternate
    if minor >= SMALL_PART:
        return solution
    alone = problem.evaluate(major)
    value = problem.objective.value_of(alone)
    baseline = problem.objective.value_of(static_mix(problem).metrics)
    if value > min(problem.objective.value_of(mixed) * (1 + GAP), baseline):
        return solution
    what = str(major.requests[0].clocks) if len(major) == 1 else f"{len(major)} requests"
    part = f"{minor:.2%}" if minor >= 5e-5 else "under 0.01%"
    return replace(
        solution,
        status="feasible" if problem.chain.additive else "not exact",
        message=f"{what}; a mix with another for {part} of the iterations gains less than {GAP:.2%}",
        schedule=major,
        alternate=None,
        share=1.0,
        metrics=alone,
    )
