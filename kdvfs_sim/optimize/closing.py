"""What a frontier leaves open under a budget, closed by labels."""

from __future__ import annotations

import numpy as np

from kdvfs_sim.optimize.frontier import ROUNDING
from kdvfs_sim.optimize.labels import Search, Trees, plan_use, search_labels, write_choice
from kdvfs_sim.optimize.paths import OpenPaths, Sweep
from kdvfs_sim.optimize.sweep import busy_costs, least_costs, nanosecond, pause_price
from kdvfs_sim.optimize.target import Outcome, Target

MAX_TREES = 6
MAX_LABELS = 300_000
REACHES = tuple(1e-6 * 3.0**k for k in range(14))


def close(
    paths: OpenPaths, target: Target, best: Outcome | None, *, tolerance: float, width: int
) -> tuple[Outcome | None, float]:
    """A schedule better than ``best`` by more than ``tolerance`` (relative), or None; and what is
    proven: nothing within the budget lies below that value.

    Needs the sweeps that ``explore`` made under the same target, the extreme ones included.
    """
    by_time = bool(np.isfinite(target.max_time_ns))
    budget = target.max_time_ns if by_time else target.max_energy_j
    trees, chosen = _trees(paths, by_time=by_time, budget=budget)
    if trees is None:
        return None, np.inf
    known = np.inf if best is None else (best.energy_j if by_time else float(best.time_ns))
    root = float((trees.value[:, 0, paths.start] - trees.weight * budget).max()) * (1 - ROUNDING)
    proven, found, plan = root, None, None
    for reach in REACHES:
        limit = min(known, root * (1 + reach))
        search = Search(
            by_time, budget, tolerance * reach * root, width, MAX_LABELS, paths.start, paths.final
        )
        result = search_labels(paths.model, trees, search, limit)
        proven = max(proven, result.proven)
        if result.label >= 0:
            found, plan = result, chosen[result.tree].plan
            known = result.best
        if result.label >= 0 or limit == known or result.proven == -np.inf:
            break
    bound = proven * (1 - ROUNDING) / (1 if by_time else 1e9)
    if found is None:
        return None, bound
    choice = np.empty(len(paths.model.cells.kind), dtype=np.int64)
    time_ns, energy_j = write_choice(paths.model, found, plan, choice)
    return Outcome(time_ns, energy_j, choice, (0, paths.start)), bound


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
    least = next(s for s in paths.sweeps if weights(s)[0] == 0)
    used = np.empty((len(chosen), *least.value.shape))
    for k, s in enumerate(chosen):
        plan_use(paths.model, s.plan, s.value, by_time, used[k])
    weight = np.array([weights(s)[1] / weights(s)[0] for s in chosen])
    first = (1.0, float(weight[0])) if by_time else (float(weight[0]), 1.0)
    trees = Trees(
        weight=weight,
        value=np.stack([s.value / weights(s)[0] for s in chosen]),
        used=used,
        least_used=least.value / weights(least)[1],
        price=pause_price(paths.model, *first),
        least=least_costs(paths.model, busy_costs(paths.model, *first), *first),
        nanosecond=nanosecond(paths.model, *first),
    )
    return trees, chosen
