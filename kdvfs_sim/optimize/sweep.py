"""One backward sweep of the dynamic programme: the least weighted cost from every state on.

Exact, and arranged for speed. The changes from one state are looked at in the order in which they
land; each is bounded from below at the cost of a few loads: running on until then, what is left of
the launch it lands in, and the best that can follow. The one with the lowest bound is priced by
``changes``, and that price counts; another only if its bound is below that price, which is rare:
it leaves out little more than what stalls.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kdvfs_sim.core.compiled import borrowing, compiled
from kdvfs_sim.optimize.additive import Floats, Ints, cell_cost, launch_ns
from kdvfs_sim.optimize.changes import AT_ONCE, Model, change

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
    price: Floats  # (C, C): what a change costs by itself: under drain the pause, else its energy
    cheapest: Floats  # (C,): the least of a row of ``price``
    run: Floats  # (C, boundaries): weighted sums of running under one request from the first launch
    rate: Floats  # (K, C): weighted cost of a nanosecond of a kind
    idle: Floats  # (C,): weighted cost of an idle nanosecond
    hidden: float  # what rounding can hide of a launch that starts while a change is landing
    first: Ints  # (C,): where the nearest target of a source last landed
    reached: Floats  # (C,): the least cost by a change, for the boundary in work
    ranked: npt.NDArray[np.int16]  # (boundaries, C): clocks by ascending value; lookahead


def new_plan(model: Model) -> Plan:
    shape = model.cells.allowed.shape
    return Plan(np.empty(shape, dtype=np.int16), np.empty(shape, dtype=np.int32))


@compiled
def sweep(model: Model, energy_weight: float, time_weight: float, value: Floats, plan: Plan) -> None:
    """Fill ``value[i, c]`` for the boundaries that the plan has, from the last to the first.

    ``value`` has one row a boundary of the runs; the rows beyond the plan's are given: zeros at the
    end, or what follows, or is assumed to. What cannot be completed is infinite.
    """
    cells, rules = model.cells, model.rules
    n, n_clocks = plan.target.shape
    table = _prepare(model, energy_weight, time_weight, value)
    staying = table.staying
    for i in range(n, value.shape[0] if rules.anticipates else n):
        table.ranked[i] = np.argsort(value[i])
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
        elif rules.anticipates:
            table.ranked[i] = np.argsort(value[i])  # for a change that lands where it is requested
            _lookahead(model, table, plan, i)
            table.ranked[i] = np.argsort(value[i])
            if i == 0 and rules.at_once:
                table.first[:] = value.shape[0] - 1
                _follow(model, table, plan, i)
        elif rules.may_change[i]:
            _follow(model, table, plan, i)


@compiled
def _prepare(model: Model, energy_weight: float, time_weight: float, value: Floats) -> Table:
    runs, rules = model.runs, model.rules
    n_clocks, n_boundaries = runs.start_ns.shape
    cheapest = np.full(n_clocks, np.inf)
    idle = np.zeros(n_clocks)
    rate = energy_weight * 1e-9 * model.cells.power_w + time_weight
    run = np.empty((0, 0))
    if rules.drains:
        price = pause_price(model, energy_weight, time_weight)
        for a in range(n_clocks):
            cheapest[a] = price[a].min()
    else:
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
        nanosecond(model, energy_weight, time_weight) if rules.stall_ns.any() else 0.0,
        np.full(n_clocks, n_boundaries - 1),
        np.full(n_clocks, np.inf),
        np.zeros((n_boundaries, n_clocks), dtype=np.int16),
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


@borrowing
def _least(values: Floats) -> float:
    least = np.inf
    for value in values:
        least = min(least, value)
    return least


@borrowing
def _least_sum(x: Floats, y: Floats) -> float:
    least = np.inf
    for k in range(len(x)):
        least = min(least, x[k] + y[k])
    return least


@borrowing
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


@borrowing
def relaunch_cost(model: Model, energy_weight: float, time_weight: float, i: int, b: int) -> float:
    """Weighted cost of what a drained launch waits for after the change."""
    relaunch_ns = model.rules.relaunch_ns[i]
    if relaunch_ns == 0:
        return 0.0
    cost: float = (energy_weight * model.cells.idle_w[b] * 1e-9 + time_weight) * relaunch_ns
    return cost if np.isfinite(cost) else np.inf


@borrowing
def _lookahead(model: Model, table: Table, plan: Plan, i: int) -> None:
    """Landings that a request can reach from boundary i, but not from the next one any more.

    Landing on the next one at once, where that takes no time, is also decided here: decided there,
    a launch would have to run before the next decision.
    """
    rules, order, value = model.rules, model.order, table.value
    n, n_clocks = model.cells.allowed.shape
    limit = i + n if rules.periodic else n
    for a in range(n_clocks):
        n_targets = order.n_targets[a]
        table.reached[a] = value[i, a]
        if n_targets == 0 or not model.cells.allowed[i, a]:
            continue
        starts, run, barred = model.runs.start_ns[a], table.run[a], model.runs.barred[a]
        first = table.first[a]
        while first > i and starts[first - 1] >= starts[i] + order.work_ns[a, 0]:
            first -= 1
        table.first[a] = first
        best = value[i, a]
        lowest, second = best, best
        likely, likely_landing = -1, -1
        for settling in range(2):
            m, near, far = first, 0, 0
            while m <= limit and near < n_targets and barred[m] == barred[i]:
                # Targets from ``near`` up to ``far`` land here if asked for now, and only now.
                most_ns = starts[m] - starts[i]
                late_ns = starts[m] - starts[i + 1] if m > i + 1 else -1
                until = run[m] - run[i] - table.hidden
                if until + value[m, table.ranked[m, 0]] < second and rules.may_change[m if m < n else m - n]:
                    while near < n_targets and order.work_ns[a, near] <= late_ns:
                        near += 1
                    far = max(far, near)
                    while far < n_targets and order.work_ns[a, far] <= most_ns:
                        far += 1
                    few = (far - near) * (far - near) < n_clocks
                    for t in range(near, far) if few else range(n_clocks):
                        b = order.target[a, t] if few else table.ranked[m, t]
                        bound = until + value[m, b]
                        if bound >= second:
                            if few:
                                continue
                            break
                        work_ns = rules.work_ns[a, b]
                        if a == b or work_ns <= late_ns or work_ns > most_ns or not rules.requestable[b]:
                            continue
                        bound += table.price[a, b]
                        if bound >= second:
                            continue
                        if settling:
                            best = _price(model, table, plan, i, a, b, m, limit, best)
                            second = best
                        elif bound < lowest:
                            second, lowest = lowest, bound
                            likely, likely_landing = b, m
                        else:
                            second = bound
                elif late_ns >= order.work_ns[a, n_targets - 1]:
                    break
                m += 1
            if likely < 0 or settling:
                break
            best = _price(model, table, plan, i, a, likely, likely_landing, limit, best)
            if second >= best:
                break
            second = best
        table.reached[a] = best
    for a in range(n_clocks):
        value[i, a] = table.reached[a]


@borrowing
def _follow(model: Model, table: Table, plan: Plan, i: int) -> None:
    """The landing of a request made at boundary i."""
    cells, rules, order, value, staying = model.cells, model.rules, model.order, table.value, table.staying
    n, n_clocks = cells.allowed.shape
    limit = i + n if rules.periodic else n
    for a in range(n_clocks):
        if order.n_targets[a] == 0 or not cells.allowed[i, a]:
            continue
        starts, run, barred, idle = model.runs.start_ns[a], table.run[a], model.runs.barred[a], table.idle[a]
        asked_ns = starts[i] + rules.trigger_ns
        first = table.first[a]  # the launch in which the nearest target lands
        while starts[first] > asked_ns + order.work_ns[a, 0]:
            first -= 1
        table.first[a] = first
        best = value[i, a]
        lowest, second = best, best
        likely, is_price = -1, False
        for settling in range(2):  # as for lookahead
            m, entered, plain = first, -1, False
            kind, begins_ns, busy_ns, gap_ns, until, rate = 0, 0, 0, 0, 0.0, 0.0
            for s in range(order.n_targets[a]):
                stops_ns = asked_ns + order.work_ns[a, s]
                while m < limit and starts[m + 1] <= stops_ns:
                    m += 1
                if m != entered:
                    if m >= limit or barred[m] != barred[i]:
                        break
                    k = m if m < n else m - n
                    entered, kind, begins_ns, gap_ns = m, cells.kind[k], starts[m], cells.gap_ns[k]
                    busy_ns = launch_ns(cells, k, a) if cells.allowed[k, a] else 0
                    until, rate = run[m] - run[i] - table.hidden, table.rate[kind, a]
                    plain = table.hidden == 0.0 and cells.allowed[k, a] and cells.floor_ns[k] == 0
                b = order.target[a, s]
                elapsed_ns = stops_ns - begins_ns
                bound = until + table.price[a, b]
                if elapsed_ns == 0:
                    bound += staying[b] if m == i else value[m, b]
                elif elapsed_ns < busy_ns:
                    bound += elapsed_ns * rate + gap_ns * table.idle[b] + value[m + 1, b]
                    if bound >= second:
                        continue
                    scale = cells.ratio[kind, b] / cells.ratio[kind, a]
                    bound += np.rint((busy_ns - elapsed_ns) * scale) * table.rate[kind, b]
                else:
                    waited_ns = elapsed_ns - busy_ns
                    bound += busy_ns * rate + waited_ns * idle + value[m + 1, b]
                    if waited_ns < gap_ns:
                        after = table.idle[b] if table.hidden == 0.0 else min(idle, table.idle[b])
                        bound += (gap_ns - waited_ns) * after
                if bound < second:
                    if settling:
                        best = _price(model, table, plan, i, a, b, AT_ONCE, limit, best)
                        second = best
                    elif bound < lowest:
                        second, lowest = lowest, bound
                        likely = b
                        is_price = plain and cells.allowed[m if m < n else m - n, b]
                    else:
                        second = bound
            if likely < 0 or settling:
                break
            if is_price and rules.ready_ns[a, likely] == rules.work_ns[a, likely]:
                best = lowest
                plan.target[i, a], plan.landing[i, a] = likely, AT_ONCE
            else:
                best = _price(model, table, plan, i, a, likely, AT_ONCE, limit, best)
            if second >= best:
                break
            second = best
        value[i, a] = best


@borrowing
def _price(
    model: Model, table: Table, plan: Plan, i: int, a: int, b: int, landing: int, limit: int, best: float
) -> float:
    """The exact cost of a change, written down if it is the best."""
    if landing > i and model.rules.ready_ns[a, b] == model.rules.work_ns[a, b]:
        # Lands on the boundary, and nothing is left to wait for.
        cost: float = table.run[a, landing] - table.run[a, i] + table.price[a, b] + table.value[landing, b]
    else:
        arrival, time_ns, energy_j = change(model, i, a, b, landing)
        if arrival < 0 or arrival > limit:
            return best
        cost = table.energy_weight * energy_j + table.time_weight * time_ns + table.value[arrival, b]
    if cost < best:
        plan.target[i, a] = b
        plan.landing[i, a] = landing
        return cost
    return best


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
