"""What the laws of optimizers share: their problems, and what can be asked of an answer."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Final

import numpy as np

from kdvfs_sim.core.problem import Metrics, Problem, Solution
from kdvfs_sim.core.protocols import Optimizer
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.core.switching import DRAIN, FOLLOW, FREE, LOOKAHEAD
from kdvfs_sim.testing.judge import Judge, replayed
from kdvfs_sim.testing.law import ask, assume, require
from kdvfs_sim.testing.notation import problem as pose
from kdvfs_sim.testing.notation import same
from kdvfs_sim.testing.strategies.problems import chains, problems
from kdvfs_sim.testing.strategies.traces import single_stream, traces

EXACT: Final = 1e-9  # relative: sums in another order
CLAIMED: Final = 1e-8  # relative: what "optimal" may leave open, and the rounding of two answers


def at_most(value: float, limit: float, tolerance: float) -> bool:
    """Up to a relative tolerance, whatever the signs: what overlaps may draw less than nothing."""
    return value <= limit + tolerance * abs(limit)


small = problems(minimize=("energy", "energy", "time", "edp", "ed2p"), granularities=("launch", "kind"))
# where launches wait for a host or for other streams the same must hold, and nothing adds up
entangled = problems(recordings=single_stream(max_ops=5) | traces(max_ops=5), capped=True)
# of these, what a stream's launches run at is all there is to choose
beside = problems(recordings=traces(max_ops=4), protocols=(FREE,), capped=True)
# a launch or two to slow down, at a price
tempted = problems(
    recordings=chains(min_launches=2),
    protocols=(DRAIN, FREE, FOLLOW, LOOKAHEAD),
    slacks=(0.3, 1.0, 0.1),
    tempting=True,
)
anything = tempted | tempted | small | entangled
# slack for some launches and not for others that are just like them
ties = problems(
    recordings=chains(min_launches=2, durations_ns=(1000,)),
    protocols=(FREE,),
    boundaries=("one-shot",),
    slacks=(0.3, 0.5),
    max_clocks=2,
    tempting=True,
)
# a budget that a change of clocks can break
squeezed = problems(
    recordings=chains(min_launches=2, durations_ns=(1000,)),
    protocols=(DRAIN,),
    slacks=(0.3, 0.5),
    tempting=True,
    stalls=False,
)
wide = problems(recordings=chains(min_launches=6, max_launches=12))


def solve(optimizer: Optimizer, problem: Problem, seed: int = 0) -> Solution:
    solution = ask(optimizer.solve, problem, seed=seed)
    assert isinstance(solution, Solution)
    return solution


def found(solution: Solution) -> Solution:
    """Only cases in which there is an answer."""
    assume(solution.schedule is not None and solution.metrics is not None)
    return solution


def value(problem: Problem, metrics: Metrics | None) -> float:
    """Of the objective; infinity where there is none."""
    if metrics is None or metrics.energy_j is None:
        return np.inf
    return problem.objective.value(metrics.time_s, metrics.energy_j)


def claimed(optimizer: Optimizer, problem: Problem) -> float:
    """The value of an answer that claims to be optimal; other answers are no case."""
    solution = solve(optimizer, problem)
    assume(solution.status == "optimal")
    return value(problem, solution.metrics)


def measured(problem: Problem, solution: Solution) -> Metrics:
    """What the answer gives when the replay is asked, the mean iteration of a mix."""
    assert solution.schedule is not None
    first = replayed(problem, solution.schedule)
    if solution.alternate is None:
        return first
    second, share = replayed(problem, solution.alternate), solution.share
    energies = (first.energy_j, second.energy_j)
    return replace(
        first,
        time_s=share * first.time_s + (1 - share) * second.time_s,
        energy_j=None
        if energies[0] is None or energies[1] is None
        else share * energies[0] + (1 - share) * energies[1],
    )


def altered(problem: Problem, **changes: Any) -> Problem:
    """The problem with another trace, costs, switching, protocol or budget, judged by the same rules."""
    judge = problem.evaluate
    assert isinstance(judge, Judge)
    objective = changes.pop("objective", problem.objective)
    parts = {
        "recording": judge.trace,
        "table": problem.costs,
        "switches": problem.switching,
        "protocol": problem.protocol,
        "boundary": problem.boundary,
        "start": problem.start,
        "stream": (problem.chain.device, problem.chain.stream),
        **changes,
    }
    posed = pose(parts.pop("recording"), parts.pop("table"), parts.pop("switches"), **parts)
    return replace(posed, objective=objective, granularity=problem.granularity)


def words(plan: Schedule | None) -> str:
    if plan is None:
        return "nothing"
    return (
        "; ".join(f"{r.clocks} from launch {r.launch} + {r.offset_ns} ns" for r in plan.requests)
        or "no request"
    )


def require_equal(before: float, after: float, when: str) -> None:
    close = before == after or abs(before - after) <= CLAIMED * max(abs(before), abs(after))
    require(close, f"{after:.12g} instead of {before:.12g} {when}")


def require_same(before: Solution, after: Solution, when: str) -> None:
    for f in fields(Solution):
        a, b = getattr(before, f.name), getattr(after, f.name)
        if f.name not in ("message", "n_evaluations"):
            require(same(a, b), f"{f.name} is {b} instead of {a} {when}")
