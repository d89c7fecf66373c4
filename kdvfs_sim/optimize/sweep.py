"""One backward sweep of the dynamic programme: the least weighted cost from every state on.

Exact, and arranged for speed. The changes from one state are looked at in the order in which they
land; a lower bound that costs a few loads (the weighted sum of running on until then, and the best
that any clocks can do from there) dismisses most launches with all the targets that land in them,
then most targets. Only what passes is priced by ``changes``, and that price counts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kdvfs_sim.core.compiled import compiled
from kdvfs_sim.optimize.additive import Floats, Ints, cell_cost, launch_ns
from kdvfs_sim.optimize.changes import AT_ONCE, Model, Order, change

STAY = -1


class Plan(NamedTuple):
    """For every state of the first iteration the best decision: the target or STAY, and the
    boundary on which it lands (lookahead; AT_ONCE where the request is made at once)."""

    target: npt.NDArray[np.int16]
    landing: npt.NDArray[np.int32]


class Table(NamedTuple):
    """A sweep in work, for one pair of weights."""

    energy_weight: float
    time_weight: float
    value: Floats  # (boundaries, C): the least cost from a state on
    staying: Floats  # (C,): the same at the boundary in work, if the next launch runs unchanged
    run: Floats  # (C, boundaries): weighted sums of running under one request from the first launch
    front: Floats  # (boundaries,): the least value at a boundary
    least: Floats  # (boundaries,): the cheapest that the launch after it and its gap can be
    first: Ints  # (C,): where the nearest target of a source last landed
    last: Ints  # (C,): and the furthest
    price: Floats  # (C, C): drain: weighted cost of the pause
    busy: Floats  # (n, C): weighted cost of a launch without its gap
    cheapest: Floats  # (C,): the least of a row of ``price``
    nanosecond: float  # the most that one nanosecond can cost: what rounding can hide


def new_plan(model: Model) -> Plan:
    shape = model.cells.allowed.shape
    return Plan(np.empty(shape, dtype=np.int16), np.empty(shape, dtype=np.int32))


@compiled
def sweep(model: Model, energy_weight: float, time_weight: float, value: Floats, plan: Plan) -> None:
    """Fill ``value[i, c]`` for the boundaries of the first iteration, from the last to the first.

    ``value`` has one row a boundary of the runs; the rows from n on are given: zeros at the end,
    or what is assumed of the next iteration. What cannot be completed is infinite.
    """
    cells, rules = model.cells, model.rules
    n, n_clocks = cells.allowed.shape
    table = _prepare(model, energy_weight, time_weight, value)
    if not rules.drains:
        for i in range(n, value.shape[0]):
            table.front[i] = _least(value[i])
    staying = table.staying
    for i in range(n - 1, -1, -1):
        for c in range(n_clocks):
            staying[c] = np.inf
            plan.target[i, c] = STAY
            plan.landing[i, c] = AT_ONCE
            if cells.allowed[i, c]:
                time_ns, energy_j = cell_cost(cells, i, c)
                staying[c] = energy_weight * energy_j + time_weight * time_ns + value[i + 1, c]
            value[i, c] = staying[c]
        if rules.drains:
            if rules.may_change[i]:
                _drain(model, table, plan, i)
            continue
        table.front[i] = _least(staying)  # for a change that lands where it is requested
        if rules.anticipates:
            _lookahead(model, table, plan, i)
            if i == 0 and rules.at_once:
                _restart(model, table)
                _follow(model, table, plan, i)
        elif rules.may_change[i]:
            _follow(model, table, plan, i)
        table.front[i] = _least(value[i])


@compiled
def _prepare(model: Model, energy_weight: float, time_weight: float, value: Floats) -> Table:
    runs, rules = model.runs, model.rules
    n_clocks, n_boundaries = runs.start_ns.shape
    n = len(model.cells.kind)
    least = np.full(n_boundaries, np.inf)
    price = np.full((n_clocks, n_clocks), np.inf)
    cheapest = np.full(n_clocks, np.inf)
    busy = np.empty((0, 0))
    run = np.empty((0, 0))
    if rules.drains:
        price = pause_price(model, energy_weight, time_weight)
        for a in range(n_clocks):
            cheapest[a] = price[a].min()
    else:
        busy = busy_costs(model, energy_weight, time_weight)
        least[:n] = least_costs(model, busy, energy_weight, time_weight)
        least[n:-1] = least[: n_boundaries - n - 1]
        run = np.empty((n_clocks, n_boundaries))
        for c in range(n_clocks):
            for i in range(n_boundaries):
                run[c, i] = energy_weight * runs.energy_j[c, i] + time_weight * runs.start_ns[c, i]
    return Table(
        energy_weight,
        time_weight,
        value,
        np.empty(n_clocks),
        run,
        np.empty(n_boundaries),
        least,
        np.full(n_clocks, n_boundaries - 1),
        np.full(n_clocks, n_boundaries - 1),
        price,
        busy,
        cheapest,
        nanosecond(model, energy_weight, time_weight),
    )


@compiled
def nanosecond(model: Model, energy_weight: float, time_weight: float) -> float:
    """The most that one nanosecond can cost."""
    most_w = 0.0
    for power_w in model.cells.power_w.flat:
        if power_w > most_w:
            most_w = power_w
    return time_weight + energy_weight * most_w * 1e-9


@compiled
def busy_costs(model: Model, energy_weight: float, time_weight: float) -> Floats:
    """(n, C): weighted cost of a launch without the gap after it; infinite where it is not allowed."""
    cells = model.cells
    n, n_clocks = cells.allowed.shape
    busy = np.full((n, n_clocks), np.inf)
    for i in range(n):
        for c in range(n_clocks):
            if cells.allowed[i, c]:
                cost = energy_weight * cells.power_w[cells.kind[i], c] * 1e-9 + time_weight
                busy[i, c] = cost * launch_ns(cells, i, c)
    return busy


@compiled
def least_costs(model: Model, busy: Floats, energy_weight: float, time_weight: float) -> Floats:
    """(n,): the cheapest that a launch and, under whatever clocks, the gap after it can be."""
    idle_least_w = np.inf
    for idle_w in model.cells.idle_w:
        if idle_w < idle_least_w:
            idle_least_w = idle_w
    least = np.empty(len(busy))
    for i in range(len(busy)):
        least[i] = _least(busy[i])
        if model.cells.gap_ns[i] > 0:
            least[i] += (energy_weight * idle_least_w * 1e-9 + time_weight) * model.cells.gap_ns[i]
    return least


@compiled
def pause_price(model: Model, energy_weight: float, time_weight: float) -> Floats:
    """(C, C): weighted cost of a drained change, without the relaunch; infinite where there is none."""
    cells, rules = model.cells, model.rules
    n_clocks = len(cells.idle_w)
    price = np.full((n_clocks, n_clocks), np.inf)
    for a in range(n_clocks):
        for b in range(n_clocks):
            old_ns, pause_ns = rules.switching_ns[a, b], rules.ready_ns[a, b]
            idle_j = 0.0
            if old_ns > 0:
                idle_j += cells.idle_w[a] * old_ns * 1e-9
            if pause_ns > old_ns:
                idle_j += cells.idle_w[b] * (pause_ns - old_ns) * 1e-9
            if a != b and rules.requestable[b] and np.isfinite(idle_j):
                price[a, b] = energy_weight * (idle_j + rules.extra_j[a, b]) + time_weight * pause_ns
    return price


@compiled
def _least(values: Floats) -> float:
    least = np.inf
    for value in values:
        least = min(least, value)
    return least


@compiled
def _least_sum(x: Floats, y: Floats) -> float:
    least = np.inf
    for k in range(len(x)):
        least = min(least, x[k] + y[k])
    return least


@compiled
def _drain(model: Model, table: Table, plan: Plan, i: int) -> None:
    relaunch_ns = model.rules.relaunch_ns[i]
    ahead = table.staying  # once the change has been made
    if relaunch_ns > 0:
        for b in range(len(ahead)):
            ahead[b] += relaunch_cost(model, table.energy_weight, table.time_weight, i, b)
    front = _least(ahead)
    for a in range(len(ahead)):
        price = table.price[a]
        if not front + table.cheapest[a] < table.value[i, a]:
            continue
        least = _least_sum(ahead, price)
        if least < table.value[i, a]:
            table.value[i, a] = least
            b = 0
            while ahead[b] + price[b] > least:
                b += 1
            plan.target[i, a] = b


@compiled
def relaunch_cost(model: Model, energy_weight: float, time_weight: float, i: int, b: int) -> float:
    """Weighted cost of what a drained launch waits for after the change."""
    relaunch_ns = model.rules.relaunch_ns[i]
    if relaunch_ns == 0:
        return 0.0
    cost: float = (energy_weight * model.cells.idle_w[b] * 1e-9 + time_weight) * relaunch_ns
    return cost if np.isfinite(cost) else np.inf


@compiled
def _within(order: Order, a: int, work_ns: int) -> int:
    """Number of targets of ``a`` that need no longer than ``work_ns``."""
    low, high = 0, order.n_targets[a]
    while low < high:
        middle = (low + high) // 2
        if order.work_ns[a, middle] <= work_ns:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def _lookahead(model: Model, table: Table, plan: Plan, i: int) -> None:
    """Landings that a request can reach from boundary i, but not from the next one any more."""
    rules, order, value, staying = model.rules, model.order, table.value, table.staying
    n, n_clocks = model.cells.allowed.shape
    limit = i + n if rules.periodic else n
    for a in range(n_clocks):
        if order.n_targets[a] == 0:
            continue
        starts, run, barred = model.runs.start_ns[a], table.run[a], model.runs.barred[a]
        # From the first boundary that the nearest target can land on ...
        first, last = table.first[a], table.last[a]
        while first > i and starts[first - 1] >= starts[i] + order.work_ns[a, 0]:
            first -= 1
        # ... to the last one that the furthest cannot reach from the next boundary.
        while last > i and starts[last] >= starts[i + 1] + order.work_ns[a, order.n_targets[a] - 1]:
            last -= 1
        table.first[a], table.last[a] = first, last
        if not model.cells.allowed[i, a]:
            continue
        # The target with the lowest bound is priced. Only if others' bounds are below that price,
        # which is rare, a second round prices them too.
        best = value[i, a]
        lowest, second = best, best
        likely, likely_landing = -1, -1
        for settling in range(2):
            for m in range(first, min(last, limit) + 1):
                until = run[m] - run[i]
                if not until + table.front[m] < second or not rules.may_change[m % n]:
                    continue
                if barred[m] != barred[i]:
                    break
                nearer = _within(order, a, starts[m] - starts[i + 1])
                for s in range(nearer, _within(order, a, starts[m] - starts[i])):
                    b = order.target[a, s]
                    bound = until + (staying[b] if m == i else value[m, b])
                    if bound < second:
                        if settling:
                            best = _price(model, table, plan, i, a, b, m, limit, best)
                            second = best
                        elif bound < lowest:
                            second, lowest = lowest, bound
                            likely, likely_landing = b, m
                        else:
                            second = bound
            if likely < 0 or settling:
                break
            best = _price(model, table, plan, i, a, likely, likely_landing, limit, best)
            if second >= best:
                break
            second = best
        value[i, a] = best


@compiled
def _price(
    model: Model, table: Table, plan: Plan, i: int, a: int, b: int, landing: int, limit: int, best: float
) -> float:
    """The exact cost of a change, written down if it is the best."""
    arrival, time_ns, energy_j = change(model, i, a, b, landing)
    if 0 <= arrival <= limit:
        cost: float = table.energy_weight * energy_j + table.time_weight * time_ns + table.value[arrival, b]
        if cost < best:
            plan.target[i, a] = b
            plan.landing[i, a] = landing
            return cost
    return best


@compiled
def _follow(model: Model, table: Table, plan: Plan, i: int) -> None:
    """The landing of a request made at boundary i."""
    cells, rules, order, value, staying = model.cells, model.rules, model.order, table.value, table.staying
    n, n_clocks = cells.allowed.shape
    limit = i + n if rules.periodic else n
    for a in range(n_clocks):
        if order.n_targets[a] == 0:
            continue
        starts, run, barred = model.runs.start_ns[a], table.run[a], model.runs.barred[a]
        asked_ns = starts[i] + rules.trigger_ns
        first = table.first[a]  # the launch in which the nearest target lands
        while starts[first] > asked_ns + order.work_ns[a, 0]:
            first -= 1
        table.first[a] = first
        if not cells.allowed[i, a]:
            continue
        best = value[i, a]
        lowest, second = best, best
        likely = -1
        for settling in range(2):  # as for lookahead
            s, m = 0, first
            while s < order.n_targets[a] and m < limit and barred[m] == barred[i]:
                begins_ns = starts[m] - asked_ns
                lasts_ns = starts[m + 1] - starts[m]
                until = run[m] - run[i] - table.nanosecond
                if not until + min(table.least[m] + table.front[m + 1], table.front[m]) < second:
                    s = _within(order, a, begins_ns + lasts_ns - 1)
                    m += 1
                    continue
                k = m % n
                gap_ns = cells.gap_ns[k]  # at least
                busy_ns = launch_ns(cells, k, a)
                busy_cost = table.energy_weight * cells.power_w[cells.kind[k], a] * 1e-9 + table.time_weight
                gap_cost = gap_ns * table.time_weight
                while s < order.n_targets[a] and order.work_ns[a, s] < begins_ns + lasts_ns:
                    b = order.target[a, s]
                    elapsed_ns = order.work_ns[a, s] - begins_ns
                    s += 1
                    if elapsed_ns == 0:
                        bound = until + (staying[b] if m == i else value[m, b])
                    elif elapsed_ns < busy_ns:
                        rest = (1 - elapsed_ns / busy_ns) * table.busy[k, b]
                        bound = until + elapsed_ns * busy_cost + rest + gap_cost + value[m + 1, b]
                    else:
                        bound = until + busy_ns * busy_cost + gap_cost + value[m + 1, b]
                    if bound < second:
                        if settling:
                            best = _price(model, table, plan, i, a, b, AT_ONCE, limit, best)
                            second = best
                        elif bound < lowest:
                            second, lowest = lowest, bound
                            likely = b
                        else:
                            second = bound
                m += 1
            if likely < 0 or settling:
                break
            best = _price(model, table, plan, i, a, likely, AT_ONCE, limit, best)
            if second >= best:
                break
            second = best
        value[i, a] = best


@compiled
def _restart(model: Model, table: Table) -> None:
    table.first[:] = model.runs.start_ns.shape[1] - 1


@compiled
def trace(model: Model, plan: Plan, i: int, c: int, choice: Ints) -> tuple[int, int, int, float]:
    """Follow a plan from a state to the end of the first iteration: (arrival, clock, ns, J).

    ``choice`` receives the clocks asked for at every launch passed, the landing's under lookahead.
    """
    n = len(model.cells.kind)
    total_ns, total_j = 0, 0.0
    while i < n:
        b = plan.target[i, c]
        landing = plan.landing[i, c]
        if b == STAY:
            b = c
            arrival = i + 1
            time_ns, energy_j = cell_cost(model.cells, i, c)
        else:
            arrival, time_ns, energy_j = change(model, i, c, b, landing)
        for k in range(i, arrival):
            choice[k % n] = c if k < landing else b
        total_ns += time_ns
        total_j += energy_j
        i, c = arrival, b
    return i, c, total_ns, total_j
