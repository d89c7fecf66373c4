"""The baselines every answer is compared with: the best single lock, and a mix of two over iterations."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.core.problem import Metrics, Objective, Problem, Solution
from kdvfs_sim.core.schedule import Schedule


class Lock(NamedTuple):
    """One setting for everything, and what it gives."""

    schedule: Schedule
    metrics: Metrics
    time_s: float
    energy_j: float


def locked(problem: Problem, clocks: Clocks) -> Schedule:
    """One setting for everything on the problem's stream."""
    return Schedule.static(
        clocks,
        stream=problem.chain.stream,
        device=problem.chain.device,
        protocol=problem.protocol.name,
        boundary=problem.boundary,
    )


def locks(problem: Problem) -> list[Lock]:
    """Every single lock that may be requested and whose time and energy are known, as judged."""
    found = []
    costs = problem.costs
    needed = sorted(set(problem.chain.kind.tolist()))
    for row, clocks in enumerate(costs.clocks):
        known = costs.ratio[needed, row] == costs.ratio[needed, row]
        if not costs.requestable[row] or not known.all():
            continue
        metrics = problem.evaluate(schedule := locked(problem, clocks))
        if metrics.energy_j is not None:
            found.append(Lock(schedule, metrics, metrics.time_s, metrics.energy_j))
    return found


def static_lock(problem: Problem, candidates: list[Lock] | None = None) -> Solution:
    """The best single lock within the budget. One-shot, it pays the first change; periodic, none.

    Exact: every lock is judged.
    """
    found = locks(problem) if candidates is None else candidates
    objective = problem.objective
    allowed = [lock for lock in found if objective.allows(lock.time_s, lock.energy_j)]
    if not allowed:
        return Solution(
            status="infeasible", message="no single lock keeps the budget", n_evaluations=len(found)
        )
    best = min(allowed, key=lambda lock: (objective.value(lock.time_s, lock.energy_j), lock.time_s))
    return Solution(
        status="optimal",
        message=str(best.schedule.requests[0].clocks),
        schedule=best.schedule,
        metrics=best.metrics,
        lower_bound=objective.value(best.time_s, best.energy_j),
        n_evaluations=len(found),
    )


def static_mix(problem: Problem, candidates: list[Lock] | None = None) -> Solution:
    """Two locks alternated over iterations in any proportion, the budget kept on the mean.

    The best point of the locks' lower hull within the budget; changes between blocks of iterations
    are rare and not charged. Under ``one-shot`` there are no iterations to alternate.
    """
    if problem.boundary != "periodic":
        return Solution(status="not applicable", message="one-shot: there are no iterations to alternate")
    found = locks(problem) if candidates is None else candidates
    hull = _lower_hull(found)
    objective = problem.objective
    options = [(lock, lock, 1.0) for lock in hull]
    if objective.max_time_s is not None:
        limit = objective.max_time_s
        options += [_meeting(a, b, limit, lambda lock: lock.time_s) for a, b in _edges(hull, limit)]
    if objective.max_energy_j is not None:
        budget = objective.max_energy_j
        edges = [(a, b) for a, b in itertools.pairwise(hull) if b.energy_j < budget < a.energy_j]
        options += [_meeting(a, b, budget, lambda lock: lock.energy_j) for a, b in edges]
    judged = [(blend(a.metrics, b.metrics, share), a, b, share) for a, b, share in options]
    allowed = [option for option in judged if _allows(objective, option[0])]
    if not allowed:
        return Solution(
            status="infeasible", message="no mix of locks keeps the budget", n_evaluations=len(found)
        )
    metrics, a, b, share = min(allowed, key=lambda option: _value(objective, option[0]))
    names = [str(lock.schedule.requests[0].clocks) for lock in (a, b)]
    mixed = a is not b
    return Solution(
        status="optimal",
        message=f"{share:.1%} {names[0]}, the rest {names[1]}" if mixed else names[0],
        schedule=a.schedule,
        metrics=metrics,
        lower_bound=_value(objective, metrics),
        alternate=b.schedule if mixed else None,
        share=share,
        n_evaluations=len(found),
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


def _lower_hull(found: list[Lock]) -> list[Lock]:
    """Locks that no mix of others beats in both time and energy, by rising time."""
    hull: list[Lock] = []
    for lock in sorted(found, key=lambda lock: (lock.time_s, lock.energy_j)):
        if hull and lock.energy_j >= hull[-1].energy_j:
            continue
        while len(hull) > 1 and _turns_up(hull[-2], hull[-1], lock):
            hull.pop()
        hull.append(lock)
    return hull


def _turns_up(a: Lock, b: Lock, c: Lock) -> bool:
    """Is ``b`` on or above the line from ``a`` to ``c``?"""
    return (b.energy_j - a.energy_j) * (c.time_s - a.time_s) >= (c.energy_j - a.energy_j) * (
        b.time_s - a.time_s
    )


def _edges(hull: list[Lock], limit: float) -> list[tuple[Lock, Lock]]:
    return [(a, b) for a, b in itertools.pairwise(hull) if a.time_s < limit < b.time_s]


def _meeting(a: Lock, b: Lock, limit: float, of: Callable[[Lock], float]) -> tuple[Lock, Lock, float]:
    """The mix of two locks that meets a budget; rounded so that it keeps it."""
    share = (of(b) - limit) / (of(b) - of(a))
    while share * of(a) + (1 - share) * of(b) > limit:
        share += 1e-15 if of(a) < of(b) else -1e-15
    return a, b, share


def _allows(objective: Objective, metrics: Metrics) -> bool:
    return metrics.energy_j is not None and objective.allows(metrics.time_s, metrics.energy_j)


def _value(objective: Objective, metrics: Metrics) -> float:
    assert metrics.energy_j is not None
    return objective.value(metrics.time_s, metrics.energy_j)
