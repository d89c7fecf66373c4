"""Between two paths: the beginning of one, the rest of the other.

Where many launches are alike, a multiplier moves them all at once, and the paths on both sides of
a budget lie far apart. Any joint of the two costs little more than the multiplier's bound, and one
launch further along it uses only a little more of the budget.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kdvfs_sim.optimize.placement import Placed
from kdvfs_sim.optimize.target import Outcome, Target


def splice(
    place: Callable[[Outcome], Placed | None],
    within: Outcome,
    beyond: Outcome,
    target: Target,
    enough: float,
) -> list[Outcome]:
    """Joints within the budget, first with the beginning of ``within``, then with its end.

    The cut is searched where the budget should be met if what is used were linear in it, and by
    halving; ``enough``: a value of the objective with which the search may end.
    """
    by_time, n = target.max_time_ns < np.inf, len(within.choice)

    def beyond_budget(o: Outcome) -> float:
        return o.time_ns - target.max_time_ns if by_time else o.energy_j - target.max_energy_j

    found: list[Outcome] = []
    for within_first in (True, False):
        few, most = 0, n  # launches taken from ``within``
        over, under = beyond_budget(beyond), beyond_budget(within)
        halve = False
        while most - few > 1 and not any(target.value(*o[:2]) <= enough for o in found):
            share = 0.5 if halve or over <= under else over / (over - under)
            middle = min(max(few + int(share * (most - few)) + 1, few + 1), most - 1)
            halve = not halve
            joint = _joint(place, within, beyond, middle if within_first else middle - n)
            if joint is not None and target.allows(joint):
                most, under = middle, beyond_budget(joint)
                found.append(joint)
            else:
                few, over = middle, over if joint is None else beyond_budget(joint)
    return sorted(found, key=lambda o: target.value(o.time_ns, o.energy_j))[:3]


def _joint(
    place: Callable[[Outcome], Placed | None], within: Outcome, beyond: Outcome, cut: int
) -> Outcome | None:
    """``within`` up to the cut and ``beyond`` after it; a cut from the end: the other way round."""
    first, second = (within, beyond) if cut > 0 else (beyond, within)
    choice = np.concatenate([first.choice[:cut], second.choice[cut:]])
    outcome = first._replace(choice=choice)
    placed = place(outcome)
    if placed is None or not placed.settled:
        return None
    return outcome._replace(time_ns=placed.time_ns, energy_j=placed.energy_j)
