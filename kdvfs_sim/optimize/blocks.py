"""Chains too long to hold everything about: swept and walked block by block.

A change decided in a block lands no further than ``n_ahead`` launches beyond it, so a block is swept
together with that much of the next one, whose values are known by then. Only plans are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kdvfs_sim.optimize.additive import Bools, Cells
from kdvfs_sim.optimize.changes import Model
from kdvfs_sim.optimize.frontier import ROUNDING
from kdvfs_sim.optimize.landings import Plan
from kdvfs_sim.optimize.placement import Placed, walk
from kdvfs_sim.optimize.sweep import sweep, trace
from kdvfs_sim.optimize.target import Outcome

LONG = 20_000_000  # launches times clocks from which on a chain is cut into blocks
BLOCK = 8192  # launches


@dataclass(kw_only=True)
class LongPaths:
    """From the first boundary to the last, one-shot; an ``Oracle``.

    ``build`` makes the model of a part of the chain from its cells and from where changes are
    allowed. ``start``: clocks in force at first.
    """

    cells: Cells
    may_change: Bools
    build: Callable[[Cells, Bools], Model]
    start: int
    n_ahead: int

    def __post_init__(self) -> None:
        self._firsts = range(0, len(self.cells.kind), max(BLOCK, self.n_ahead))

    def __call__(self, energy_weight: float, time_weight: float, /) -> tuple[float, Outcome | None]:
        n_clocks = self.cells.allowed.shape[1]
        plans: dict[int, Plan] = {}
        levels: list[float] = []  # taken off the values of each block: small numbers add up precisely
        ahead = np.zeros((1, n_clocks))
        for first in reversed(self._firsts):
            model, stop = self._part(first)
            value = np.empty((len(model.cells.kind) + 1, n_clocks))
            value[stop:] = ahead[: len(value) - stop]
            plan = Plan(
                np.empty((stop, n_clocks), dtype=np.int16), np.empty((stop, n_clocks), dtype=np.int32)
            )
            sweep(model, energy_weight, time_weight, value, plan)
            level = float(value[: self.n_ahead + 1].min())
            if level == np.inf:
                return np.inf, None
            levels.append(level)
            plans[first], ahead = plan, value[: self.n_ahead + 1] - level
        if ahead[0, self.start] == np.inf:
            return np.inf, None
        choice = np.empty(len(self.cells.kind), dtype=np.int64)
        i, c, total_ns, total_j = 0, self.start, 0, 0.0
        for first in self._firsts:
            model, _ = self._part(first)
            i, c, time_ns, energy_j = trace(model, plans[first], i - first, c, choice[first:])
            i, total_ns, total_j = i + first, total_ns + time_ns, total_j + energy_j
        outcome = Outcome(total_ns, total_j, choice, (0, self.start))
        return math.fsum((*levels, ahead[0, self.start])) * (1 - ROUNDING), outcome

    def place(self, outcome: Outcome) -> Placed | None:
        """The requests that bring an outcome about."""
        choice, n = outcome.choice, len(outcome.choice)
        requests = np.empty((2 * n + 1, 3), dtype=np.int64)
        i, c, total_ns, total_j, used = 0, self.start, 0, 0.0, 0
        for first in self._firsts:
            model, stop = self._part(first)
            part = choice[first : first + len(model.cells.kind)]
            i, c, time_ns, energy_j, more = walk(model, part, i - first, c, stop, requests[used:])
            if time_ns < 0:
                return None
            requests[used : used + more, 0] += first
            i, total_ns, total_j, used = i + first, total_ns + time_ns, total_j + energy_j, used + more
        kept = requests[:used].copy() if used else np.array([[0, 0, self.start]])
        return Placed(requests=kept, time_ns=total_ns, energy_j=total_j)

    def _part(self, first: int) -> tuple[Model, int]:
        """A block with what of the next one it needs, and the number of launches of the block."""
        stop = min(first + self._firsts.step, len(self.cells.kind))
        part = slice(first, stop + self.n_ahead)
        cells = self.cells._replace(
            kind=self.cells.kind[part],
            duration_ns=self.cells.duration_ns[part],
            gap_ns=self.cells.gap_ns[part],
            floor_ns=self.cells.floor_ns[part] * (first == 0),
            hidden_ns=self.cells.hidden_ns[part],
            allowed=self.cells.allowed[part],
        )
        model = self.build(cells, self.may_change[part])
        at_once = model.rules.at_once and first == 0
        return model._replace(rules=model.rules._replace(at_once=at_once)), stop - first
