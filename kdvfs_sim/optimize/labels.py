"""Closing the gap that a multiplier leaves: partial schedules, pruned by what they can still reach.

A *label* is a way to get to a state: what it has cost, and what it has used of the budget. Labels
that stay on the same clocks move along together, so each clock keeps a list of labels relative to
its own running sums, and the order among them never changes. A label is dropped

* if it cannot keep the budget, or cannot beat the best known schedule by more than ``tolerance``:
  the values of several sweeps, each with its own multiplier, bound from below what must follow;
* if another label of the same clocks has used no more and cost no more, or more by at most
  ``tolerance``: then that one stands in for it, and owes the difference;
* if its list is full. The least bound among those dropped for that reason limits what is proven.

Every label, completed by the plan of any of the sweeps, is also a schedule: that is where good ones
come from. Where nothing is dropped for want of room, the answer is proven to within the tolerance.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kdvfs_sim.core.compiled import borrowing, compiled
from kdvfs_sim.optimize.additive import Floats, Ints, cell_cost
from kdvfs_sim.optimize.changes import AT_ONCE, Model, change, first_at_or_after
from kdvfs_sim.optimize.landings import STAY, Plan
from kdvfs_sim.optimize.sweep import trace

COST, USED, DEBT = range(3)  # columns of Pool.amounts
PARENT, DECIDED, LANDING, ARRIVAL, CLOCK, NEXT = range(6)  # columns of Pool.links


class Trees(NamedTuple):
    """Several sweeps of one model: K multipliers, with weight 1 on the cost.

    ``value[k]``: least cost + weight * use from a state on. ``used[k]``: what the plan of the sweep
    uses from there, NaN until somebody asks. ``least_used``: no schedule uses less. Sweep 0 is the
    most telling.
    """

    weight: Floats  # (K,)
    value: Floats  # (K, boundaries, C)
    target: npt.NDArray[np.int16]  # (K, n, C), the plans
    landing: npt.NDArray[np.int32]
    used: Floats  # (K, boundaries, C)
    way: Ints  # (n, 2) and (n,): room to work in
    step: Floats
    least_used: Floats  # (boundaries,)
    price: Floats  # (C, C): weighted cost of a pause, with the weight of sweep 0
    least: Floats  # (n,): the cheapest that a launch can be, with that weight ...
    nanosecond: float  # ... and the most that one nanosecond can cost


class Search(NamedTuple):
    """What to search for. ``by_time``: the cost is energy and the budget is on time, else reversed.

    ``start``: clocks at the first boundary.
    """

    by_time: bool
    budget: float
    tolerance: float
    width: int  # labels that a clock may keep
    most: int  # labels in all; more than that, and nothing is proven
    start: int


class Found(NamedTuple):
    """``best``: the least cost; the label, boundary and sweep it comes from (-1: none better than
    the one given). ``proven``: no schedule costs less."""

    best: float
    label: int
    boundary: int
    tree: int
    proven: float
    amounts: Floats
    links: Ints


class _Pool(NamedTuple):
    """All labels: cost, use and debt; where they come from, and the next one with the same arrival."""

    amounts: Floats
    links: Ints
    waiting: Ints  # (boundaries,): the first label that arrives there


@borrowing
def _use(model: Model, trees: Trees, by_time: bool, k: int, i: int, c: int) -> float:
    """What following the plan of sweep ``k`` uses of the budget from a state on."""
    target, landing, used = trees.target[k], trees.landing[k], trees.used[k]
    depth = 0
    while np.isnan(used[i, c]):
        b = target[i, c]
        if b == STAY:
            arrival, b = i + 1, c
            time_ns, energy_j = cell_cost(model.cells, i, c)
        else:
            arrival, time_ns, energy_j = change(model, i, c, b, landing[i, c])
        trees.way[depth, 0], trees.way[depth, 1] = i, c
        trees.step[depth] = time_ns if by_time else energy_j
        depth += 1
        i, c = arrival, b
    total = used[i, c]
    for d in range(depth - 1, -1, -1):
        total += trees.step[d]
        used[trees.way[d, 0], trees.way[d, 1]] = total
    return total  # type: ignore[no-any-return]


@borrowing
def _bound(trees: Trees, i: int, c: int, cost: float, left: float) -> float:
    """The least that can be made of a label with ``left`` of the budget; infinite if it breaks it."""
    if trees.least_used[i] > left:
        return np.inf
    bound = -np.inf if i < trees.value.shape[1] - 1 else cost
    for k in range(len(trees.weight)):
        bound = max(bound, cost - trees.weight[k] * left + trees.value[k, i, c])
    return bound


@compiled
def search_labels(model: Model, trees: Trees, search: Search, best: float) -> Found:
    """Search from the first boundary to the last for a schedule that costs less than ``best``."""
    n, n_clocks = model.cells.allowed.shape
    rules, order = model.rules, model.order
    pool = _Pool(np.zeros((4096, 3)), np.zeros((4096, 6), dtype=np.int64), np.full(n + 1, -1))
    _link(pool, 0, -1, 0, AT_ONCE, 0, search.start)
    n_labels = 1
    kept = np.empty((n_clocks, search.width), dtype=np.int64)
    n_kept = np.zeros(n_clocks, dtype=np.int64)
    found_label, found_boundary, found_tree = -1, -1, -1
    proven = np.inf
    for i in range(n + 1):
        proven = min(proven, _admit(model, trees, search, pool, kept, n_kept, i))
        for c in range(n_clocks):
            if n_kept[c] == 0:
                continue
            run_cost, run_used = _run(model, search, c, i)
            starts = model.runs.start_ns[c]
            m = 0
            for s in range(n_kept[c]):
                label = kept[c, s]
                cost = pool.amounts[label, COST] + run_cost
                left = search.budget - pool.amounts[label, USED] - run_used
                debt = pool.amounts[label, DEBT]
                total, tree = _completed(model, trees, search.by_time, i, c, cost, left)
                if total < best:
                    best, found_label, found_boundary, found_tree = total, label, i, tree
                bound = _bound(trees, i, c, cost, left) - debt
                if i == n or bound >= best - search.tolerance:
                    proven = min(proven, bound)
                    continue
                kept[c, m] = label
                m += 1
                if not (rules.anticipates or rules.may_change[i]):
                    continue
                lands_in = i
                weighed = cost - trees.weight[0] * (left + run_used) - run_cost - debt
                for s_target in range(order.n_targets[c]):
                    b = order.target[c, s_target]
                    landing, stop = AT_ONCE, AT_ONCE + 1
                    if rules.anticipates:
                        landing = first_at_or_after(starts, i, starts[i] + order.work_ns[c, s_target])
                        stop = first_at_or_after(starts, landing, starts[i + 1] + order.work_ns[c, s_target])
                        stop = min(max(stop, i + 2), n + 1)
                        if i == 0 and rules.at_once:
                            landing -= 1  # stands for a request made at once
                    elif rules.drains:
                        bound = cost - trees.weight[0] * left + trees.price[c, b] + trees.value[0, i, b]
                        if bound - debt >= best - search.tolerance:
                            proven = min(proven, bound - debt)
                            continue
                    else:
                        stops_ns = starts[i] + rules.trigger_ns + order.work_ns[c, s_target]
                        while lands_in < n and starts[lands_in + 1] <= stops_ns:
                            lands_in += 1
                        if lands_in == n:
                            break  # all further ones would land after the end
                        on_cost, on_used = _run(model, search, c, lands_in)
                        bound = weighed + on_cost + trees.weight[0] * on_used - trees.nanosecond
                        bound += min(
                            trees.least[lands_in] + trees.value[0, lands_in + 1, b],
                            trees.value[0, lands_in, b],
                        )
                        if bound >= best - search.tolerance:
                            proven = min(proven, bound)
                            continue
                    for at in range(landing, stop):
                        if rules.anticipates:
                            if at == landing and i == 0 and rules.at_once:
                                at = AT_ONCE
                            elif not rules.may_change[at % n]:
                                continue
                            else:
                                run_on = model.runs.energy_j[c, at] - model.runs.energy_j[c, i]
                                run_ns = starts[at] - starts[i]
                                if not search.by_time:
                                    run_on, run_ns = run_ns, run_on
                                bound = _bound(trees, at, b, cost + run_on, left - run_ns) - debt
                                if bound >= best - search.tolerance:
                                    proven = min(proven, bound)
                                    continue
                        arrival, time_ns, energy_j = change(model, i, c, b, at)
                        if arrival < 0 or arrival > n:
                            continue
                        new_cost = cost + (energy_j if search.by_time else time_ns)
                        new_left = left - (time_ns if search.by_time else energy_j)
                        bound = _bound(trees, arrival, b, new_cost, new_left) - debt
                        if bound >= best - search.tolerance:
                            proven = min(proven, bound)
                            continue
                        if n_labels == len(pool.amounts):
                            pool = _Pool(
                                np.concatenate((pool.amounts, np.zeros_like(pool.amounts))),
                                np.concatenate((pool.links, np.zeros_like(pool.links))),
                                pool.waiting,
                            )
                        _write(pool, n_labels, new_cost, search.budget - new_left, debt)
                        _link(pool, n_labels, label, i, at, arrival, b)
                        total, tree = _completed(model, trees, search.by_time, arrival, b, new_cost, new_left)
                        if total < best:
                            best, found_label, found_boundary, found_tree = total, n_labels, arrival, tree
                        n_labels += 1
            n_kept[c] = m
        if n_labels > search.most:
            proven = -np.inf
            break
    return Found(best, found_label, found_boundary, found_tree, min(proven, best), pool.amounts, pool.links)


@borrowing
def _completed(
    model: Model, trees: Trees, by_time: bool, i: int, c: int, cost: float, left: float
) -> tuple[float, int]:
    """The least that a label comes to by following the plan of a sweep, and of which one."""
    least, tree = np.inf, -1
    for k in range(len(trees.weight)):
        used = trees.used[k, i, c]
        if np.isnan(used):
            used = _use(model, trees, by_time, k, i, c)
        if used <= left:
            total = cost + trees.value[k, i, c] - trees.weight[k] * used
            if total < least:
                least, tree = total, k
    return least, tree


@borrowing
def _write(pool: _Pool, label: int, cost: float, used: float, debt: float) -> None:
    pool.amounts[label, COST] = cost
    pool.amounts[label, USED] = used
    pool.amounts[label, DEBT] = debt


@borrowing
def _link(pool: _Pool, label: int, parent: int, i: int, landing: int, arrival: int, clock: int) -> None:
    pool.links[label, PARENT] = parent
    pool.links[label, DECIDED] = i
    pool.links[label, LANDING] = landing
    pool.links[label, ARRIVAL] = arrival
    pool.links[label, CLOCK] = clock
    pool.links[label, NEXT] = pool.waiting[arrival]
    pool.waiting[arrival] = label


@borrowing
def _run(model: Model, search: Search, c: int, i: int) -> tuple[float, float]:
    """Cost and use of running under ``c`` from the first launch to boundary ``i``."""
    time_ns, energy_j = float(model.runs.start_ns[c, i]), model.runs.energy_j[c, i]
    return (energy_j, time_ns) if search.by_time else (time_ns, energy_j)


@borrowing
def _admit(
    model: Model, trees: Trees, search: Search, pool: _Pool, kept: Ints, n_kept: Ints, i: int
) -> float:
    """Let the labels that arrive at ``i`` join those on their clocks; the least bound turned away."""
    turned_away = np.inf
    for c in range(len(n_kept)):  # a launch that may not run here ends what was on these clocks
        if i > 0 and not model.cells.allowed[i - 1, c]:
            n_kept[c] = 0
    label = pool.waiting[i]
    while label >= 0:
        c = pool.links[label, CLOCK]
        run_cost, run_used = _run(model, search, c, i)
        amounts = pool.amounts
        amounts[label, COST] -= run_cost
        amounts[label, USED] -= run_used
        stands_in = False
        for s in range(n_kept[c]):
            other = kept[c, s]
            debt = max(0.0, amounts[other, COST] - amounts[label, COST]) + amounts[label, DEBT]
            if amounts[other, USED] <= amounts[label, USED] and debt <= search.tolerance:
                amounts[other, DEBT] = max(amounts[other, DEBT], debt)
                stands_in = True
                break
        if not stands_in:
            m = 0
            for s in range(n_kept[c]):
                other = kept[c, s]
                owed = amounts[other, COST] - amounts[other, DEBT]
                if (
                    amounts[other, USED] < amounts[label, USED]
                    or owed < amounts[label, COST] - amounts[label, DEBT]
                ):
                    kept[c, m] = other
                    m += 1
            if m < search.width:
                kept[c, m] = label
                m += 1
            else:  # no room: the least promising goes
                worst, worst_at = -np.inf, m
                for s in range(m + 1):
                    other = label if s == m else kept[c, s]
                    left = search.budget - amounts[other, USED] - run_used
                    bound = _bound(trees, i, c, amounts[other, COST] + run_cost, left)
                    if bound - amounts[other, DEBT] > worst:
                        worst, worst_at = bound - amounts[other, DEBT], s
                turned_away = min(turned_away, worst)
                if worst_at < m:
                    kept[c, worst_at] = label
            n_kept[c] = m
        label = pool.links[label, NEXT]
    return turned_away


@compiled
def write_choice(model: Model, found: Found, plan: Plan, choice: Ints) -> tuple[int, float]:
    """The schedule found: a label's decisions, then the plan of its sweep. Returns its ns and J."""
    n = len(choice)
    chain = np.empty(n + 1, dtype=np.int64)
    depth, label = 0, found.label
    while label >= 0:
        chain[depth] = label
        depth += 1
        label = found.links[label, PARENT]
    total_ns, total_j = 0, 0.0
    i, c = 0, found.links[chain[depth - 1], CLOCK]
    for d in range(depth - 2, -2, -1):
        stop = found.boundary if d < 0 else found.links[chain[d], DECIDED]
        for k in range(i, stop):
            choice[k] = c
        total_ns += model.runs.start_ns[c, stop] - model.runs.start_ns[c, i]
        total_j += model.runs.energy_j[c, stop] - model.runs.energy_j[c, i]
        i = stop
        if d >= 0:
            landing, b = found.links[chain[d], LANDING], found.links[chain[d], CLOCK]
            arrival, time_ns, energy_j = change(model, i, c, b, landing)
            for k in range(i, arrival):
                choice[k] = c if k < landing else b
            total_ns += time_ns
            total_j += energy_j
            i, c = arrival, b
    _, _, time_ns, energy_j = trace(model, plan, i, c, choice)
    return total_ns + time_ns, total_j + energy_j
