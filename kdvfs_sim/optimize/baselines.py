"""The baselines every answer is compared with: the best single lock, and a mix of two over iterations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.core.problem import Metrics, Objective, Problem, Solution
from kdvfs_sim.core.schedule import Schedule


class Judged(NamedTuple):
    """A schedule, and what it gives: time and energy known."""

    schedule: Schedule
    metrics: Metrics
    time_s: float
    energy_j: float

    @property
    def name(self) -> str:
        requests = self.schedule.requests
        return str(requests[0].clocks) if self.schedule.is_static else f"{len(requests)} requests"


def judge(problem: Problem, schedule: Schedule) -> Judged | None:
    """None where the energy is not known."""
    metrics = problem.evaluate(schedule)
    if metrics.energy_j is None:
        return None
    return Judged(schedule, metrics, metrics.time_s, metrics.energy_j)


def locked(problem: Problem, clocks: Clocks) -> Schedule:
    """One setting for everything on the problem's stream."""
    return Schedule.static(
        clocks,
        stream=problem.chain.stream,
        device=problem.chain.device,
        protocol=problem.protocol.name,
        boundary=problem.boundary,
    )


def locks(problem: Problem) -> list[Judged]:
    """Every single lock that may be requested and whose time and energy are known, as judged."""
    costs = problem.costs
    needed = sorted(set(problem.chain.kind.tolist()))
    known = costs.requestable & np.isfinite(costs.ratio[needed]).all(axis=0)
    judged = (judge(problem, locked(problem, costs.clocks[row])) for row in np.flatnonzero(known))
    return [lock for lock in judged if lock is not None]


def static_lock(problem: Problem, candidates: Sequence[Judged] | None = None) -> Solution:
    """The best single lock within the budget. One-shot, it pays the first change; periodic, none.

    Every lock is judged: where the problem leaves nothing but locks (granularity ``static``) that is exact,
    and elsewhere an answer without a bound.
    """
    found = locks(problem) if candidates is None else candidates
    best = best_of(problem.objective, found)
    if best.metrics is None:
        return replace(best, message="no single lock keeps the budget")
    return _exact(problem, best)


def static_mix(problem: Problem, candidates: Sequence[Judged] | None = None) -> Solution:
    """Two locks alternated over iterations in any proportion, the budget kept on the mean.

    Exact among mixes, and said to be where ``static_lock`` says it. Under ``one-shot`` there are no
    iterations to alternate.
    """
    if problem.boundary != "periodic":
        return Solution(status="not applicable", message="one-shot: there are no iterations to alternate")
    found = locks(problem) if candidates is None else candidates
    best = best_mix(problem.objective, found)
    if best.metrics is None:
        return replace(best, message="no mix of locks keeps the budget")
    return _exact(problem, best)


def _exact(problem: Problem, best: Solution) -> Solution:
    """With its own value for a bound where nothing but locks is asked for: elsewhere others may be better."""
    if problem.granularity != "static":
        return best
    return replace(best, status="optimal", lower_bound=problem.objective.value_of(best.metrics))


def best_of(objective: Objective, candidates: Sequence[Judged]) -> Solution:
    """The best of some schedules that keeps the budget; among equals the fastest."""
    allowed = [one for one in candidates if objective.allows(one.time_s, one.energy_j)]
    if not allowed:
        return Solution(status="infeasible", n_evaluations=len(candidates))
    best = min(allowed, key=lambda one: (objective.value(one.time_s, one.energy_j), one.time_s))
    return Solution(
        status="feasible",
        message=best.name,
        schedule=best.schedule,
        metrics=best.metrics,
        n_evaluations=len(candidates),
    )


def best_mix(objective: Objective, candidates: Sequence[Judged]) -> Solution:
    """Two schedules alternated over iterations, or one: the best point of their lower hull.

    Changes between blocks of iterations are rare and not charged.
    """
    hull = _lower_hull(candidates)
    options = [(one, one, 1.0) for one in hull]
    if objective.max_time_s is not None:
        limit = objective.max_time_s
        edges = [(a, b) for a, b in itertools.pairwise(hull) if a.time_s < limit < b.time_s]
        options += [_meeting(a, b, limit, lambda one: one.time_s) for a, b in edges]
    if objective.max_energy_j is not None:
        budget = objective.max_energy_j
        edges = [(a, b) for a, b in itertools.pairwise(hull) if b.energy_j < budget < a.energy_j]
        options += [_meeting(a, b, budget, lambda one: one.energy_j) for a, b in edges]
    blends = [(blend(a.metrics, b.metrics, share), a, b, share) for a, b, share in options]
    best = min(blends, key=lambda option: objective.value_of(option[0]), default=None)
    if best is None or objective.value_of(best[0]) == math.inf:
        return Solution(status="infeasible", n_evaluations=len(candidates))
    metrics, a, b, share = best
    mixed = a is not b
    return Solution(
        status="feasible",
        message=f"{share:.1%} {a.name}, the rest {b.name}" if mixed else a.name,
        schedule=a.schedule,
        metrics=metrics,
        alternate=b.schedule if mixed else None,
        share=share,
        n_evaluations=len(candidates),
    )


def blend(a: Metrics, b: Metrics, share: float) -> Metrics:
    """The mean iteration when a share of them runs as ``a`` and the rest as ``b``."""
    energy = None
    if a.energy_j is not None and b.energy_j is not None:
        energy = share * a.energy_j + (1 - share) * b.energy_j
    return Metrics(
        time_s=share * a.time_s + (1 - share) * b.time_s,
        energy_j=energy,
        n_switches=max(a.n_switches, b.n_switches),
        switching_s=share * a.switching_s + (1 - share) * b.switching_s,
        energy_reason=a.energy_reason or b.energy_reason,
        flags=tuple(dict.fromkeys((*a.flags, *b.flags))),
    )


def judged_again(solution: Solution, evaluate: Callable[[Schedule], Metrics]) -> Metrics:
    """What ``evaluate`` says of an answer that has a schedule: of the mean iteration if it is a mix."""
    assert solution.schedule is not None
    metrics = evaluate(solution.schedule)
    if solution.alternate is None:
        return metrics
    return blend(metrics, evaluate(solution.alternate), solution.share)


def _lower_hull(candidates: Sequence[Judged]) -> list[Judged]:
    """Those that no mix of others beats in both time and energy, by rising time."""
    hull: list[Judged] = []
    for one in sorted(candidates, key=lambda one: (one.time_s, one.energy_j)):
        if hull and one.energy_j >= hull[-1].energy_j:
            continue
        while len(hull) > 1 and _turns_up(hull[-2], hull[-1], one):
            hull.pop()
        hull.append(one)
    return hull


def _turns_up(a: Judged, b: Judged, c: Judged) -> bool:
    """Is ``b`` on or above the line from ``a`` to ``c``?"""
    return (b.energy_j - a.energy_j) * (c.time_s - a.time_s) >= (c.energy_j - a.energy_j) * (
        b.time_s - a.time_s
    )


def _meeting(
    a: Judged, b: Judged, limit: float, of: Callable[[Judged], float]
) -> tuple[Judged, Judged, float]:
    """The mix of two that meets a budget; rounded so that it keeps it."""
    share = (of(b) - limit) / (of(b) - of(a))
    while share * of(a) + (1 - share) * of(b) > limit:
        share += 1e-15 if of(a) < of(b) else -1e-15
    return a, b, share
