"""Switching: least weighted cost over all schedules of a chain, as oracles for ``frontier``.

``OpenPaths``, one-shot: a sweep from the end; the value of the first state is the minimum.

``ClosedPaths``, periodic: a schedule is a closed walk, one iteration long. With any guess ``h`` of
what is still to come after each state, a sweep over one iteration gives ``v``, and every closed
walk through a state ``s`` costs at least ``v(s) - h(s)``. So the least difference over states that
no closed walk can avoid is a lower bound, whatever the guess; taking ``v`` as the next guess
tightens it. It holds for walks of several iterations too, and so for mixes of walks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from kdvfs_sim.optimize.additive import Floats, Ints
from kdvfs_sim.optimize.changes import Model, begun_within, longest_ns
from kdvfs_sim.optimize.frontier import ROUNDING
from kdvfs_sim.optimize.landings import Plan
from kdvfs_sim.optimize.placement import Placed, place
from kdvfs_sim.optimize.sweep import new_plan, sweep, trace
from kdvfs_sim.optimize.target import Outcome

MAX_LAPS = 10
CONVERGED = 1e-12
N_MET = 4  # weights whose values are kept


class Sweep(NamedTuple):
    """A sweep that was made: its weights, its values (boundaries, clocks) and its plan."""

    energy_weight: float
    time_weight: float
    value: Floats
    plan: Plan


@dataclass(kw_only=True)
class OpenPaths:
    """From the first boundary to the last; an ``Oracle``.

    ``start``: clocks in force at first. ``sweeps``: all that were made, for whoever wants to close
    the gap.
    """

    model: Model
    start: int
    sweeps: list[Sweep] = field(default_factory=list)

    def __call__(self, energy_weight: float, time_weight: float, /) -> tuple[float, Outcome | None]:
        n, n_clocks = self.model.cells.allowed.shape
        value, plan = np.empty((n + 1, n_clocks)), new_plan(self.model)
        value[n] = 0.0
        sweep(self.model, energy_weight, time_weight, value, plan)
        self.sweeps.append(Sweep(energy_weight, time_weight, value, plan))
        if value[0, self.start] == np.inf:
            return np.inf, None
        choice = np.empty(n, dtype=np.int64)
        _, _, time_ns, energy_j = trace(self.model, plan, 0, self.start, choice)
        outcome = Outcome(time_ns, energy_j, choice, (0, self.start))
        return float(value[0, self.start]) * (1 - ROUNDING), outcome

    def place(self, outcome: Outcome) -> Placed | None:
        """The requests that bring an outcome about."""
        return place(self.model, outcome.choice, (0, self.start))


@dataclass(kw_only=True)
class ClosedPaths:
    """Round and round; an ``Oracle``.

    Guesses first what the last weights' values say of the next: they are concave in the weight, with few
    kinks. So answers depend, within rounding or ``gap``, on what was asked before. ``gap`` (relative): how
    far from the best walk found a bound may stay.
    """

    model: Model
    gap: float = CONVERGED
    _met: list[tuple[float, Floats]] = field(default_factory=list)  # the last weights of time, and values
    _plan: Plan = field(init=False)
    _value: Floats = field(init=False)
    _cut: int = field(init=False)
    _reach: Ints = field(init=False)

    def __post_init__(self) -> None:
        n, n_clocks = self.model.cells.allowed.shape
        self._plan = new_plan(self.model)
        self._value = np.full((2 * n + 1, n_clocks), np.inf)
        self._cut = _unavoidable(self.model)
        begun = begun_within(self.model.cells, longest_ns(self.model.rules))
        self._reach = np.maximum.accumulate(begun) + 3  # lookahead requests may wait for the next boundary

    def __call__(self, energy_weight: float, time_weight: float, /) -> tuple[float, Outcome | None]:
        n, n_clocks = self.model.cells.allowed.shape
        guess = np.zeros((n, n_clocks))
        if energy_weight == 1 and self._met:  # of the same size, or precision is lost
            guess = self._first_guess(time_weight)
        bound, best_cost = -np.inf, np.inf
        best: Outcome | None = None
        stale = 0
        for lap in range(MAX_LAPS):
            self._value[n : 2 * n] = guess
            reach = self._reach if lap else None
            sweep(self.model, energy_weight, time_weight, self._value, self._plan, reach=reach)
            cut = self._value[: self._cut]
            change = np.full(cut.shape, np.inf)
            np.subtract(cut, guess[: self._cut], out=change, where=np.isfinite(cut))
            least = float(change.min())
            if least == np.inf:
                return np.inf, None
            stale = 0 if least > bound + CONVERGED * abs(bound) else stale + 1
            bound = max(bound, least)
            outcome = self._fixed_point(divmod(int(change.argmin()), n_clocks))
            if outcome is not None:
                cost = energy_weight * outcome.energy_j + time_weight * outcome.time_ns
                if cost < best_cost:
                    best, best_cost = outcome, cost
            if best_cost <= bound * (1 + self.gap) or stale > 2:
                break
            guess = self._value[:n] - cut.min()
        if energy_weight == 1:
            values = self._value[:n] - self._value[: self._cut].min()
            self._met = [*self._met[1 - N_MET :], (time_weight, values)]
        if best is None:  # the best plan goes round in several iterations
            best = self._unchanged(energy_weight, time_weight)
        return bound * (1 - ROUNDING), best

    def place(self, outcome: Outcome) -> Placed | None:
        """The requests that bring an outcome about."""
        return None if outcome.begin is None else place(self.model, outcome.choice, outcome.begin)

    def _first_guess(self, time_weight: float) -> Floats:
        """The values on the line through those of the two nearest weights."""
        near = sorted(self._met, key=lambda met: abs(met[0] - time_weight))
        weight, guess = near[0]
        other, values = next((met for met in near if met[0] != weight), near[0])
        if other == weight:
            return guess
        share = (time_weight - weight) / (other - weight)
        with np.errstate(invalid="ignore"):
            on_line = guess + max(share, -1.0) * (values - guess)  # no further out than they lie apart
        return np.where(np.isfinite(on_line), on_line, guess)

    def _fixed_point(self, state: tuple[int, int]) -> Outcome | None:
        """Follow the plan, iteration after iteration, to a state that it brings back."""
        n = len(self.model.cells.kind)
        for _ in range(4):
            choice = np.empty(n, dtype=np.int64)
            arrival, clock, time_ns, energy_j = trace(self.model, self._plan, *state, choice)
            if (arrival - n, clock) == state:
                return Outcome(time_ns, energy_j, choice, state)
            state = (arrival - n, clock)
        return None

    def _unchanged(self, energy_weight: float, time_weight: float) -> Outcome | None:
        """The best without any change."""
        runs, n = self.model.runs, len(self.model.cells.kind)
        cost = energy_weight * runs.energy_j[:, n] + time_weight * runs.start_ns[:, n]
        cost = np.where((runs.barred[:, n] == 0) & self.model.rules.requestable, cost, np.inf)
        c = int(cost.argmin())
        if cost[c] == np.inf:
            return None
        choice = np.full(n, c, dtype=np.int64)
        return Outcome(int(runs.start_ns[c, n]), float(runs.energy_j[c, n]), choice, (0, c))


def _unavoidable(model: Model) -> int:
    """Number of first boundaries, one of which every closed walk has a state at: a change that is
    in flight at the end of an iteration is over by then."""
    rules, n = model.rules, len(model.cells.kind)
    if rules.drains:
        return 1
    within_ns = longest_ns(rules)
    furthest = max(int(np.searchsorted(starts, within_ns)) for starts in model.runs.start_ns)
    return min(2 * furthest + 4, n)
