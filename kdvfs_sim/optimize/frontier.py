"""The lower-left frontier of time and energy, explored by weighing one against the other.

An *oracle* minimizes ``a * energy + b * time`` over all choices. Its value is a supporting line:
every choice, and every mix of choices, lies on or above it. The lines seen so far enclose what is
attainable from below, so the best objective on their envelope is a lower bound, whatever the
objective; where it is attained tells which weights to try next. For a time budget this is the
secant method on the Lagrangian dual; for EDP and ED2P, which are quasi-concave, it ends at a
vertex of the hull, which is attained, and the bound is tight.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from kdvfs_sim.optimize.target import Outcome, Target

Floats = npt.NDArray[np.float64]
Weights: TypeAlias = tuple[float, float]  # of energy in J, and of time in ns

ROUNDING = 1e-11  # relative: more than the sums in an oracle's value are off by
MAX_OUTWARD = 6  # calls to find both sides of a budget, before the extremes are asked for
FASTEST, CHEAPEST = (0.0, 1.0), (1.0, 0.0)  # the extreme weights


class Line(NamedTuple):
    """``energy_weight * energy_j + time_weight * time_ns >= value_j`` for everything attainable."""

    energy_weight: float
    time_weight: float
    value_j: float


class Oracle(Protocol):
    """Minimizes a weighted sum exactly.

    Returns the proven minimum, rounded down, and an outcome that attains it (or nearly, where a
    boundary condition stops it); infinity and None if there is nothing to choose. Weights are at
    least 0 and not both 0.
    """

    def __call__(self, energy_weight: float, time_weight: float, /) -> tuple[float, Outcome | None]: ...


@dataclass(kw_only=True)
class Frontier:
    """Lines and outcomes found so far."""

    lines: list[Line] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)

    def ask(self, oracle: Oracle, energy_weight: float, time_weight: float) -> Outcome | None:
        """Add what an oracle says of some weights."""
        value_j, outcome = oracle(energy_weight, time_weight)
        self.lines.append(Line(energy_weight, time_weight, value_j))
        if outcome is not None:
            self.outcomes.append(outcome)
        return outcome

    @property
    def least_time_ns(self) -> float:
        """Proven lower bound on time."""
        return max((v / b for a, b, v in self.lines if a == 0), default=0.0)

    def best(self, target: Target) -> Outcome | None:
        """The best outcome within the budget."""
        kept = [o for o in self.outcomes if target.allows(o)]
        return min(kept, key=lambda o: (target.value(o.time_ns, o.energy_j), o.time_ns), default=None)

    def sides(self, target: Target) -> tuple[Outcome | None, Outcome | None]:
        """The outcomes next to a budget that binds: the best within it, and the nearest beyond."""
        by_time = target.max_time_ns < np.inf
        beyond = [o for o in self.outcomes if not target.allows(o)]
        nearest = min(beyond, key=lambda o: o.time_ns if by_time else o.energy_j, default=None)
        return self.best(target), nearest

    def around(self, time_ns: float) -> tuple[Outcome | None, Outcome | None]:
        """The outcomes within a time and beyond it whose mix costs least there; of several, the nearest.

        An oracle that is not quite exact has outcomes that are nearer still, but are no corner of the hull.
        """
        # twice: a least time has been rounded down once, and (1 - r)(1 + r) is less than 1
        limit_ns = time_ns * (1 + 2 * ROUNDING)
        within = [o for o in self.outcomes if o.time_ns <= limit_ns]
        beyond = [o for o in self.outcomes if o.time_ns > limit_ns]
        within.sort(key=lambda o: (-o.time_ns, o.energy_j))
        beyond.sort(key=lambda o: (o.time_ns, o.energy_j))
        if not (within and beyond):
            return next(iter(within), None), next(iter(beyond), None)

        def mixed_j(pair: tuple[Outcome, Outcome]) -> float:
            left, right = pair
            share = max(0.0, time_ns - left.time_ns) / (right.time_ns - left.time_ns)
            return left.energy_j + share * (right.energy_j - left.energy_j)

        return min(itertools.product(within, beyond), key=mixed_j)

    def bound(self, target: Target) -> float:
        """Lower bound on the objective; infinite if the budget is proven out of reach."""
        return self.envelope_minimum(target)[1]

    def envelope(self, time_ns: float) -> float:
        """The least energy that the lines allow at a time, in J."""
        return max((v - b * time_ns) / a for a, b, v in self.lines if a > 0)

    def tightest(self, target: Target) -> tuple[Weights, ...]:
        """The weights of the two lines that bound best where the bound stands, first the tightest."""
        time_ns, bound = self.envelope_minimum(target)
        sloped = [line for line in self.lines if line.energy_weight > 0]
        if not np.isfinite(bound) or not sloped:
            return ()
        sloped.sort(key=lambda line: (line.time_weight * time_ns - line.value_j) / line.energy_weight)
        return tuple(line[:2] for line in sloped[:2])

    def envelope_minimum(self, target: Target) -> tuple[float, float]:
        """Time in ns at which the envelope is best, and the objective there.

        On every edge of the envelope the objectives are monotone or rise and then fall, so the
        best point is a corner: where two lines meet, or where one meets the budget.
        """
        if not self.outcomes:
            return np.inf, np.inf
        a, b, v = (np.array(column) for column in zip(*self.lines, strict=True))
        sloped = a > 0
        with np.errstate(divide="ignore", invalid="ignore"):
            level, slope = v[sloped] / a[sloped], b[sloped] / a[sloped]
            meets = (level[:, None] - level) / (slope[:, None] - slope)
            at_budget = (v - a * target.max_energy_j) / b
        first, last = self.least_time_ns, target.max_time_ns
        if last == np.inf:  # the cheapest of all has been asked for: beyond its line, nothing is better
            last = max(meets[np.isfinite(meets)].max(initial=0.0), *(o.time_ns for o in self.outcomes))
        if target.max_energy_j < np.inf:
            needed = np.nanmax(np.where(b > 0, at_budget, np.where(v > a * target.max_energy_j, np.inf, 0.0)))
            first = max(first, float(needed))
        if first > target.max_time_ns or first == np.inf:
            return first, np.inf
        corners = meets[np.isfinite(meets) & (meets > first) & (meets < last)]
        time_ns = np.unique(np.concatenate([[first, max(first, last)], corners]))
        energy_j = (level[:, None] - slope[:, None] * time_ns).max(axis=0)
        values = [target.value(t, e) for t, e in zip(time_ns, energy_j, strict=True)]
        best = int(np.flatnonzero(values == np.min(values))[-1])  # on a level edge, where a mix comes closest
        return float(time_ns[best]), values[best]


def _bracket(
    ask: Callable[[float, float], Outcome | None], budget_ns: float, time_weights: list[float]
) -> None:
    """Ask for some weights of time, and for further ones until outcomes lie on both sides of a budget,
    or it takes too long. Time falls about linearly with the logarithm of its weight."""
    met: list[tuple[float, float]] = []  # time beyond the budget, logarithm of the weight
    while time_weights and len(met) < MAX_OUTWARD:
        time_weight = time_weights.pop(0)
        outcome = ask(1.0, time_weight)
        if outcome is None or time_weight <= 0:
            return
        met.append((outcome.time_ns - budget_ns, math.log(time_weight)))
        sides = {over_ns > 0 for over_ns, _ in met}
        if not time_weights and len(sides) == 1:  # go on from the weight furthest in the right direction
            met.sort(key=lambda one: one[1], reverse=met[0][0] > 0)
            (over_ns, log_weight), (other_ns, other) = met[0], met[min(1, len(met) - 1)]
            step = 1.5 * over_ns * (log_weight - other) / (other_ns - over_ns) if other_ns != over_ns else 0.5
            outward = min(max(abs(step), 0.02), 0.5) * (1 if over_ns > 0 else -1)
            time_weights = [math.exp(log_weight + outward)]


def explore(
    oracle: Oracle,
    target: Target,
    *,
    frontier: Frontier | None = None,
    near: float = 1e-12,
    gap: float = 0.0,
    seeds: Sequence[Weights] = (),
    max_calls: int = 60,
) -> Frontier:
    """Ask the oracle until the bound cannot rise by more than ``near`` (relative), the best outcome
    is within ``gap`` of it, or after ``max_calls``.

    Where the bound stands, the envelope of the lines is below it and the mix of the next outcomes
    above. ``frontier``: of the same oracle, to be gone on with. ``seeds``: weights to ask for
    first, from a similar problem; with them, extremes are only asked for where they matter.
    """
    frontier = Frontier() if frontier is None else frontier
    asked = {line[:2] for line in frontier.lines}

    def ask(energy_weight: float, time_weight: float) -> Outcome | None:
        asked.add((energy_weight, time_weight))
        return frontier.ask(oracle, energy_weight, time_weight)

    only_time_binds = target.minimize == "energy" and target.max_energy_j == np.inf
    if seeds and only_time_binds:
        _bracket(ask, target.max_time_ns, [time_weight for _, time_weight in seeds])
    if FASTEST not in asked and not (only_time_binds and frontier.best(target)):
        ask(*FASTEST)
    if frontier.least_time_ns > target.max_time_ns or not frontier.outcomes:
        return frontier
    bracketed = only_time_binds and frontier.around(target.max_time_ns)[1] and asked != {FASTEST}
    if CHEAPEST not in asked and not bracketed:
        ask(*CHEAPEST)
    while len(frontier.lines) < max_calls:
        time_ns, bound = frontier.envelope_minimum(target)
        best = frontier.best(target)
        if not np.isfinite(bound) or (
            best is not None and target.value(best.time_ns, best.energy_j) <= bound * (1 + max(near, gap))
        ):
            break
        left, right = frontier.around(time_ns)
        if left is None or right is None or right.energy_j >= left.energy_j:
            missing = FASTEST if left is None else CHEAPEST
            if missing in asked:
                break
            ask(*missing)
            continue
        slope = (left.energy_j - right.energy_j) / (right.time_ns - left.time_ns)
        mixed_j = left.energy_j - slope * (time_ns - left.time_ns)
        if mixed_j - frontier.envelope(time_ns) <= near * mixed_j:
            break
        if (1.0, slope) in asked:
            break
        found = ask(1.0, slope)
        reached = left.energy_j + slope * left.time_ns
        if found is None or found.energy_j + slope * found.time_ns >= reached * (1 - ROUNDING):
            break
    return frontier
