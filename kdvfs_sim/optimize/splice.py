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
    place: Callable[[Outcome], Placed | None], within: Outcome, beyond: Outcome, target: Target
) -> list[Outcome]:
    """Joints within the budget, by bisection: with the beginning of ``within``, and with its end."""
    found = []
    for within_first in (True, False):
        few, most = 0, len(within.choice)  # launches taken from ``within``
        while most - few > 1:
            middle = (few + most) // 2
            joint = _joint(place, within, beyond, middle if within_first else middle - len(within.choice))
            if joint is not None and target.allows(joint):
                most = middle
                found.append(joint)
            else:
                few = middle
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
