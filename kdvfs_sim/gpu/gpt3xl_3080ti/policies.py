"""The paper's policies over time and energy surfaces, by a Lagrange multiplier.

One clock pair for each kernel, all its calls alike. With a multiplier every kernel chooses by itself; where
a budget falls between two such choices the rest of it is spent on the exchanges that pay best.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
_BISECTIONS: Final = 60
_SLOPES: Final = 400


@dataclass(frozen=True, kw_only=True, eq=False)
class Iteration:
    """(n_kernels, n_clocks): time and energy of all calls of a kernel; ``row``: that of AUTO."""

    time: Floats
    energy: Floats
    row: int

    def sums(self, choice: Rows) -> tuple[float, float]:
        """Total time and energy of a choice of one row for each kernel."""
        kernels = np.arange(len(choice))
        return float(self.time[kernels, choice].sum()), float(self.energy[kernels, choice].sum())

    def percent(self, choice: Rows) -> tuple[float, float]:
        """Time and energy of a choice against AUTO, in per cent."""
        base = (self.time[:, self.row].sum(), self.energy[:, self.row].sum())
        time, energy = self.sums(choice)
        return 100.0 * (time / base[0] - 1.0), 100.0 * (energy / base[1] - 1.0)

    def local(self) -> Rows:
        """Least energy with no kernel slower than at AUTO."""
        allowed = self.time <= self.time[:, self.row, None]
        return _cheapest(np.where(allowed, self.energy, np.inf))

    def in_total(self) -> Rows:
        """Least energy with the sum no slower than at AUTO: the dual's choice or AUTO, slack spent."""
        budget = float(self.time[:, self.row].sum())
        low, high = 0.0, 1e3 * float(self.energy[:, self.row].sum()) / budget
        for _ in range(_BISECTIONS):
            slope = (low + high) / 2.0
            fits = self.sums(_cheapest(self.energy + slope * self.time))[0] <= budget
            low, high = (low, slope) if fits else (slope, high)
        starts = (_cheapest(self.energy + high * self.time), np.full(len(self.time), self.row))
        found = [self._spend(start, budget) for start in starts if self.sums(start)[0] <= budget]
        return min(found, key=lambda choice: self.sums(choice)[1])

    def _spend(self, choice: Rows, budget: float) -> Rows:
        """Exchange one kernel's clocks after another's, the largest saving that fits the budget first."""
        kernels = np.arange(len(choice))
        while True:
            slack = budget - self.sums(choice)[0]
            slower = self.time - self.time[kernels, choice][:, None]
            saved = np.where(slower <= slack, self.energy[kernels, choice][:, None] - self.energy, 0.0)
            kernel, row = np.unravel_index(saved.argmax(), saved.shape)
            moved = choice.copy()
            moved[kernel] = row
            if saved[kernel, row] <= 0.0 or self.sums(moved)[0] > budget:
                return choice
            choice = moved

    def edp_local(self) -> Rows:
        """Every kernel's own least product of time and energy."""
        return _cheapest(self.time * self.energy)

    def edp_in_total(self) -> Rows:
        """Least product of the sums: it lies on the lower hull, where a multiplier finds it."""
        scale = float(self.energy[:, self.row].sum() / self.time[:, self.row].sum())
        slopes = scale * np.geomspace(1e-2, 1e2, _SLOPES)
        choices = [_cheapest(self.energy + slope * self.time) for slope in slopes]
        return min(choices, key=lambda choice: np.prod(self.sums(choice)))

    def floor(self) -> Rows:
        """Least energy, whatever it takes."""
        return _cheapest(self.energy)


def _cheapest(cost: Floats) -> Rows:
    rows: Rows = cost.argmin(axis=1)
    return rows
