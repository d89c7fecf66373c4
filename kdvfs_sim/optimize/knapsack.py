"""Free switching: one choice a group, a budget on the sum. The multiple-choice knapsack.

The Lagrangian bound comes from ``frontier``. What is left between it and the best plain choice is
closed on the *core*: with the multiplier ``w`` a choice that is not a group's cheapest loses
``r >= 0``, and any solution better than the incumbent loses less in total than the gap. So only
the few choices that lose less than the gap take part, group after group, in a list of partial sums
from which dominated and hopeless ones are struck (after Pisinger's expanding core). Where one
group outweighs the others the gap is too wide for that; then its choices are split in two, each
half with a multiplier of its own.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import partial

import numpy as np

from kdvfs_sim.core.compiled import compiled, interruptible
from kdvfs_sim.optimize.additive import Bools, Floats, Groups, Ints, least_of
from kdvfs_sim.optimize.frontier import ROUNDING, Frontier, explore
from kdvfs_sim.optimize.target import Effort, Outcome, Target

EXACT = 1e-9  # relative: the gap that counts as closed
MAX_STATES = 2_000
MAX_NODES = 64
MAX_STEPS = 300_000_000  # partial sums extended by the cores of one answer, a few seconds
FEW_STATES = 16  # partial sums a group: with room for fewer a core is not worth while


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Outcomes within the budget, best first, and a lower bound in the objective's unit.

    The bound is infinite if no choice keeps the budget. ``frontier`` bounds mixes of choices, too.
    """

    outcomes: tuple[Outcome, ...]
    bound: float
    frontier: Frontier


def solve_knapsack(groups: Groups, target: Target, *, gap: float = EXACT) -> Answer:
    """The best choice for every group, to within ``gap`` (relative) unless ``MAX_NODES`` splits were
    not enough."""
    if not groups.allowed.any(axis=1).all():
        return Answer(outcomes=(), bound=np.inf, frontier=Frontier())
    root = explore(partial(weigh, groups), target, near=gap / 10)
    found = [o for o in root.outcomes if target.allows(o)]
    bound = _branch(groups, target, root, found, gap)
    outcomes = tuple(sorted(found, key=lambda o: target.value(*o[:2])))
    return Answer(outcomes=outcomes, bound=bound, frontier=root)


def _branch(groups: Groups, target: Target, root: Frontier, found: list[Outcome], gap: float) -> float:
    """Close and split until nothing open can beat ``found``, which grows; returns the bound."""

    def enough() -> float:
        return min((target.value(*o[:2]) for o in found), default=np.inf) * (1 - gap)

    nodes = [(root.bound(target), 0, groups, root)]
    proven, effort = np.inf, Effort(MAX_STEPS)
    for n in range(MAX_NODES):
        if not nodes or nodes[0][0] >= enough():
            break
        bound, _, node, frontier = heapq.heappop(nodes)
        outcome, core_bound = _close(node, target, frontier, gap, effort)
        found.extend([] if outcome is None else [outcome])
        bound = max(bound, core_bound)
        halves = [] if bound >= enough() else _split(node, target, frontier)
        if not halves:
            proven = min(proven, bound)
            continue
        for k, half in enumerate(halves):
            inside = explore(partial(weigh, half), target, near=gap / 10)
            found.extend(o for o in inside.outcomes if target.allows(o))
            heapq.heappush(nodes, (max(bound, inside.bound(target)), 2 * n + k + 1, half, inside))
    return min(proven, *(node[0] for node in nodes), np.inf)


def _split(groups: Groups, target: Target, frontier: Frontier) -> list[Groups]:
    """Halve the choices of the group that makes the widest step across the budget."""
    time_ns, _ = frontier.envelope_minimum(target)
    left, right = frontier.around(time_ns)
    if left is None or right is None:
        return []
    rows = np.arange(len(left.choice))
    step = groups.time_ns[rows, left.choice] - groups.time_ns[rows, right.choice]
    g = int(np.abs(step).argmax())
    if step[g] == 0:
        return []
    middle = min(groups.time_ns[g, left.choice[g]], groups.time_ns[g, right.choice[g]])
    halves = []
    for part in (groups.time_ns[g] <= middle, groups.time_ns[g] > middle):
        allowed = np.ones_like(groups.allowed)
        allowed[g] = part
        halves.append(groups.only(allowed))
    return halves


def weigh(groups: Groups, energy_weight: float, time_weight: float, /) -> tuple[float, Outcome]:
    """The knapsack's oracle: every group by itself; ties go to less time, then to less energy."""
    choice, value, time_ns, energy_j = _cheapest(
        groups.time_ns, groups.energy_j, groups.allowed, energy_weight, time_weight
    )
    return value * (1 - ROUNDING), Outcome(time_ns, energy_j, choice)


@compiled
def _cheapest(
    time_ns: Ints, energy_j: Floats, allowed: Bools, energy_weight: float, time_weight: float
) -> tuple[Ints, float, int, float]:
    n_groups, n_clocks = time_ns.shape
    choice = np.zeros(n_groups, dtype=np.int64)
    cost = np.empty(n_clocks)
    value, total_ns, total_j = 0.0, 0, 0.0
    for g in range(n_groups):
        for c in range(n_clocks):
            weighed = energy_weight * energy_j[g, c] + time_weight * time_ns[g, c]
            cost[c] = weighed if allowed[g, c] else np.inf
        least, chosen = least_of(cost, n_clocks), -1
        for c in range(n_clocks):
            if cost[c] == least and (
                chosen < 0
                or time_ns[g, c] < time_ns[g, chosen]
                or (time_ns[g, c] == time_ns[g, chosen] and energy_j[g, c] < energy_j[g, chosen])
            ):
                chosen = c
        choice[g] = chosen
        value += least
        total_ns += time_ns[g, chosen]
        total_j += energy_j[g, chosen]
    return choice, value, total_ns, total_j


def _close(
    groups: Groups, target: Target, frontier: Frontier, gap: float, effort: Effort
) -> tuple[Outcome | None, float]:
    """Close the gap under the budget that binds; a product of time and energy gets no bound here."""
    by_time = bool(np.isfinite(target.max_time_ns))
    budget = target.max_time_ns if by_time else target.max_energy_j
    if not np.isfinite(budget):
        return None, -np.inf
    time = groups.time_ns.astype(np.float64)
    cost, resource = (groups.energy_j, time) if by_time else (time, groups.energy_j)
    weight = _multiplier(frontier, budget, by_time=by_time)
    choice, least = close_core(cost, resource, groups.allowed, budget, weight, gap, effort)
    bound = -np.inf if target.minimize in ("edp", "ed2p") else least if by_time else least / 1e9
    if choice is None:
        return None, bound
    rows = np.arange(len(choice))
    time_ns, energy_j = groups.time_ns[rows, choice].sum(), groups.energy_j[rows, choice].sum()
    outcome = Outcome(int(time_ns), float(energy_j), choice)
    return (outcome if target.allows(outcome) else None), bound


def _multiplier(frontier: Frontier, budget: float, *, by_time: bool) -> float:
    """Weight of the resource at the line that bounds best at the budget."""
    best_bound, best_weight = -np.inf, 0.0
    for energy_weight, time_weight, value in frontier.lines:
        cost_weight, weight = (energy_weight, time_weight) if by_time else (time_weight, energy_weight)
        if cost_weight > 0:
            bound = (value - weight * budget) / cost_weight
            if bound > best_bound:
                best_bound, best_weight = bound, weight / cost_weight
    return best_weight


def close_core(
    cost: Floats,
    resource: Floats,
    allowed: Bools,
    budget: float,
    weight: float,
    enough: float,
    effort: Effort,
) -> tuple[Ints | None, float]:
    """Least total cost with total resource within the budget, and a proven bound on it, to within
    ``enough`` (relative).

    Arrays are (groups, choices). ``weight`` is a Lagrange multiplier of the resource; any value
    of at least 0 is right, the best one is fast. A step of ``effort``: one partial sum extended by one
    choice; where it runs out, less is proven. The choice is None, and the bound infinite, if
    no choice fits.
    """
    rows = np.arange(len(cost))
    with np.errstate(invalid="ignore"):
        weighed = np.where(allowed, cost + weight * resource, np.inf)
    base = weighed.argmin(axis=1).astype(np.int64)
    loss = weighed - weighed[rows, base][:, None]
    delta = np.where(allowed, resource - resource[rows, base][:, None], 0.0)
    slack = budget - float(resource[rows, base].sum())
    floor = float(weighed[rows, base].sum()) * (1 - ROUNDING) - weight * budget * (1 + ROUNDING)

    choice = base.copy()
    tolerance = enough / 2 * abs(floor)
    gap = _repair_and_spend(loss, delta, slack, weight, tolerance, choice)
    if gap == np.inf:
        return None, np.inf
    if gap <= tolerance:
        return choice, floor
    proven = 0.0
    for reach in _reaches(loss, gap):
        core = np.flatnonzero((loss < reach).sum(axis=1) > 1)
        core = core[np.argsort(np.sort(loss[core], axis=1)[:, 1], kind="stable")]
        n_choices = int((loss[core] < reach).sum())
        n_states = min(MAX_STATES, effort.steps // max(n_choices, 1))
        if n_states < FEW_STATES:
            break
        effort.steps -= n_states * n_choices
        picks, found, proven = interruptible(
            _merge, loss[core], delta[core], slack, weight, reach, tolerance, n_states
        )
        if len(picks):
            choice, gap = base.copy(), found
            choice[core] = picks
        if len(picks) or proven < reach - 2 * tolerance:
            break
    return choice, floor + min(proven, gap)


def _reaches(loss: Floats, gap: float) -> list[float]:
    """Ever wider parts of the gap to search: each takes in twice the choices of the one before.

    A solution found within a narrow reach is as good as one found in all of the gap, and narrow
    cores are quick.
    """
    losses = np.sort(loss[(loss > 0) & (loss < gap)])
    doublings = range(4, len(losses).bit_length())
    return [*(float(losses[1 << k]) for k in doublings if 1 << k < len(losses)), gap]


@compiled
def _repair_and_spend(
    loss: Floats, delta: Floats, slack: float, weight: float, tolerance: float, choice: Ints
) -> float:
    n_groups, n_choices = loss.shape
    lost = 0.0
    while slack < 0:  # over budget: the exchange that loses least per unit brought back
        best, best_g, best_c = np.inf, -1, -1
        for g in range(n_groups):
            for c in range(n_choices):
                saved = delta[g, choice[g]] - delta[g, c]
                if saved > 0 and loss[g, c] < np.inf:
                    rate = (loss[g, c] - loss[g, choice[g]]) / min(saved, -slack)
                    if rate < best:
                        best, best_g, best_c = rate, g, c
        if best_g < 0:
            return np.inf
        lost += loss[best_g, best_c] - loss[best_g, choice[best_g]]
        slack += delta[best_g, choice[best_g]] - delta[best_g, best_c]
        choice[best_g] = best_c
    for _ in range(n_groups):  # within budget: the exchange that lowers the cost most
        if lost + weight * slack <= tolerance:
            break
        best, best_g, best_c = 0.0, -1, -1
        for g in range(n_groups):
            for c in range(n_choices):
                used = delta[g, c] - delta[g, choice[g]]
                if used <= slack and loss[g, c] < np.inf:
                    gain = weight * used - (loss[g, c] - loss[g, choice[g]])
                    if gain > best:
                        best, best_g, best_c = gain, g, c
        if best_g < 0:
            break
        lost += loss[best_g, best_c] - loss[best_g, choice[best_g]]
        slack -= delta[best_g, best_c] - delta[best_g, choice[best_g]]
        choice[best_g] = best_c
    return lost + weight * slack


@compiled
def _merge(
    loss: Floats, delta: Floats, slack: float, weight: float, gap: float, tolerance: float, max_states: int
) -> tuple[Ints, float, float]:
    """Group by group, the partial sums (loss, resource) that can still beat ``gap``.

    Returns the choices (empty if the incumbent stands), the new gap, and what is proven: no
    choice lies less than that above the floor.
    """
    n_groups, n_choices = loss.shape
    # What the groups still to come can do to the slack at most, and at what loss per unit.
    most = np.zeros(n_groups + 1)
    least = np.zeros(n_groups + 1)
    rate_up = np.full(n_groups + 1, np.inf)
    rate_down = np.full(n_groups + 1, np.inf)
    for g in range(n_groups - 1, -1, -1):
        up, down = 0.0, 0.0
        rate_up[g], rate_down[g] = rate_up[g + 1], rate_down[g + 1]
        for c in range(n_choices):
            if loss[g, c] < gap:
                up, down = max(up, delta[g, c]), min(down, delta[g, c])
                if delta[g, c] > 0:
                    rate_up[g] = min(rate_up[g], loss[g, c] / delta[g, c])
                elif delta[g, c] < 0:
                    rate_down[g] = min(rate_down[g], -loss[g, c] / delta[g, c])
        most[g], least[g] = most[g + 1] + up, least[g + 1] + down

    lost, left = np.zeros(1), np.full(1, slack)
    parents, picks = [np.zeros(1, dtype=np.int32)], [np.zeros(1, dtype=np.int32)]
    dropped = np.inf
    best_stage, best_state = -1, -1
    for g in range(n_groups):
        width = 0
        for c in range(n_choices):
            width += loss[g, c] < gap
        new_lost = np.empty(len(lost) * width)
        new_left = np.empty(len(lost) * width)
        new_parent = np.empty(len(lost) * width, dtype=np.int32)
        new_pick = np.empty(len(lost) * width, dtype=np.int32)
        floor = np.empty(len(lost) * width)
        m = 0
        for c in range(n_choices):
            if not loss[g, c] < gap:
                continue
            for s in range(len(lost)):
                r, x = lost[s] + loss[g, c], left[s] - delta[g, c]
                if x > 0:  # slack is paid for at the end, or used up by later groups
                    usable = min(x, most[g + 1])
                    ahead = r + usable * min(weight, rate_up[g + 1]) + (x - usable) * weight
                elif x < least[g + 1]:
                    continue
                else:
                    ahead = r - x * rate_down[g + 1] if x < 0 else r
                if ahead >= gap - tolerance:
                    continue
                new_lost[m], new_left[m], floor[m] = r, x, ahead
                new_parent[m], new_pick[m] = s, c
                m += 1
        # Dominance: more slack left and a lower cost (loss minus the price of the slack used).
        order = np.argsort(-new_left[:m])
        keep = np.empty(m, dtype=np.int64)
        kept, cheapest = 0, np.inf
        for s in order:
            cost = new_lost[s] + weight * new_left[s]
            if cost < cheapest:
                cheapest = cost
                keep[kept] = s
                kept += 1
        keep = keep[:kept]
        if kept > max_states:
            ranked = np.argsort(floor[keep])
            dropped = min(dropped, floor[keep[ranked[max_states]]])
            keep = keep[ranked[:max_states]]
        lost, left = new_lost[keep], new_left[keep]
        parents.append(new_parent[keep])
        picks.append(new_pick[keep])
        for s in range(len(lost)):
            if left[s] >= 0 and lost[s] + weight * left[s] < gap:
                gap = lost[s] + weight * left[s]
                best_stage, best_state = g + 1, s
        if len(lost) == 0:
            break
    chosen = np.zeros(0, dtype=np.int64)
    if best_stage > 0:
        chosen = np.empty(n_groups, dtype=np.int64)
        for g in range(n_groups):  # groups after the last merged one keep their cheapest choice
            chosen[g] = np.argmin(loss[g])
        state = best_state
        for stage in range(best_stage, 0, -1):
            chosen[stage - 1] = picks[stage][state]
            state = parents[stage][state]
    return chosen, gap, min(max(gap - tolerance, 0.0), dropped)
