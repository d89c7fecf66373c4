"""From two schedules a third: of every stretch between states that both pass, either version.

Where two schedules are in the same state at the same boundary, either may go on as the other does.
What lies between two such states is then a choice of its own, and all of them together are a knapsack
with two choices a stretch. Launches that are alike give stretches that are alike, and a budget that no
multiplier meets is met by changing some of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kdvfs_sim.optimize.changes import Model
from kdvfs_sim.optimize.frontier import Weights
from kdvfs_sim.optimize.knapsack import MAX_STEPS, close_core
from kdvfs_sim.optimize.placement import MAX_LAPS, Course, place, walk
from kdvfs_sim.optimize.target import Effort, Outcome, Target

NEAR = 4  # outcomes on each side of the budget that are tried with each other
FEW = 3
MOST = 2000  # stretches to choose from; of more, neighbours go together
FINE = 0.05  # of the gap asked for, to which the choice is made


class _Passed(NamedTuple):
    """An outcome, and what it passes."""

    outcome: Outcome
    course: Course


def exchanges(
    model: Model, outcomes: Sequence[Outcome], target: Target, weights: Weights, *, gap: float, enough: float
) -> list[Outcome]:
    """What pairs of outcomes on both sides of a budget that binds make within it: the best few.

    ``weights``: of energy and time, at which the outcomes are about as good. ``enough``: a value of the
    objective with which the search may end.
    """

    def value(passed: _Passed) -> float:
        return target.value(passed.outcome.time_ns, passed.outcome.energy_j)

    def weighed(outcome: Outcome) -> float:
        return weights[0] * outcome.energy_j + weights[1] * outcome.time_ns

    different = {(o.time_ns, o.energy_j): o for o in sorted(outcomes, key=weighed, reverse=True)}
    passed = [_Passed(o, course) for o in reversed(different.values()) if (course := _course(model, o))]
    within = [one for one in passed if target.allows(one.outcome)]
    beyond = [one for one in passed if not target.allows(one.outcome)][:NEAR]
    pairs = sorted(
        itertools.product(within[:NEAR], beyond), key=lambda ab: weighed(ab[0][0]) + weighed(ab[1][0])
    )
    best = min(within, key=value, default=None)
    found: list[Outcome] = []
    while pairs and best is not None and value(best) > enough:
        a, b = pairs.pop(0)
        outcome = exchange(model, a, b, target, weights, gap * FINE)
        if outcome is None:
            continue
        found.append(outcome)
        course = _course(model, outcome)
        if course is not None and target.value(*outcome[:2]) < value(best):
            best = _Passed(outcome, course)
            pairs = [(best, other) for other in beyond if other is not b] + pairs
    return sorted(found, key=lambda o: target.value(o.time_ns, o.energy_j))[:FEW]


def exchange(
    model: Model, a: _Passed, b: _Passed, target: Target, weights: Weights, enough: float
) -> Outcome | None:
    """The best of what stretches of ``a`` and ``b`` make within a budget, to within ``enough`` (relative);
    None if that is nothing new."""
    n, first = len(a.outcome.choice), 0
    one, other = a.course, b.course
    if model.rules.periodic:  # any state that both pass is as good a beginning
        shared = np.flatnonzero((one.clock == other.clock) & (one.clock >= 0))
        if not len(shared):
            return None
        first = int(shared[0]) % n
        one, other = _turned(one, first), _turned(other, first)
    same = (one.clock == other.clock) & (one.clock >= 0)
    same[-1] = True  # the end, or the beginning again
    joints = np.flatnonzero(same)
    joints = np.append(joints[: -1 : len(joints) // MOST + 1], joints[-1])
    time_ns = np.stack([np.diff(course.time_ns[joints]) for course in (one, other)], axis=1)
    energy_j = np.stack([np.diff(course.energy_j[joints]) for course in (one, other)], axis=1)
    differs = (time_ns[:, 0] != time_ns[:, 1]) | (energy_j[:, 0] != energy_j[:, 1])
    if differs.sum() < 2:
        return None
    cost, used, budget, (cost_weight, weight) = energy_j, time_ns.astype(float), target.max_time_ns, weights
    if budget == np.inf:
        cost, used, budget, (weight, cost_weight) = used, cost, target.max_energy_j, weights
    weight = weight / cost_weight if cost_weight > 0 else 0.0  # any is right, the best is fast
    left = budget - float(used[~differs, 0].sum())
    cost, used = cost[differs], used[differs]
    allowed = np.ones(cost.shape, dtype=np.bool_)
    picks, _ = close_core(cost, used, allowed, left, weight, enough, Effort(MAX_STEPS))
    if picks is None or picks.min() == picks.max():
        return None
    from_b = np.zeros(len(differs), dtype=np.bool_)
    from_b[differs] = picks == 1
    taken = (first + np.flatnonzero(np.repeat(from_b, np.diff(joints)))) % n
    choice = a.outcome.choice.copy()
    choice[taken] = b.outcome.choice[taken]
    begin = (first, int(one.clock[0]))
    placed = place(model, choice, begin)
    if placed is None or not placed.settled:
        return None
    outcome = Outcome(placed.time_ns, placed.energy_j, choice, begin)
    return outcome if target.allows(outcome) else None


def _course(model: Model, outcome: Outcome) -> Course | None:
    """What an outcome passes from the first boundary to the last, or, round and round, to the first of
    the next iteration, once it has found its way into a round."""
    n, state = len(outcome.choice), outcome.begin
    if state is None:
        return None
    size = 2 * n + 1
    requests = np.empty((size, 3), dtype=np.int64)
    course = Course(np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64), np.empty(size))
    for _ in range(MAX_LAPS):
        arrival, clock, time_ns, *_ = walk(model, outcome.choice, *state, n, requests, course)
        if time_ns < 0:
            return None
        first, state = state, (arrival - n, clock)
        if not model.rules.periodic or state == first:
            lap = Course(course.clock[: n + 1], course.time_ns[: n + 1], course.energy_j[: n + 1])
            return _turned(lap, -first[0] % n)
    return None


def _turned(lap: Course, first: int) -> Course:
    """The same round, begun ``first`` boundaries later."""
    clock, time_ns, energy_j = lap
    return Course(
        np.append(np.roll(clock[:-1], -first), clock[first]),
        np.append(time_ns[first:-1], time_ns[: first + 1] + time_ns[-1]) - time_ns[first],
        np.append(energy_j[first:-1], energy_j[: first + 1] + energy_j[-1]) - energy_j[first],
    )
