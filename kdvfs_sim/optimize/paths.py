"""Switching: least weighted cost over all schedules of a chain, as an oracle for ``frontier``.

``one-shot``: a sweep from the end; the value at the first boundary is the minimum.

``periodic``: a schedule is a closed walk, one iteration long. With any guess ``h`` of what is still
to come after each state, a sweep over one iteration gives ``v``, and every closed walk through a
state ``s`` costs at least ``v(s) - h(s)``. So the least difference over states that no closed walk
can avoid is a lower bound, whatever the guess; taking ``v`` as the next guess tightens it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from kdvfs_sim.optimize.additive import Floats
from kdvfs_sim.optimize.changes import Model
from kdvfs_sim.optimize.frontier import ROUNDING
from kdvfs_sim.optimize.sweep import Plan, new_plan, sweep, trace
from kdvfs_sim.optimize.target import Outcome

MAX_LAPS = 10
CONVERGED = 1e-12


@dataclass(kw_only=True)
class PathOracle:
    """Minimizes a weighted sum of energy and time over the schedules of a model.

    ``start``: row in force at first (one-shot). Keeps the last sweep's values as the first guess of
    the next, so answers depend, within rounding, on what was asked before.
    """

    model: Model
    start: int
    guess: Floats | None = None
    n_sweeps: int = 0
    cut: int = field(init=False)
    _plan: Plan = field(init=False)
    _value: Floats = field(init=False)

    def __post_init__(self) -> None:
        self._plan = new_plan(self.model)
        boundaries = self.model.runs.start_ns.shape[1]
        self._value = np.empty((boundaries, self.model.cells.allowed.shape[1]))

        self.cut = _unavoidable(self.model) if self.model.rules.periodic else 1

    @property
    def n_launches(self) -> int:
        return len(self.model.cells.kind)

    def __call__(self, energy_weight: float, time_weight: float, /) -> tuple[float, Outcome | None]:
        if self.model.rules.periodic:
            return self._closed_walk(energy_weight, time_weight)
        self._value[self.n_launches :] = 0.0
        self._sweep(energy_weight, time_weight)
        value = float(self._value[0, self.start])
        if value == np.inf:
            return np.inf, None
        return value * (1 - ROUNDING), self._follow(0, self.start)[1]

    def _sweep(self, energy_weight: float, time_weight: float) -> None:
        self.n_sweeps += 1
        sweep(self.model, energy_weight, time_weight, self._value, self._plan)

    def _follow(self, i: int, clock: int) -> tuple[tuple[int, int], Outcome]:
        """The state in which the next iteration begins, and what the plan comes to until then."""
        choice = np.empty(self.n_launches, dtype=np.int64)
        arrival, reached, time_ns, energy_j = trace(self.model, self._plan, i, clock, choice)
        return (arrival - self.n_launches, reached), Outcome(time_ns, energy_j, choice, (i, clock))

    def _closed_walk(self, energy_weight: float, time_weight: float) -> tuple[float, Outcome | None]:
        n = self.n_launches
        guess = np.zeros((n, self._value.shape[1]))
        if self.guess is not None and energy_weight == 1:  # of the same size, or precision is lost
            guess = self.guess
        self._value[2 * n] = np.inf
        bound, best_cost = -np.inf, np.inf
        best: Outcome | None = None
        state, stale = (0, 0), 0
        for _ in range(MAX_LAPS):
            self._value[n : 2 * n] = guess
            self._sweep(energy_weight, time_weight)
            cut = self._value[: self.cut]
            change = np.full(cut.shape, np.inf)
            np.subtract(cut, guess[: self.cut], out=change, where=np.isfinite(cut))
            least = float(change.min())
            if least == np.inf:
                return np.inf, None
            stale = 0 if least > bound + CONVERGED * abs(bound) else stale + 1
            bound = max(bound, least)
            state, outcome = self._fixed_point(divmod(int(change.argmin()), cut.shape[1]))
            if outcome is not None:
                cost = energy_weight * outcome.energy_j + time_weight * outcome.time_ns
                if cost < best_cost:
                    best, best_cost = outcome, cost
            if best_cost <= bound * (1 + CONVERGED) or stale > 2:
                break
            guess = self._value[:n] - cut.min()
        if energy_weight == 1:
            self.guess = guess
        if best is None:  # the best plan goes round in several iterations
            best = self._through(state, energy_weight, time_weight) or self._unchanged(
                energy_weight, time_weight
            )
        return bound * (1 - ROUNDING), best

    def _fixed_point(self, state: tuple[int, int]) -> tuple[tuple[int, int], Outcome | None]:
        """Follow the plan, iteration after iteration, to a state that it brings back."""
        for _ in range(4):
            reached, outcome = self._follow(*state)
            if reached == state:
                return state, outcome
            state = reached
        return state, None

    def _through(self, state: tuple[int, int], energy_weight: float, time_weight: float) -> Outcome | None:
        """The best closed walk through one state."""
        n = self.n_launches
        self._value[n:] = np.inf
        self._value[n + state[0], state[1]] = 0.0
        self._sweep(energy_weight, time_weight)
        return self._follow(*state)[1] if np.isfinite(self._value[state]) else None

    def _unchanged(self, energy_weight: float, time_weight: float) -> Outcome | None:
        """The best without any change."""
        n, runs = self.n_launches, self.model.runs
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
    longest_ns = rules.trigger_ns + int(max(rules.ready_ns.max(), rules.switching_ns.max()))
    furthest = max(int(np.searchsorted(starts, longest_ns)) for starts in model.runs.start_ns)
    return min(2 * furthest + 4, n)
