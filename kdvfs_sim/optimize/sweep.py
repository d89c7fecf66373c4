"""One backward sweep of the dynamic programme: the least weighted cost from every state on.

Exact. Drained changes cost the same everywhere and are priced here; those that land while work goes
on are looked at in ``landings``.
"""

from __future__ import annotations

import numpy as np

from kdvfs_sim.core.compiled import borrowing, compiled
from kdvfs_sim.optimize.additive import Floats, Ints, cell_cost, launch_ns, least_of
from kdvfs_sim.optimize.changes import AT_ONCE, Model, change, hidden
from kdvfs_sim.optimize.landings import BLOCK, STAY, Plan, Table, at_once, follow, lookahead

STATES = 2_000_000  # clocks times clocks times launches that are swept at a time, about 10 ms
SAME = 1e-13  # relative: rises of values that count as the same


def new_plan(model: Model) -> Plan:
    """Room for the decisions of one sweep."""
    shape = model.cells.allowed.shape
    return Plan(np.empty(shape, dtype=np.int16), np.empty(shape, dtype=np.int32))


def sweep(
    model: Model,
    energy_weight: float,
    time_weight: float,
    value: Floats,
    plan: Plan,
    *,
    reach: Ints | None = None,
) -> None:
    """Fill ``value[i, c]`` for the boundaries that the plan has, from the last to the first.

    ``value`` has one row a boundary of the runs; the rows beyond the plan's are given: zeros at the
    end, or what follows, or is assumed to. What cannot be completed is infinite.

    ``reach``: the plan and its rows of ``value`` are those of a sweep with the same weights and other
    given rows, and no change decided before boundary i leads to boundary ``reach[i]`` or beyond. Where all
    rows up to there have risen by the same, earlier ones have too, and keep their decisions; they are
    raised by the least.
    """
    before = value[: len(plan.target)].copy() if reach is not None else None
    table = prepare(model, energy_weight, time_weight, value)
    stop = len(plan.target)
    part = max(1, STATES // len(table.costs) ** 2)
    while stop > 0:  # in parts: a compiled loop does not hear of interrupts
        first = max(0, stop - part)
        _sweep(model, table, plan, first, stop)
        if before is not None and reach is not None and reach[first] <= len(before):
            rows = slice(first, reach[first])
            rise = _rise(before[rows], value[rows])
            if rise is not None:
                value[:first] += rise
                return
        stop = first


def _rise(before: Floats, after: Floats) -> float | None:
    """By how much all values have risen, at least; None if not all by the same."""
    finite = np.isfinite(after)
    if not finite.any() or (finite != np.isfinite(before)).any():
        return None
    rises = after[finite] - before[finite]
    least, most = float(rises.min()), float(rises.max())
    return least if most - least <= SAME * float(np.abs(after[finite]).max()) else None


@borrowing
def _sweep(model: Model, table: Table, plan: Plan, first: int, stop: int) -> None:
    """The boundaries from ``first`` up to ``stop``."""
    cells, rules, value, staying = model.cells, model.rules, table.value, table.staying
    n, n_clocks = plan.target.shape
    if stop == n and not rules.drains:
        for m in range(len(value) - 1, n - 1, -1):
            _look_ahead(model, table, m)
            _summarize(model, table, m)
    for i in range(stop - 1, first - 1, -1):
        for c in range(n_clocks):
            staying[c] = np.inf
            plan.target[i, c] = STAY
            plan.landing[i, c] = AT_ONCE
            if cells.allowed[i, c]:
                time_ns, energy_j = cell_cost(cells, i, c)
                staying[c] = table.energy_weight * energy_j + table.time_weight * time_ns + value[i + 1, c]
            value[i, c] = staying[c]
        if rules.drains:
            if rules.may_change[i]:
                _drain(model, table, plan, i)
            continue
        if rules.anticipates:
            if model.order.immediate:
                _look_ahead(model, table, i)
                _summarize(model, table, i)
            lookahead(model, table, plan, i)
            if i == 0 and rules.at_once:
                at_once(model, table, plan)
            _look_ahead(model, table, i)
        else:
            _look_ahead(model, table, i)
            if rules.may_change[i]:
                follow(model, table, plan, i)
        _summarize(model, table, i)


@borrowing
def _look_ahead(model: Model, table: Table, m: int) -> None:
    """What is still to come after a landing in launch m, or on its boundary.

    Until the call of a change returns, its clocks stay. The least cost of running on to a boundary only
    rises with the boundary, so the earliest at which the call can have returned bounds from below.
    """
    rules, order, value, starts = model.rules, model.order, table.value, model.runs.start_ns
    n, n_clocks = model.cells.allowed.shape
    if rules.anticipates:
        since, early_ns = m, rules.rounding_ns if rules.stalls else 0
    else:
        since, early_ns = m + 1, rules.rounding_ns
    if since == len(value):
        return
    for level, wait_ns in enumerate(order.wait_ns):
        for b in range(n_clocks):
            ahead = value[since, b]
            if not rules.requestable[b] or (rules.anticipates and not rules.may_change[m % n]):
                ahead = np.inf
            elif wait_ns > 0:
                behind = table.behind[level, b]
                while behind > since and starts[b, behind - 1] >= starts[b, m] + wait_ns - early_ns:
                    behind -= 1
                table.behind[level, b] = behind
                ahead = np.inf
                if model.runs.barred[b, behind] == model.runs.barred[b, since]:
                    ahead = table.run[b, behind] - table.run[b, since] + value[behind, b]
            table.ahead[level, m, b] = ahead
    kind, gap_ns = model.cells.kind[m % n], model.cells.gap_ns[m % n]
    after, gap, whole = np.inf, np.inf, np.inf
    for level in range(len(order.wait_ns)):
        for b in range(n_clocks):
            ahead = table.ahead[level, m, b]
            after = min(after, ahead)
            ahead += gap_ns * table.idle[b]
            gap = min(gap, ahead)
            if model.cells.allowed[m % n, b]:
                unrounded_ns = model.cells.duration_ns[m % n] * model.cells.ratio[kind, b]
                whole = min(whole, ahead + unrounded_ns * table.rate[kind, b])
    table.after[m], table.gap[m], table.whole[m] = after, gap, whole


@borrowing
def _summarize(model: Model, table: Table, m: int) -> None:
    """For every source the least of running on to a landing in launch m, or on its boundary."""
    cells, run = model.cells, table.run
    n, n_clocks = cells.allowed.shape
    k, kind = m % n, cells.kind[m % n]
    on_boundary = table.after[m] if model.rules.anticipates else least_of(table.value[m], n_clocks)
    for a in range(n_clocks):
        point = on_boundary
        if not model.rules.anticipates and cells.allowed[k, a]:
            gap = min(table.gap[m], cells.gap_ns[k] * table.idle[a] + table.after[m])
            point = min(point, launch_ns(cells, k, a) * table.rate[kind, a] + gap)
        point += run[a, m] - table.rounding
        table.point[a, m] = point
        table.block[a, m // BLOCK] = min(table.block[a, m // BLOCK], point)


@compiled
def prepare(model: Model, energy_weight: float, time_weight: float, value: Floats) -> Table:
    """What a sweep with these weights looks up, as far as ``value``, its last rows, says it already."""
    runs, rules = model.runs, model.rules
    n_clocks, n_boundaries = runs.start_ns.shape
    cheapest = np.full(n_clocks, np.inf)
    idle = np.zeros(n_clocks)
    rate = energy_weight * 1e-9 * model.cells.power_w + time_weight
    run = np.empty((0, 0))
    n_ahead = n_levels = 0
    if rules.drains:
        price = pause_price(model, energy_weight, time_weight, 0)
        for a in range(n_clocks):
            cheapest[a] = price[a].min()
    else:
        n_ahead, n_levels = n_boundaries, len(model.order.wait_ns)
        price = energy_weight * rules.extra_j
        run = np.empty((n_clocks, n_boundaries))
        for c in range(n_clocks):
            if np.isfinite(model.cells.idle_w[c]):
                idle[c] = energy_weight * model.cells.idle_w[c] * 1e-9 + time_weight
            for i in range(n_boundaries):
                run[c, i] = energy_weight * runs.energy_j[c, i] + time_weight * runs.start_ns[c, i]
    return Table(
        energy_weight,
        time_weight,
        value,
        np.empty(n_clocks),
        price,
        cheapest,
        run,
        rate,
        idle,
        rules.rounding_ns * nanosecond(model, energy_weight, time_weight),
        np.empty((n_levels, n_ahead, n_clocks)),
        np.full((n_levels, n_clocks), n_boundaries - 1),
        np.full(n_ahead, np.inf),
        np.full(n_ahead, np.inf),
        np.full(n_ahead, np.inf),
        np.full((n_clocks, n_ahead), np.inf),
        np.full((n_clocks, n_ahead // BLOCK + 1), np.inf),
        np.full(n_clocks, n_boundaries - 1),
        np.empty(n_clocks),
    )


@borrowing
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
        least[i] = least_of(busy[i], busy.shape[1])
        if model.cells.gap_ns[i] > 0:
            least[i] += (energy_weight * idle_least_w * 1e-9 + time_weight) * model.cells.gap_ns[i]
    return least


@compiled
def pause_price(model: Model, energy_weight: float, time_weight: float, hidden_ns: int) -> Floats:
    """(C, C): weighted cost of a drained change of which ``hidden_ns`` pass in a pause, without the relaunch;
    infinite where there is none."""
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
                less_ns, less_j = hidden(model, hidden_ns, a, b)
                price[a, b] = energy_weight * (idle_j - less_j + rules.extra_j[a, b])
                price[a, b] += time_weight * (pause_ns - less_ns)
    return price


@borrowing
def _drain(model: Model, table: Table, plan: Plan, i: int) -> None:
    relaunch_ns, hidden_ns = model.rules.relaunch_ns[i], model.cells.hidden_ns[i]
    n_clocks = len(table.staying)
    ahead, costs = table.staying, table.costs  # ahead: once the change has been made
    if relaunch_ns > 0:
        for b in range(len(ahead)):
            ahead[b] += relaunch_cost(model, table.energy_weight, table.time_weight, i, b)
    front = least_of(ahead, n_clocks)
    for a in range(n_clocks):
        if hidden_ns == 0 and not front + table.cheapest[a] < table.value[i, a]:
            continue
        for b in range(n_clocks):
            costs[b] = ahead[b] + table.price[a, b]
            if hidden_ns > 0 and costs[b] < np.inf:
                less_ns, less_j = hidden(model, hidden_ns, a, b)
                costs[b] -= table.energy_weight * less_j + table.time_weight * less_ns
        least = least_of(costs, n_clocks)
        if least < table.value[i, a]:
            table.value[i, a] = least
            b = 0
            while costs[b] > least:
                b += 1
            plan.target[i, a] = b


@borrowing
def relaunch_cost(model: Model, energy_weight: float, time_weight: float, i: int, b: int) -> float:
    """Weighted cost of what a drained launch waits for after the change."""
    relaunch_ns = model.rules.relaunch_ns[i]
    if relaunch_ns == 0:
        return 0.0
    cost: float = (energy_weight * model.cells.idle_w[b] * 1e-9 + time_weight) * relaunch_ns
    return cost if np.isfinite(cost) else np.inf


@borrowing
def trace(model: Model, plan: Plan, i: int, c: int, choice: Ints) -> tuple[int, int, int, float]:
    """Follow a plan from a state to its end: (arrival, clock, ns, J).

    ``choice`` receives the clocks asked for at every launch passed, the landing's under lookahead.
    """
    n = len(model.cells.kind)
    total_ns, total_j = 0, 0.0
    while i < len(plan.target):
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
