"""What one change of clocks leads to: the transitions of the dynamic programme.

A *state* is a boundary (the start of launch i, or rather the moment from which it could start)
with clocks in force and no change outstanding. A change decided there leads to a later state, at a
cost in time and energy. The protocols differ in one small function each:

``drain_change``    the GPU runs empty before launch i, waits for the change, and goes on;
``follow_change``   requested ``trigger_ns`` after the boundary, lands wherever that is;
``lookahead_change``requested in time to land on a given later boundary.

Boundaries are numbered through: under ``periodic`` launch ``n + k`` is launch ``k`` of the next
iteration.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kdvfs_sim.core.compiled import borrowing, compiled
from kdvfs_sim.core.switching import Boundary, SwitchProtocol, SwitchTable
from kdvfs_sim.optimize.additive import Bools, Cells, Floats, Ints, cell_cost, gap_after, launch_ns

MAX_LEVELS = 4  # of waiting for a call to return that are told apart
AT_ONCE = -1  # a landing: wherever a change requested now lands


class Rules(NamedTuple):
    """A protocol, a switch table and a boundary condition as compiled loops read them.

    Arrays of shape (C, C) are indexed [old, new]. ``ready_ns``: from the request until the next one
    may be issued, and, ``relaunch_ns`` later, until a drained launch starts.
    ``work_ns``: from the request until progress stops for the landing; ``stall_ns`` later it lands.
    """

    drains: bool
    anticipates: bool
    periodic: bool
    early: bool  # lookahead: may changes land inside launches, too, at what that costs at least?
    at_once: bool  # the first change of a one-shot lookahead may also be requested at the start
    trigger_ns: int
    switching_ns: Ints
    stall_ns: Ints
    work_ns: Ints
    ready_ns: Ints
    relaunch_ns: Ints  # (n,)
    extra_j: Floats
    requestable: Bools  # (C,)
    may_change: Bools  # (n,): launches before which clocks may change
    stalls: bool  # does any change stall?
    rounding_ns: int  # what rounding can hide of a launch that runs under two clocks


class Runs(NamedTuple):
    """Running on under one request: sums over launches from the first, shape (C, boundaries).

    ``barred`` counts the launches that may not run under the request. Such a launch is given 1 ns: what is
    asked for at its start and lands at once lands before it.
    """

    start_ns: Ints
    energy_j: Floats
    barred: npt.NDArray[np.int32]


class Order(NamedTuple):
    """For every source the targets it may change to, nearest first.

    ``target[a, s]`` for ``s < n_targets[a]`` in ascending order of ``work_ns[a, s]``.

    After the landing it takes at least ``wait_ns[level[a, b]]`` until the call returns. ``lands_ns[l, a, b]``
    is the time from request to landing of the changes of level l, infinite for others.
    """

    target: npt.NDArray[np.int16]
    work_ns: Ints
    n_targets: Ints
    immediate: bool  # does any change land at once?
    wait_ns: Ints  # (levels,)
    level: npt.NDArray[np.int8]  # (C, C)
    lands_ns: Floats  # (levels, C, C)


class Model(NamedTuple):
    """Everything the dynamic programme knows of a problem."""

    cells: Cells
    runs: Runs
    rules: Rules
    order: Order


def model_of(
    cells: Cells,
    may_change: Bools,
    *,
    protocol: SwitchProtocol,
    switching: SwitchTable,
    boundary: Boundary,
    rows: Ints,
    requestable: Bools,
    early: bool = False,
) -> Model:
    """A chain under a protocol that charges its changes.

    ``rows``: the rows of ``switching`` that the cells' clocks are. ``requestable`` (C,): which of
    them may be asked for; the others may only be in force at first.
    """
    pairs = np.ix_(rows, rows)
    longest = np.maximum(switching.host_call_ns, switching.switching_ns)[pairs]
    stall_ns = switching.stall_ns[pairs].astype(np.int64)
    # Floors count on a device that no change has held up for longer than the host: before the last
    # of them, a pause is only as long as it is for both, and stalls loosen them.
    floored = cells.floor_ns[::-1].cumsum()[::-1] > 0
    stalled_ns = 0 if protocol.drains else int(stall_ns.max()) * np.arange(1, len(cells.kind) + 1)
    cells = cells._replace(floor_ns=np.maximum(cells.floor_ns - stalled_ns, 0))
    runs = runs_of(cells, 2 if boundary == "periodic" else 1)
    rules = Rules(
        drains=protocol.drains,
        anticipates=protocol.anticipates,
        periodic=boundary == "periodic",
        early=early,
        at_once=protocol.anticipates and boundary == "one-shot",
        trigger_ns=0 if protocol.anticipates else protocol.trigger_ns,
        switching_ns=switching.switching_ns[pairs].astype(np.int64),
        stall_ns=stall_ns,
        work_ns=switching.switching_ns[pairs].astype(np.int64) - stall_ns,
        ready_ns=longest.astype(np.int64),
        relaunch_ns=np.where(floored | (cells.hidden_ns > 0), 0, protocol.relaunch_ns).astype(np.int64),
        extra_j=switching.extra_energy_j[pairs].astype(np.float64),
        requestable=requestable,
        may_change=may_change,
        stalls=bool(stall_ns.any()),
        rounding_ns=2 + math.ceil(_widest(cells)),
    )
    return Model(cells, runs, rules, order_of(rules))


def _widest(cells: Cells) -> float:
    """The most by which the duration of a kind differs from one clock to another, as a factor."""
    known = np.isfinite(cells.ratio) & (cells.ratio > 0)
    most = np.where(known, cells.ratio, 0.0).max(axis=1)
    least = np.where(known, cells.ratio, np.inf).min(axis=1)
    return max(1.0, float((most / least).max(initial=1.0)))


def order_of(rules: Rules) -> Order:
    """Of every source the targets by how soon they are reached, those that nobody may ask for last."""
    work_ns = rules.work_ns.copy()
    never = np.iinfo(np.int64).max // 4
    work_ns[:, ~rules.requestable] = never
    np.fill_diagonal(work_ns, never)
    possible = work_ns < never
    wait_ns = np.where(possible, rules.ready_ns - rules.switching_ns, 0)
    lowest_ns = _levels(wait_ns)
    level = np.searchsorted(lowest_ns, wait_ns, side="right") - 1
    here = possible & (level == np.arange(len(lowest_ns))[:, None, None])
    lands_ns = np.where(here, work_ns, np.inf)
    target = np.argsort(work_ns, axis=1, kind="stable")
    work_ns = np.take_along_axis(work_ns, target, axis=1)
    return Order(
        target=target.astype(np.int16),
        work_ns=work_ns,
        n_targets=possible.sum(axis=1).astype(np.int64),
        immediate=bool((work_ns == 0).any()),
        wait_ns=lowest_ns,
        level=level.astype(np.int8),
        lands_ns=lands_ns,
    )


def _levels(wait_ns: Ints) -> Ints:
    """The least of each of a few groups of waits, in ascending order."""
    distinct = np.unique(wait_ns)
    return distinct[:: -(-len(distinct) // MAX_LEVELS)].astype(np.int64)


@compiled
def runs_of(cells: Cells, laps: int) -> Runs:
    """Sums over ``laps`` iterations; energy with a carried correction, so that differences are good."""
    n, n_clocks = cells.allowed.shape
    start_ns = np.zeros((n_clocks, laps * n + 1), dtype=np.int64)
    energy_j = np.zeros((n_clocks, laps * n + 1))
    barred = np.zeros((n_clocks, laps * n + 1), dtype=np.int32)
    for c in range(n_clocks):
        total, carried = 0.0, 0.0
        for k in range(laps * n):
            i = k % n
            time_ns, term = 1, 0.0
            if cells.allowed[i, c]:
                time_ns, term = cell_cost(cells, i, c)
            term -= carried
            raised = total + term
            carried = (raised - total) - term
            total = raised
            start_ns[c, k + 1] = start_ns[c, k] + time_ns
            energy_j[c, k + 1] = total
            barred[c, k + 1] = barred[c, k] + (not cells.allowed[i, c])
    return Runs(start_ns, energy_j, barred)


@borrowing
def first_at_or_after(starts: Ints, low: int, time_ns: int) -> int:
    """The first boundary from ``low`` on that starts at or after a time; ``len`` if none does."""
    stop, step = low, 1
    while stop < len(starts) and starts[stop] < time_ns:
        low = stop + 1
        stop += step
        step *= 2
    stop = min(stop, len(starts))
    while low < stop:
        middle = (low + stop) // 2
        if starts[middle] < time_ns:
            low = middle + 1
        else:
            stop = middle
    return low


@borrowing
def change(model: Model, i: int, a: int, b: int, landing: int) -> tuple[int, int, float]:
    """A change from ``a`` to ``b`` decided at boundary ``i``: (arrival, time in ns, energy in J).

    ``landing``: the boundary to land on (lookahead), or AT_ONCE. Arrival -1: not possible.
    """
    if model.rules.drains:
        return drain_change(model, i, a, b)
    if landing == AT_ONCE:
        arrival, time_ns, energy_j = follow_change(model, i, a, b)
    else:
        arrival, time_ns, energy_j = lookahead_change(model, i, a, b, landing)
    if arrival == i:  # landed at once: the launch runs before the next decision
        k = i % len(model.cells.kind)
        if not model.cells.allowed[k, b]:
            return -1, 0, 0.0
        more_ns, more_j = cell_cost(model.cells, k, b)
        return i + 1, time_ns + more_ns, energy_j + more_j
    return arrival, time_ns, energy_j


@borrowing
def drain_change(model: Model, i: int, a: int, b: int) -> tuple[int, int, float]:
    """Drain after the gap before launch ``i``, pause, then run the launch under ``b``."""
    cells, rules = model.cells, model.rules
    n = len(cells.kind)
    k = i % n
    if not (cells.allowed[k, b] and rules.requestable[b]):
        return -1, 0, 0.0
    old_ns, pause_ns = rules.switching_ns[a, b], rules.ready_ns[a, b] + rules.relaunch_ns[k]
    time_ns, energy_j = cell_cost(cells, k, b)
    energy_j += rules.extra_j[a, b]
    if old_ns > 0:
        energy_j += cells.idle_w[a] * old_ns * 1e-9
    if pause_ns > old_ns:
        energy_j += cells.idle_w[b] * (pause_ns - old_ns) * 1e-9
    if not np.isfinite(energy_j):
        return -1, 0, 0.0
    less_ns, less_j = hidden(model, cells.hidden_ns[k], a, b)
    return i + 1, time_ns + pause_ns - less_ns, energy_j - less_j


@borrowing
def hidden(model: Model, most_ns: int, a: int, b: int) -> tuple[int, float]:
    """(ns, J) that a drained change takes less, at most, if ``most_ns`` of the pause before it are its own.

    The pause was charged to ``a``; what is left of it once the change has been made passes under ``b``.
    """
    if most_ns == 0:
        return 0, 0.0
    cells = model.cells
    less_ns = min(most_ns, model.rules.ready_ns[a, b])
    less_j = cells.idle_w[a] * less_ns * 1e-9
    if cells.idle_w[a] > cells.idle_w[b]:
        less_j += (cells.idle_w[a] - cells.idle_w[b]) * (most_ns - less_ns) * 1e-9
    return less_ns, less_j


@borrowing
def follow_change(model: Model, i: int, a: int, b: int) -> tuple[int, int, float]:
    """Request ``b`` at boundary ``i`` plus the trigger."""
    starts, rules, n = model.runs.start_ns[a], model.rules, len(model.cells.kind)
    if rules.periodic and late(model, a, i, min(i - i % n + n, len(starts) - 1)):
        return -1, 0, 0.0
    stops_ns = starts[i] + rules.trigger_ns + rules.work_ns[a, b]
    m = first_at_or_after(starts, i, stops_ns + 1) - 1
    if m >= len(starts) - 1:
        return -1, 0, 0.0  # would land after the end
    return _land(model, i, a, b, m, stops_ns - starts[m])


@borrowing
def late(model: Model, a: int, i: int, end: int) -> bool:
    """Does what is requested at boundary ``i`` come after an iteration's end? Then it is none.

    Not where ``a`` cannot run on until then: something else was requested in time.
    """
    starts, barred = model.runs.start_ns[a], model.runs.barred[a]
    return barred[end] == barred[i] and starts[i] + model.rules.trigger_ns >= starts[end]  # type: ignore[no-any-return]


@borrowing
def lookahead_change(model: Model, i: int, a: int, b: int, m: int) -> tuple[int, int, float]:
    """Land on boundary ``m``, which must be late enough for a request made at ``i`` or later."""
    return _land(model, i, a, b, m, 0)


@borrowing
def _land(model: Model, i: int, a: int, b: int, m: int, elapsed_ns: int) -> tuple[int, int, float]:
    """Progress stops ``elapsed_ns`` into launch ``m``; after the stall ``b`` is in force."""
    cells, runs, rules = model.cells, model.runs, model.rules
    n = len(cells.kind)
    if not rules.requestable[b] or runs.barred[a, m] != runs.barred[a, i]:
        return -1, 0, 0.0
    starts = runs.start_ns[a]
    stopped_ns = starts[m] + elapsed_ns - starts[i]
    energy_j = runs.energy_j[a, m] - runs.energy_j[a, i] + rules.extra_j[a, b]
    frozen_ns = rules.stall_ns[a, b]
    time_ns = stopped_ns
    while elapsed_ns > 0 or frozen_ns > 0:
        k = m % n
        if m == runs.start_ns.shape[1] - 1:
            return -1, 0, 0.0
        if not cells.allowed[k, a]:
            if elapsed_ns > 0:
                return -1, 0, 0.0
            break
        busy_ns = launch_ns(cells, k, a)
        if elapsed_ns < busy_ns:
            break
        # In the gap after launch m; a launch that takes no time does not wait for the landing either.
        rest_ns = busy_ns + gap_after(cells, k, busy_ns) - elapsed_ns
        old_ns = min(frozen_ns, rest_ns)
        energy_j += cells.power_w[cells.kind[k], a] * busy_ns * 1e-9
        if elapsed_ns - busy_ns + old_ns > 0:
            energy_j += cells.idle_w[a] * (elapsed_ns - busy_ns + old_ns) * 1e-9
        if rest_ns > old_ns:
            energy_j += cells.idle_w[b] * (rest_ns - old_ns) * 1e-9
        time_ns += rest_ns
        frozen_ns -= old_ns
        elapsed_ns = 0
        m += 1
    if elapsed_ns > 0 or frozen_ns > 0:  # inside launch m, or it starts while the change is landing
        k = m % n
        if not cells.allowed[k, b]:
            return -1, 0, 0.0
        kind = cells.kind[k]
        rest_ns = launch_ns(cells, k, b)
        if cells.allowed[k, a]:
            scale = cells.ratio[kind, b] / cells.ratio[kind, a]
            rest_ns = np.int64(np.rint((launch_ns(cells, k, a) - elapsed_ns) * scale))  # type: ignore[assignment]
            energy_j += cells.power_w[kind, a] * elapsed_ns * 1e-9
        energy_j += cells.power_w[kind, b] * rest_ns * 1e-9
        if frozen_ns > 0:
            energy_j += cells.frozen_w[kind, a] * frozen_ns * 1e-9
        gap_ns = gap_after(cells, k, elapsed_ns + frozen_ns + rest_ns)
        if gap_ns > 0:
            energy_j += cells.idle_w[b] * gap_ns * 1e-9
        time_ns += frozen_ns + rest_ns + gap_ns
        m += 1
    ready_ns = stopped_ns - rules.work_ns[a, b] + rules.ready_ns[a, b]
    if time_ns < ready_ns:  # the call returns only now: run on under b
        first = m
        m = min(
            first_at_or_after(runs.start_ns[b], m, runs.start_ns[b, m] + ready_ns - time_ns),
            runs.start_ns.shape[1] - 1,
        )
        if runs.barred[b, m] != runs.barred[b, first]:
            return -1, 0, 0.0
        time_ns += runs.start_ns[b, m] - runs.start_ns[b, first]
        energy_j += runs.energy_j[b, m] - runs.energy_j[b, first]
    if not np.isfinite(energy_j):
        return -1, 0, 0.0
    return m, time_ns, energy_j


def most_begun(cells: Cells, longest_ns: int) -> int:
    """The most launches that may begin within a time, at any clocks."""
    begun = begun_within(cells, longest_ns)
    return int((begun - np.arange(len(begun))).max()) + 2


def begun_within(cells: Cells, longest_ns: int) -> Ints:
    """(boundaries,): number of launches that may have begun and ended a time after each, at any clocks."""
    with np.errstate(invalid="ignore"):
        fastest = np.nanmin(np.where(np.isfinite(cells.ratio), cells.ratio, np.inf), axis=1)
    least_ns = np.floor(cells.duration_ns * fastest[cells.kind]) + cells.gap_ns
    ends_ns = np.cumsum(least_ns)
    return np.searchsorted(ends_ns, np.append(0, ends_ns) + longest_ns, side="right")


def longest_ns(rules: Rules) -> int:
    """The most that passes from the decision for a change until it has landed and its call returned."""
    return rules.trigger_ns + int(max(rules.ready_ns.max(), rules.switching_ns.max()))
