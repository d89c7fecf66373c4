"""The changes of one boundary in a backward sweep: where they land, and which is best.

For every source of a change there are many targets, each landing at a time of its own. Exact, and
arranged for speed: a block of launches, then a launch, is passed over if nothing that lands there
can be better than what is known; the targets that land in one launch are then bounded together,
row by row, and the lowest is taken if its bound is its price, or else priced by ``changes``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kdvfs_sim.core.compiled import borrowing
from kdvfs_sim.optimize.additive import Floats, Ints, launch_ns, least_of
from kdvfs_sim.optimize.changes import AT_ONCE, Model, change, first_at_or_after, late

STAY = -1
BLOCK = 8  # launches passed over together
FEW = 8  # a row in so many: fewer targets than that are looked at one by one


class Plan(NamedTuple):
    """For every state of the first iteration the best decision: the target or STAY, and the
    boundary on which it lands (lookahead; AT_ONCE where the request is made at once)."""

    target: npt.NDArray[np.int16]
    landing: npt.NDArray[np.int32]


class Table(NamedTuple):
    """A sweep in work, for one pair of weights.

    ``ahead[l, i, b]``: what is still to come for a change to ``b`` of level ``l`` (see ``Order``): under
    lookahead from its landing on boundary i on; under follow after launch i and the gap after it,
    at least, for a landing anywhere in launch i.
    """

    energy_weight: float
    time_weight: float
    value: Floats  # (boundaries, C): the least cost from a state on
    staying: Floats  # (C,): the same at the boundary in work, if the next launch runs unchanged
    price: Floats  # (C, C): what a change costs by itself: under drain the pause, else its energy
    cheapest: Floats  # (C,): the least of a row of ``price``
    run: Floats  # (C, boundaries): weighted sums of running under one request from the first launch
    rate: Floats  # (K, C): weighted cost of a nanosecond of a kind
    idle: Floats  # (C,): weighted cost of an idle nanosecond
    rounding: float  # what rounding can hide of a launch that runs under two clocks
    ahead: Floats  # (levels, boundaries, C)
    behind: Ints  # (levels, C): the boundary at which the call of a change to a clock returns
    after: Floats  # (boundaries,): the least of a row of ``ahead``; the same ...
    gap: Floats  # (boundaries,): ... with the gap before it, and ...
    whole: Floats  # (boundaries,): ... with all of the launch
    point: Floats  # (C, boundaries): the least of running on to a landing there, and what follows
    block: Floats  # (C, blocks): the least of several of them
    first: Ints  # (C,): where the nearest target of a source last landed
    costs: Floats  # (C,): bounds of the targets in work


@borrowing
def follow(model: Model, table: Table, plan: Plan, i: int) -> None:
    """The landing of a request made at boundary i."""
    order, run, value = model.order, table.run, table.value
    starts, barred = model.runs.start_ns, model.runs.barred
    n, n_clocks = model.cells.allowed.shape
    limit = i + n if model.rules.periodic else n
    for a in range(n_clocks):
        n_targets = order.n_targets[a]
        if n_targets == 0:
            continue
        asked_ns = starts[a, i] + model.rules.trigger_ns
        if model.rules.periodic and late(model, a, i, n):
            continue
        furthest_ns = asked_ns + order.work_ns[a, n_targets - 1]
        m = table.first[a]  # the launch in which the nearest target lands
        while starts[a, m] > asked_ns + order.work_ns[a, 0]:
            m -= 1
        table.first[a] = m
        s = 0
        while m < limit and starts[a, m] <= furthest_ns:
            if m > i and m % BLOCK == 0 and table.block[a, m // BLOCK] - run[a, i] >= value[i, a]:
                m += BLOCK
                continue
            if barred[a, m] != barred[a, i]:
                break
            if m == i or table.point[a, m] - run[a, i] < value[i, a]:
                s = _first_at(order.work_ns, a, s, n_targets, starts[a, m] - asked_ns)
                lands_ns = asked_ns + order.work_ns[a, s]
                if starts[a, m + 1] <= lands_ns:  # on to the launch in which the next target lands
                    m = first_at_or_after(starts[a], m + 1, lands_ns + 1) - 1
                    continue
                stop = _first_at(order.work_ns, a, s, n_targets, starts[a, m + 1] - asked_ns)
                _land_in(model, table, plan, i, a, m, s, stop, asked_ns - starts[a, m])
                s = stop
            m += 1


@borrowing
def _land_in(
    model: Model, table: Table, plan: Plan, i: int, a: int, m: int, s: int, stop: int, asked_ns: int
) -> None:
    """The targets ``s`` up to ``stop`` of ``a``, which land in launch m when asked for ``asked_ns`` after
    (or before) it starts."""
    cells, order, rules, idle = model.cells, model.order, model.rules, table.idle
    n, n_clocks = cells.allowed.shape
    k = m if m < n else m - n
    kind, gap_ns = cells.kind[k], cells.gap_ns[k]
    busy_ns = launch_ns(cells, k, a) if cells.allowed[k, a] else 0
    rest_ns = model.runs.start_ns[a, m + 1] - model.runs.start_ns[a, m]  # with the gap
    rate, ratio = table.rate[kind, a], cells.ratio[kind, a]
    base = table.run[a, m] - table.run[a, i]
    until = base + busy_ns * rate
    nearest_ns = asked_ns + order.work_ns[a, s]
    if nearest_ns > 0:  # running under two clocks costs no less than the mean of both ends
        low = np.inf
        if nearest_ns < busy_ns:
            share = (busy_ns - nearest_ns) / (ratio * cells.duration_ns[k])
            low = table.whole[m] if share >= 1 else table.gap[m] + share * (table.whole[m] - table.gap[m])
            low += base + nearest_ns * rate
        low = min(low, until + min(table.gap[m], gap_ns * idle[a] + table.after[m]))
        if not low - table.rounding < table.value[i, a]:
            return
    floor_ns = cells.floor_ns[k]
    if rules.stalls:  # time and power that the stall takes come on top, and a floor counts it in
        floor_ns = 0
        base -= table.rounding
        until -= table.rounding
    many = FEW * (stop - s) > n_clocks
    costs = table.costs
    if many:
        costs[:] = np.inf
        _fill_inside(model, table, a, m, kind, k, asked_ns, busy_ns, floor_ns, base)
        if asked_ns + order.work_ns[a, stop - 1] >= busy_ns:
            _fill_gap(model, table, a, m, asked_ns, busy_ns, rest_ns, until)
    for t in range(s, stop):
        b = order.target[a, t]
        elapsed_ns = asked_ns + order.work_ns[a, t]
        if elapsed_ns == 0:
            cost = base + table.price[a, b] + (table.staying[b] if m == i else table.value[m, b])
        elif many:
            break
        else:
            later = table.ahead[order.level[a, b], m, b] + table.price[a, b]
            if elapsed_ns >= busy_ns:
                waited_ns = elapsed_ns - busy_ns
                cost = until + later
                cost += _waiting(waited_ns, rest_ns - elapsed_ns, idle[a], idle[b], rules.stalls)
            elif cells.allowed[k, b]:
                scale = cells.ratio[kind, b] / ratio
                cost = base + later
                cost += _inside(
                    elapsed_ns, busy_ns, scale, rate, table.rate[kind, b], gap_ns, floor_ns, idle[b]
                )
            else:
                cost = np.inf
        costs[b if many else t - s] = cost
    _take_best(model, table, plan, i, a, AT_ONCE, k, s, n_clocks if many else stop - s)


@borrowing
def _inside(
    elapsed_ns: float,
    busy_ns: float,
    scale: float,
    rate_old: float,
    rate_new: float,
    gap_ns: float,
    floor_ns: float,
    idle: float,
) -> float:
    """Cost of a launch that a change lands in, and of the gap after it."""
    rest_ns = np.rint((busy_ns - elapsed_ns) * scale)
    waits_ns = max(gap_ns, floor_ns - elapsed_ns - rest_ns)
    cost: float = elapsed_ns * rate_old + rest_ns * rate_new + waits_ns * idle
    return cost


@borrowing
def _waiting(waited_ns: float, rest_ns: float, idle_old: float, idle_new: float, stalls: bool) -> float:
    """Cost of a gap that a change lands in; with a stall, some more of it is spent on the old clocks."""
    return waited_ns * idle_old + rest_ns * (min(idle_old, idle_new) if stalls else idle_new)


@borrowing
def _fill_inside(
    model: Model,
    table: Table,
    a: int,
    m: int,
    kind: int,
    k: int,
    asked_ns: float,
    busy_ns: float,
    floor_ns: float,
    base: float,
) -> None:
    """Bound every target that lands while launch m runs. Compiled to vector instructions."""
    lands_ns, ratios, rates, idle = model.order.lands_ns, model.cells.ratio, table.rate, table.idle
    allowed, ahead, prices, costs = model.cells.allowed, table.ahead, table.price, table.costs
    gap_ns = float(model.cells.gap_ns[k])
    ratio, rate = ratios[kind, a], rates[kind, a]
    for level in range(len(lands_ns)):
        for b in range(len(costs)):
            elapsed_ns = lands_ns[level, a, b] + asked_ns
            cost = base + ahead[level, m, b] + prices[a, b]
            cost += _inside(
                elapsed_ns, busy_ns, ratios[kind, b] / ratio, rate, rates[kind, b], gap_ns, floor_ns, idle[b]
            )
            here = (elapsed_ns > 0) & (elapsed_ns < busy_ns) & allowed[k, b]
            costs[b] = cost if here else costs[b]


@borrowing
def _fill_gap(
    model: Model, table: Table, a: int, m: int, asked_ns: float, busy_ns: float, stop_ns: float, until: float
) -> None:
    """Bound every target that lands in the gap after launch m."""
    lands_ns, idle, ahead, prices = model.order.lands_ns, table.idle, table.ahead, table.price
    costs, stalls, idle_old = table.costs, model.rules.stalls, table.idle[a]
    for level in range(len(lands_ns)):
        for b in range(len(costs)):
            elapsed_ns = lands_ns[level, a, b] + asked_ns
            cost = until + ahead[level, m, b] + prices[a, b]
            cost += _waiting(elapsed_ns - busy_ns, stop_ns - elapsed_ns, idle_old, idle[b], stalls)
            here = (elapsed_ns > 0) & (elapsed_ns >= busy_ns) & (elapsed_ns < stop_ns)
            costs[b] = cost if here else costs[b]


@borrowing
def lookahead(model: Model, table: Table, plan: Plan, i: int) -> None:
    """Landings that a request can reach from boundary i, but not from the next one any more.

    Landing on the next one at once, where that takes no time, is also decided here: decided there,
    a launch would have to run before the next decision.
    """
    order, run, value = model.order, table.run, table.value
    starts, barred = model.runs.start_ns, model.runs.barred
    n, n_clocks = model.cells.allowed.shape
    limit = i + n if model.rules.periodic else n
    early = 1 if model.rules.early else 0
    for a in range(n_clocks):
        n_targets = order.n_targets[a]
        if n_targets == 0:
            continue
        m = table.first[a]
        while m > i and starts[a, m - 1 + early] >= starts[a, i] + order.work_ns[a, 0]:
            m -= 1
        table.first[a] = m
        s = 0
        while m <= limit - early:
            late_ns = starts[a, m] - starts[a, i + 1] if m > i + 1 else -1
            if late_ns >= order.work_ns[a, n_targets - 1]:
                break
            if m > i and m % BLOCK == 0 and table.block[a, m // BLOCK] - run[a, i] >= value[i, a]:
                m += BLOCK
                continue
            if barred[a, m] != barred[a, i]:
                break
            if table.point[a, m] - run[a, i] < value[i, a]:
                most_ns = starts[a, m + early] - starts[a, i]
                s = _first_at(order.work_ns, a, s, n_targets, late_ns + 1)
                stop = _first_at(order.work_ns, a, s, n_targets, most_ns + 1)
                if s < stop:
                    _land_on(model, table, plan, i, a, m, s, stop, late_ns, most_ns)
            m += 1


@borrowing
def _land_on(
    model: Model,
    table: Table,
    plan: Plan,
    i: int,
    a: int,
    m: int,
    s: int,
    stop: int,
    late: float,
    most: float,
) -> None:
    """The targets ``s`` up to ``stop`` of ``a``, which are late at i + 1 and in time at i, on boundary m."""
    order, costs, ahead, price = model.order, table.costs, table.ahead, table.price
    lands_ns, n_clocks = order.lands_ns, len(costs)
    base = table.run[a, m] - table.run[a, i] - (table.rounding if model.rules.stalls else 0.0)
    many = FEW * (stop - s) > n_clocks
    if many:
        costs[:] = np.inf
        for level in range(len(lands_ns)):
            for b in range(n_clocks):
                cost = base + ahead[level, m, b] + price[a, b]
                here = (lands_ns[level, a, b] > late) & (lands_ns[level, a, b] <= most)
                costs[b] = cost if here else costs[b]
    else:
        for t in range(s, stop):
            b = order.target[a, t]
            costs[t - s] = base + ahead[order.level[a, b], m, b] + price[a, b]
    if model.rules.early:
        _in_parts(model, table, i, a, m, s, n_clocks if many else stop - s)
    _take_best(model, table, plan, i, a, m, -1, s, n_clocks if many else stop - s)


@borrowing
def _in_parts(model: Model, table: Table, i: int, a: int, m: int, s: int, n: int) -> None:
    """Of targets that land inside launch m what landing at both its ends costs, in proportion."""
    order, costs, starts = model.order, table.costs, model.runs.start_ns
    runs_ns = starts[a, m + 1] - starts[a, m]
    for t in range(n):
        b = t if n == len(costs) else order.target[a, s + t]
        over_ns = model.rules.work_ns[a, b] - (starts[a, m] - starts[a, i])
        if over_ns > 0 and costs[t] < np.inf:
            end = table.run[a, m + 1] - table.run[a, i] + table.ahead[order.level[a, b], m + 1, b]
            end += table.price[a, b]
            costs[t] += over_ns / runs_ns * (end - costs[t])


@borrowing
def at_once(model: Model, table: Table, plan: Plan) -> None:
    """Changes requested at the beginning that land wherever they do: a one-shot lookahead has them."""
    starts, value = model.runs.start_ns, table.value
    n, n_clocks = model.cells.allowed.shape
    for a in range(n_clocks):
        m = 0
        for s in range(model.order.n_targets[a]):
            while m < n and starts[a, m + 1] <= model.order.work_ns[a, s]:
                m += 1
            if m == n:
                break
            b = model.order.target[a, s]
            if table.run[a, m] - table.rounding + min(value[m, b], value[m + 1, b]) < value[0, a]:
                _price(model, table, plan, 0, a, b, AT_ONCE)


@borrowing
def _first_at(work_ns: Ints, a: int, low: int, stop: int, time_ns: int) -> int:
    """The first of the targets ``low`` up to ``stop`` of ``a`` that takes so long, ``stop`` if none does."""
    if low < stop and work_ns[a, stop - 1] < time_ns:
        return stop
    last, step = low, 1
    while last < stop and work_ns[a, last] < time_ns:  # mostly one of the next
        low = last + 1
        last += step
        step *= 2
    stop = min(last, stop)
    while low < stop:
        middle = (low + stop) // 2
        if work_ns[a, middle] < time_ns:
            low = middle + 1
        else:
            stop = middle
    return low


@borrowing
def _take_best(
    model: Model, table: Table, plan: Plan, i: int, a: int, landing: int, k: int, s: int, n: int
) -> None:
    """Take the best of the targets whose bounds are ``costs[:n]``, if it is better than what is known.

    They are numbered like the clocks, if as many, else like the targets of ``a`` from ``s`` on.
    ``k``: the launch it lands in, unless on a boundary.
    """
    order, costs = model.order, table.costs
    while True:
        least = least_of(costs, n)
        if not least < table.value[i, a]:
            return
        at = 0
        while costs[at] != least:
            at += 1
        b = at if n == len(costs) else order.target[a, s + at]
        in_time = model.rules.ready_ns[a, b] == model.rules.work_ns[a, b]
        if not model.rules.stalls and in_time and (k < 0 or model.cells.allowed[k, b]):
            table.value[i, a] = least
            plan.target[i, a], plan.landing[i, a] = b, landing
            return
        _price(model, table, plan, i, a, b, landing)
        costs[at] = np.inf


@borrowing
def _price(model: Model, table: Table, plan: Plan, i: int, a: int, b: int, landing: int) -> None:
    """Take a change if its exact cost is better than what is known."""
    n = len(model.cells.kind)
    arrival, time_ns, energy_j = change(model, i, a, b, landing)
    if arrival < 0 or arrival > (i + n if model.rules.periodic else n):
        return
    cost = table.energy_weight * energy_j + table.time_weight * time_ns + table.value[arrival, b]
    if cost < table.value[i, a]:
        table.value[i, a] = cost
        plan.target[i, a], plan.landing[i, a] = b, landing
