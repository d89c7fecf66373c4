"""From one path others: its changes some launches sooner or later.

Where few changes fit, paths on both sides of a budget differ in nearly all of them, and neither joints nor
exchanges of the two come close to it. A change that moves along one path uses a little more of the
budget, or less, and costs little more than the multiplier's bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from kdvfs_sim.optimize.frontier import Weights
from kdvfs_sim.optimize.placement import Placed
from kdvfs_sim.optimize.target import Effort, Outcome, Target

FURTHEST = 64  # launches that a change is moved by at a time
MAX_STEPS = 2_000_000  # launches walked from one path, some 30 ms
PENALTY = 3  # times what the multiplier says that the budget is worth: what exceeds it is brought back


def shift(
    place: Callable[[Outcome], Placed | None],
    outcome: Outcome,
    target: Target,
    weights: Weights,
    enough: float,
) -> Outcome:
    """The best that moving one change after another makes of a path near a budget that binds.

    ``weights``: of energy and time, at which the path is about as good as any. ``enough``: a value of the
    objective with which the search may end.
    """
    (energy_weight, time_weight), effort = weights, Effort(MAX_STEPS)

    def cost(o: Outcome) -> float:
        """From beyond the budget the way back may lead through what is beyond it, from within it not out."""
        if target.allows(outcome) and not target.allows(o):
            return np.inf
        if target.max_time_ns < np.inf:
            over_ns = max(0.0, o.time_ns - target.max_time_ns)
            return energy_weight * o.energy_j + PENALTY * time_weight * over_ns
        return time_weight * o.time_ns + PENALTY * energy_weight * max(0.0, o.energy_j - target.max_energy_j)

    while not (target.allows(outcome) and target.value(outcome.time_ns, outcome.energy_j) <= enough):
        better = min(_moved(place, outcome, effort), key=cost, default=outcome)
        if not cost(better) < cost(outcome):
            break
        outcome = better
    return outcome


def _moved(place: Callable[[Outcome], Placed | None], outcome: Outcome, effort: Effort) -> Iterator[Outcome]:
    """The same with one change 1, 2, 4 ... launches sooner or later."""
    choice, n = outcome.choice, len(outcome.choice)
    for at in np.flatnonzero(choice != np.roll(choice, 1)):
        before, after = choice[at - 1], choice[at]
        by = 1
        while by <= min(FURTHEST, n):
            for launches, clock in ((np.arange(at - by, at), after), (np.arange(at, at + by), before)):
                if effort.steps <= 0:
                    return
                effort.steps -= n
                moved = choice.copy()
                moved[launches % n] = clock
                placed = place(outcome._replace(choice=moved))
                if placed is not None and placed.settled:
                    yield outcome._replace(time_ns=placed.time_ns, energy_j=placed.energy_j, choice=moved)
            by *= 2
