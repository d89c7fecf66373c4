"""An objective in the optimizers' own units: whole nanoseconds and joules."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from kdvfs_sim.core.problem import Minimize, Objective

# Relative: sums of energy in another order differ by less. What just fits a budget in the judge's sum must
# not be ruled out by another; what just breaks it the judge refuses.
SUMS: Final = 1e-11


class Outcome(NamedTuple):
    """One attainable point and the choice that attains it (a clock row per group or launch).

    ``begin``: launch and clock row of a state on the walk (periodic only), to walk it again from.
    """

    time_ns: int
    energy_j: float
    choice: npt.NDArray[np.int64]
    begin: tuple[int, int] | None = None


@dataclass(slots=True)
class Effort:
    """Steps that the parts of one search may still take: what one leaves is for the next. Counted and not
    timed, so that an answer does not depend on the machine."""

    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What to minimize and the budget; infinite where there is none."""

    minimize: Minimize
    max_time_ns: float = np.inf
    max_energy_j: float = np.inf

    @classmethod
    def of(cls, objective: Objective) -> Target:
        time_ns = np.inf if objective.max_time_s is None else float(whole_ns(objective.max_time_s))
        energy_j = np.inf if objective.max_energy_j is None else objective.max_energy_j * (1 + SUMS)
        return cls(minimize=objective.minimize, max_time_ns=time_ns, max_energy_j=energy_j)

    @classmethod
    def of_mean(cls, objective: Objective) -> Target:
        """For mixes over iterations, whose mean time need not be a whole number of nanoseconds."""
        target = cls.of(objective)
        if objective.max_time_s is None:
            return target
        return replace(target, max_time_ns=objective.max_time_s * 1e9 * (1 + 1e-15))

    @property
    def binds(self) -> bool:
        """Is there a budget on one of energy and time, and the other to be minimized?"""
        budget = self.max_time_ns if self.minimize == "energy" else self.max_energy_j
        return self.minimize in ("energy", "time") and bool(np.isfinite(budget))

    @property
    def at_budget(self) -> Target | None:
        """For products of energy and time what is best where the budget is all used; None without one.

        They are least inside the budget, and then a corner of the hull, or else near its edge.
        """
        if self.minimize in ("energy", "time") or self.max_time_ns == self.max_energy_j == np.inf:
            return None
        return replace(self, minimize="energy" if self.max_time_ns < np.inf else "time")

    def value(self, time_ns: float, energy_j: float) -> float:
        """The number to minimize, in the objective's unit."""
        return Objective(minimize=self.minimize).value(time_ns / 1e9, energy_j)

    def allows(self, outcome: Outcome) -> bool:
        return outcome.time_ns <= self.max_time_ns and outcome.energy_j <= self.max_energy_j


def whole_ns(time_s: float) -> int:
    """The largest whole number of nanoseconds that, as seconds, does not exceed ``time_s``."""
    time_ns = int(time_s * 1e9) + 2
    while time_ns > 0 and time_ns / 1e9 > time_s:
        time_ns -= 1
    return time_ns
