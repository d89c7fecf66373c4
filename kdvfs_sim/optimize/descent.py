"""One choice for launches that are no neighbours, where changes cost: coordinate descent.

Which clocks are best for one kind depends on those of the kinds around it, every time it comes; no
exact method is known that does better than trying all. So one group at a time is given each of
the clocks in turn, the whole walk is priced, and the best is kept, until nothing improves: first
for a weighted sum of energy and time, then for the objective itself within the budget.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kdvfs_sim.core.compiled import borrowing
from kdvfs_sim.optimize.additive import Ints
from kdvfs_sim.optimize.changes import Model
from kdvfs_sim.optimize.placement import walk
from kdvfs_sim.optimize.target import Effort, Outcome, Target

MAX_ROUNDS = 8
MAX_STEPS = 100_000_000  # launches walked by the descents of one answer, a few seconds at most
LAPS = 3  # of a periodic walk: two to find its round, and the one that is priced


class Price(NamedTuple):
    """``energy ** energy_power * time ** time_power + energy_weight * energy + time_weight * time``
    within the budgets, in J and ns; infinite beyond them."""

    energy_power: float
    time_power: float
    energy_weight: float
    time_weight: float
    max_time_ns: float
    max_energy_j: float


def weighed(energy_weight: float, time_weight: float) -> Price:
    """A weighted sum without a budget."""
    return Price(0.0, 0.0, energy_weight, time_weight, np.inf, np.inf)


def objective(target: Target) -> Price:
    """What a target asks for."""
    energy_power = 0.0 if target.minimize == "time" else 1.0
    time_power = {"energy": 0.0, "time": 1.0, "edp": 1.0, "ed2p": 2.0}[target.minimize]
    return Price(energy_power, time_power, 0.0, 0.0, target.max_time_ns, target.max_energy_j)


def descend(
    model: Model, group: Ints, start: int, clocks: Ints, price: Price, effort: Effort
) -> tuple[Ints, Outcome]:
    """From clocks a group (n_groups,) to better ones, and what they come to, launch by launch.

    ``group[i]`` is launch i's; ``start`` the clocks in force at first, one-shot. A step of ``effort``: one
    launch walked.
    """
    clocks, choice = clocks.copy(), clocks[group]
    requests = np.empty((2 * len(choice) + 1, 3), dtype=np.int64)
    time_ns, energy_j = _run(model, choice, start, requests)
    n_steps = int(model.rules.requestable.sum()) * len(choice)
    for _ in range(MAX_ROUNDS):
        before = _value(price, time_ns, energy_j)
        for g in range(len(clocks)):  # compiled code does not hear of interrupts: a group at a time
            if effort.steps <= 0:
                break
            effort.steps -= n_steps
            clocks[g], time_ns, energy_j = _improve(
                model, choice, group, g, start, price, requests, time_ns, energy_j
            )
        if not _value(price, time_ns, energy_j) < before:
            break
    return clocks, Outcome(time_ns, energy_j, choice, (0, int(choice[-1])))


@borrowing
def _improve(
    model: Model,
    choice: Ints,
    group: Ints,
    g: int,
    start: int,
    price: Price,
    requests: Ints,
    time_ns: int,
    energy_j: float,
) -> tuple[int, int, float]:
    """Give a group the best clocks, all others as they are: the clocks, and what it all comes to."""
    at = 0
    while group[at] != g:
        at += 1
    kept = choice[at]
    tried = kept
    best = _value(price, time_ns, energy_j)
    for c in range(len(model.rules.requestable)):
        if c == kept or not model.rules.requestable[c]:
            continue
        _assign(choice, group, g, c)
        tried_ns, tried_j = _run(model, choice, start, requests)
        value = _value(price, tried_ns, tried_j)
        if value < best:
            best, tried, time_ns, energy_j = value, c, tried_ns, tried_j
    _assign(choice, group, g, tried)
    return tried, time_ns, energy_j


@borrowing
def _assign(choice: Ints, group: Ints, g: int, c: int) -> None:
    for i in range(len(group)):
        if group[i] == g:
            choice[i] = c


@borrowing
def _value(price: Price, time_ns: int, energy_j: float) -> float:
    if time_ns < 0 or time_ns > price.max_time_ns or energy_j > price.max_energy_j:
        return np.inf
    weighed_sum: float = price.energy_weight * energy_j + price.time_weight * time_ns
    if price.energy_power == 0.0 and price.time_power == 0.0:
        return weighed_sum
    product: float = energy_j**price.energy_power * float(time_ns) ** price.time_power
    return weighed_sum + product


@borrowing
def _run(model: Model, choice: Ints, start: int, requests: Ints) -> tuple[int, float]:
    """Time in ns, -1 if it is not allowed, and energy of a choice."""
    n = len(choice)
    if not model.rules.periodic:
        _, _, time_ns, energy_j, _ = walk(model, choice, 0, start, n, requests)
        return time_ns, energy_j
    i, c = 0, choice[n - 1]
    time_ns, energy_j = 0, 0.0
    for _ in range(LAPS):
        first, clock = i, c
        arrival, c, time_ns, energy_j, _ = walk(model, choice, i, c, n, requests)
        if time_ns < 0:
            break
        i = arrival - n
        if (i, c) == (first, clock):
            break
    return time_ns, energy_j
