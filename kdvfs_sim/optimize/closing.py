"""What a frontier leaves open under a budget, closed by labels. One-shot only.

The search looks for anything less than a little above the best multiplier's bound, then a little
further, until it finds something: that is the best there is, to within the tolerance, and what was
searched before without a find is proven empty. What is known beforehand only says where to stop.
"""

from __future__ import annotations

import numpy as np

from kdvfs_sim.optimize.additive import Floats
from kdvfs_sim.optimize.changes import Model
from kdvfs_sim.optimize.frontier import ROUNDING
from kdvfs_sim.optimize.labels import Search, Trees, search_labels, write_choice
from kdvfs_sim.optimize.paths import OpenPaths, Sweep
from kdvfs_sim.optimize.sweep import busy_costs, least_costs, nanosecond, pause_price
from kdvfs_sim.optimize.target import Outcome, Target

MAX_TREES = 6
MAX_LABELS = 300_000
WIDTH = 200
STEPS = 40  # the first reaches a tenth of the gap asked for, each further one three times as far


def close(paths: OpenPaths, target: Target, *, gap: float, enough: float) -> tuple[Outcome | None, float]:
    """The best schedule within the budget to within ``gap`` (relative), None if none was found, and
    what is proven: nothing within the budget lies below that value.

    ``enough``: what need not be exceeded by what is proven. Needs the sweeps that ``explore`` made
    under the same target.
    """
    by_time = bool(np.isfinite(target.max_time_ns))
    budget = target.max_time_ns if by_time else target.max_energy_j
    trees, chosen = _trees(paths, by_time=by_time, budget=budget)
    if trees is None:
        return None, -np.inf
    root = float((trees.value[:, 0, paths.start] - trees.weight * budget).max()) * (1 - ROUNDING)
    proven = root
    unit = 1.0 if by_time else 1e9
    needed = enough * unit / root - 1
    needed += min(needed / 9, gap / 2) + ROUNDING  # a search proves no more than its reach less its tolerance
    for step in range(STEPS):
        reach = min(gap / 10 * 3.0**step, needed)
        search = Search(by_time, budget, min(reach / 10, gap / 2) * root, WIDTH, MAX_LABELS, paths.start)
        result = search_labels(paths.model, trees, search, root * (1 + reach))
        proven = max(proven, result.proven)
        if result.label >= 0:
            choice = np.empty(len(paths.model.cells.kind), dtype=np.int64)
            time_ns, energy_j = write_choice(paths.model, result, chosen[result.tree].plan, choice)
            return Outcome(time_ns, energy_j, choice, (0, paths.start)), proven * (1 - ROUNDING) / unit
        if result.proven == -np.inf or reach == needed:
            break
    return None, proven * (1 - ROUNDING) / unit


def _trees(paths: OpenPaths, *, by_time: bool, budget: float) -> tuple[Trees | None, list[Sweep]]:
    """The sweeps that bound best at the budget, with the cost's weight made 1."""

    def weights(s: Sweep) -> tuple[float, float]:
        return (s.energy_weight, s.time_weight) if by_time else (s.time_weight, s.energy_weight)

    def bound(s: Sweep) -> float:
        cost, resource = weights(s)
        return float(s.value[0, paths.start] - resource * budget) / cost

    chosen = sorted((s for s in paths.sweeps if weights(s)[0] > 0), key=bound, reverse=True)[:MAX_TREES]
    if not chosen:
        return None, []
    n = len(paths.model.cells.kind)
    value = np.stack([s.value / weights(s)[0] for s in chosen]) * (1 - ROUNDING)
    used = np.where(np.isfinite(value), np.nan, np.inf)
    used[:, n] = 0.0
    weight = np.array([weights(s)[1] / weights(s)[0] for s in chosen])
    first = (1.0, float(weight[0])) if by_time else (float(weight[0]), 1.0)
    trees = Trees(
        weight=weight,
        value=value,
        target=np.stack([s.plan.target for s in chosen]),
        landing=np.stack([s.plan.landing for s in chosen]),
        used=used,
        way=np.empty((n, 2), dtype=np.int64),
        step=np.empty(n),
        least_used=_least_used(paths.model, by_time=by_time),
        price=pause_price(paths.model, *first, int(paths.model.cells.hidden_ns.max(initial=0))),
        least=least_costs(paths.model, busy_costs(paths.model, *first), *first),
        nanosecond=paths.model.rules.rounding_ns * nanosecond(paths.model, *first),
    )
    return trees, chosen


def _least_used(model: Model, *, by_time: bool) -> Floats:
    """(boundaries,): the least that the launches from a boundary on use, with free switching."""
    weights = (0.0, 1.0) if by_time else (1.0, 0.0)
    least = least_costs(model, busy_costs(model, *weights), *weights)
    ahead: Floats = np.append(np.cumsum(least[::-1])[::-1], 0.0) * (1 - ROUNDING)
    return ahead
