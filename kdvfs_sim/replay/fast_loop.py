"""The compiled part of the fast evaluator: one plain stream under many schedules.

Everything here is meant by docs/explanation/replay.md. What happens next is one of four: the clocks change
(a landing, or a stall begins), the operation ends, the next one starts, a request is made; at equal times
in this order. A running operation is settled, that is, given its speed and its end, when nothing else is
due in its nanosecond.

All functions are in this module because numba's cache does not see changes of callees elsewhere.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from kdvfs_sim.core.compiled import compiled
from kdvfs_sim.replay.fast_arrays import (
    DONE,
    OUT_OF_ORDER,
    UNKNOWN_DURATION,
    Actions,
    Costs,
    Ops,
    Requests,
    Results,
    Rules,
)

Int64s = npt.NDArray[np.int64]

NEVER: Final = 1 << 62
NOT_FIXED: Final = -(1 << 62)


class _Work(NamedTuple):
    """Memory for one iteration at a time."""

    live: Int64s  # requests that are not no-ops
    op_start: Int64s
    op_end: Int64s
    at: Int64s  # of each action, as far as evaluated: its start
    latest: Int64s  # the latest start up to and including it
    delay: Int64s  # that requests have put before it
    fixed: Int64s  # when the launch thread, done with a request, makes it
    late: Int64s  # (3, n): thread, moment and delay of calls on launch threads, in the order made
    following: Int64s  # the next one on the same thread
    head: Int64s  # by thread: the first that no launch has met
    tail: Int64s


@compiled
def evaluate_range(
    ops: Ops,
    actions: Actions,
    costs: Costs,
    rules: Rules,
    requests: Requests,
    results: Results,
    first: int,
    stop: int,
) -> None:
    """Evaluate the schedules ``first <= i < stop`` and write their results."""
    most = 0
    for i in range(first, stop):
        most = max(most, requests.first[i + 1] - requests.first[i])
    n_ops, n_actions = ops.kind.size, actions.thread.size
    blocks = rules.blocks_thread
    n_late = (rules.max_rounds + 1) * most + 1 if blocks else 1
    work = _Work(
        np.empty(most, np.int64),
        np.empty(n_ops, np.int64),
        np.empty(n_ops, np.int64),
        np.empty(n_actions, np.int64),
        np.empty(n_actions, np.int64),
        np.empty(n_actions if blocks else 0, np.int64),
        np.empty(n_actions if blocks else 0, np.int64),
        np.empty((3, n_late), np.int64),
        np.empty(n_late, np.int64),
        np.empty(rules.n_threads, np.int64),
        np.empty(rules.n_threads, np.int64),
    )
    left_over = np.empty((3, n_late), np.int64)
    before, carry = np.empty(6, np.int64), np.empty(6, np.int64)
    for i in range(first, stop):
        a, b = requests.first[i], requests.first[i + 1]
        carry[:] = 0
        carry[0] = carry[1] = requests.row[b - 1] if rules.periodic and b > a else rules.start
        results.settled[i] = not rules.periodic
        for _ in range(rules.max_rounds if rules.periodic else 1):
            before[:] = carry
            n_live = _find_live(requests, a, b, before[1], work.live)
            for k in range(before[4]):
                work.late[:, k] = left_over[:, k]
            if rules.drains and not _in_order(requests, work.live, n_live, a, results, i):
                break
            _iterate(ops, actions, costs, rules, requests, n_live, carry, work, results, i)
            if results.status[i] != DONE:
                break
            same = _gather_late(rules, work, carry, left_over, before[4], results.time_ns[i])
            for k in range(6):
                same = same and before[k] == carry[k]
            if same:
                results.settled[i] = True
                break
        if results.status[i] != DONE:
            results.time_ns[i] = -1
            results.energy_j[i] = math.nan


@compiled
def _find_live(requests: Requests, a: int, b: int, requested: int, live: Int64s) -> int:
    n = 0
    for k in range(a, b):
        if requests.row[k] != requested:
            requested = requests.row[k]
            live[n] = k
            n += 1
    return n


@compiled
def _in_order(requests: Requests, live: Int64s, n_live: int, a: int, results: Results, i: int) -> bool:
    """Are the anchors in the order in which they run? Else a drained device waits for ever."""
    smallest = NEVER
    for k in range(n_live - 1, -1, -1):
        if requests.op[live[k]] > smallest:
            results.status[i] = OUT_OF_ORDER
            results.where[i] = live[k] - a
        smallest = min(smallest, requests.op[live[k]])
    in_order: bool = results.status[i] == DONE
    return in_order


@compiled
def _gather_late(
    rules: Rules, work: _Work, carry: Int64s, left_over: Int64s, n_before: int, end_ns: int
) -> bool:
    """Keep the calls that no launch has met, thread by thread; are they those of the iteration before?"""
    n, same = 0, True
    for thread in range(rules.n_threads):
        k = work.head[thread]
        while k >= 0:
            moment_ns = work.late[1, k] - end_ns
            same = (
                same
                and n < n_before
                and left_over[0, n] == thread
                and left_over[1, n] == moment_ns
                and left_over[2, n] == work.late[2, k]
            )
            left_over[0, n] = thread
            left_over[1, n] = moment_ns
            left_over[2, n] = work.late[2, k]
            n += 1
            k = work.following[k]
    carry[4] = n
    return same


@compiled
def _append_late(work: _Work, k: int) -> None:
    thread = work.late[0, k]
    work.following[k] = -1
    if work.head[thread] < 0:
        work.head[thread] = k
    else:
        work.following[work.tail[thread]] = k
    work.tail[thread] = k


@compiled
def _evaluate_host(actions: Actions, work: _Work, blocks: bool, known: int, wanted: int) -> int:
    """Find the starts of the actions from ``known`` up to ``wanted``; returns how many are known now."""
    while known <= wanted:
        i = known
        before, own = actions.prev_any[i], actions.prev_own[i]
        if before < 0:
            at = actions.start_ns[i]
        else:
            at = work.at[before] + actions.length_ns[before]
            if actions.awaits[before] >= 0:
                at = max(at, work.op_end[actions.awaits[before]] + actions.await_lag_ns[before])
            at += actions.gap_ns[i]
        if own >= 0:
            end = work.at[own] + actions.length_ns[own]
            if actions.awaits[own] >= 0:
                end = max(end, work.op_end[actions.awaits[own]] + actions.await_lag_ns[own])
            at = max(at, end)
        if blocks:
            at += work.delay[i]
            if actions.is_launch[i]:
                thread = actions.thread[i]
                k = work.head[thread]
                while k >= 0 and work.late[1, k] < at:
                    work.delay[i] += work.late[2, k]
                    at += work.late[2, k]
                    k = work.following[k]
                work.head[thread] = k
            if work.fixed[i] != NOT_FIXED:
                at = work.fixed[i]
        work.at[i] = at
        work.latest[i] = max(at, work.latest[i - 1]) if i else at
        known += 1
    return known


@compiled
def _iterate(
    ops: Ops,
    actions: Actions,
    costs: Costs,
    rules: Rules,
    requests: Requests,
    n_live: int,
    carry: Int64s,
    work: _Work,
    results: Results,
    number: int,
) -> None:
    """One iteration. ``carry``, in and out: row in force, row requested, when that will land (if it has
    not), when the call returns, number of late calls, and when a stall before that landing begins."""
    n_ops, n_clocks = ops.kind.size, costs.idle_w.size
    row, requested, returns = carry[0], carry[1], carry[3]
    holds = rules.drains and rules.blocks_thread
    n_late = 0
    if rules.blocks_thread:
        work.delay[:] = 0
        work.fixed[:] = NOT_FIXED
    work.head[:] = -1
    while n_late < carry[4]:
        _append_late(work, n_late)
        n_late += 1

    energy, power, extra = 0.0, costs.idle_w[row], 0.0
    unknown, n_switches, switching = NEVER, 0, 0
    lands = stall = NEVER
    if row != requested:
        lands, stall = carry[2], carry[5]
    now, op, previous_end, known = 0, 0, 0, 0
    following, turn = 0, NEVER  # the next live request, and when it is to be made
    boundary = NEVER  # when op starts or, while it runs, ends
    find_start, running, touched, frozen = True, False, False, False
    ratio, left = 0.0, 0
    anchor = requests.op[work.live[0]] if n_live else NEVER  # of the next live request
    while True:
        if find_start:
            find_start = False
            boundary = max(previous_end + ops.lag_ns[op], now)
            launch = ops.launch[op]
            if launch >= 0:
                known = _evaluate_host(actions, work, rules.blocks_thread, known, launch)
                launched = work.at[launch]
                if not (holds and anchor == op and ops.may_hold[op]):
                    launched += ops.launch_lag_ns[op]
                boundary = max(boundary, launched)
            if op < anchor and turn == lands == NEVER:  # nothing will happen before this one has ended
                kind = ops.kind[op]
                new_ratio, busy_w = costs.ratio[kind, row], costs.busy_w[kind, row]
                if not math.isnan(new_ratio + busy_w + power):
                    left = ops.duration_ns[op]
                    if new_ratio != 1.0:
                        left = int(np.rint(left * new_ratio))
                    energy += power * (boundary - now) + busy_w * left
                    work.op_start[op] = boundary
                    work.op_end[op] = previous_end = now = boundary + left
                    op += 1
                    if op == n_ops:
                        break
                    find_start = True
                    continue
        clock = lands
        if running and now < stall < lands:
            clock = stall

        if touched and now < clock and now < boundary and now < turn:  # settle
            touched = False
            kind = ops.kind[op]
            new_ratio = costs.ratio[kind, row]
            if math.isnan(new_ratio):
                results.status[number] = UNKNOWN_DURATION
                results.where[number] = kind * n_clocks + row
                return
            if ratio == 0.0:
                left = ops.duration_ns[op]
                if new_ratio != 1.0:
                    left = int(np.rint(left * new_ratio))
            else:
                if not frozen:
                    left = boundary - now
                if new_ratio != ratio:
                    left = int(np.rint(left * (new_ratio / ratio)))
            ratio = new_ratio
            frozen = stall <= now
            power = costs.stalled_w[kind, row] if frozen else costs.busy_w[kind, row]
            boundary = NEVER if frozen and left > 0 else now + left
            continue

        at = min(clock, boundary, turn)
        if at > now:
            energy += power * (at - now)
            if math.isnan(power) and unknown == NEVER:
                unknown = ops.kind[op] * n_clocks + row if running else -1 - row
            now = at
        if clock == at:
            if clock == lands:
                extra += costs.extra_energy_j[row, requested]
                row = requested
                lands = stall = NEVER
            touched = running
            if not running:
                power = costs.idle_w[row]
        elif boundary == at and running:
            work.op_end[op] = previous_end = now
            op += 1
            if op == n_ops:
                break
            running = touched = False
            power = costs.idle_w[row]
            find_start = True
        elif boundary == at:
            if rules.drains and anchor == op:
                boundary = NEVER
                turn = max(now, returns)
                if lands != NEVER:
                    turn = max(turn, lands)
                continue
            work.op_start[op] = now
            running = touched = True
            frozen, ratio, boundary = False, 0.0, NEVER
            while anchor <= op and turn == NEVER:
                if rules.charged:
                    turn = max(work.op_start[anchor] + _offset(requests, work, following, rules), returns)
                    if lands != NEVER:
                        turn = max(turn, lands)
                else:
                    row = requested = requests.row[work.live[following]]
                    n_switches += 1
                    following += 1
                    anchor = requests.op[work.live[following]] if following < n_live else NEVER
        else:
            k = work.live[following]
            new = requests.row[k]
            returns = now + costs.host_call_ns[requested, new]
            drawn = requests.factor[k] * costs.switching_ns[requested, new]
            takes = max(0, int(np.rint(drawn)) + requests.late_ns[k])
            lands = now + takes
            stall = lands - min(takes, costs.stall_ns[requested, new])
            switching += takes
            requested = new
            n_switches += 1
            following += 1
            asked_for = anchor
            anchor = requests.op[work.live[following]] if following < n_live else NEVER
            touched = running
            done = max(lands, returns)
            launch = ops.launch[asked_for]
            held = holds and launch >= 0 and ops.may_hold[asked_for]
            if rules.blocks_thread and launch >= 0 and not held:
                work.late[0, n_late] = actions.thread[launch]
                work.late[1, n_late] = now
                work.late[2, n_late] = (done if rules.drains else returns) - now
                _append_late(work, n_late)
                n_late += 1
                while known > 0 and work.latest[known - 1] > now:
                    known -= 1
                find_start = not (running or rules.drains)
            turn = NEVER
            if rules.drains:
                if anchor == asked_for:
                    turn = done
                else:
                    boundary = done + rules.relaunch_ns
                    if held:
                        boundary = max(boundary, work.at[launch] + ops.launch_lag_ns[asked_for])
                        work.fixed[launch] = work.at[launch] = done
                        work.latest[launch] = max(work.latest[launch], done)
            elif anchor < op or (running and anchor == op):
                turn = max(work.op_start[anchor] + _offset(requests, work, following, rules), returns, lands)

    carry[0], carry[1], carry[2], carry[3], carry[5] = row, requested, 0, max(0, returns - now), 0
    if lands != NEVER:
        carry[2], carry[5] = lands - now, stall - now
    results.time_ns[number] = now
    results.energy_j[number] = energy * 1e-9 + extra
    results.n_switches[number] = n_switches
    results.switching_ns[number] = switching
    results.dropped[number] = following < n_live
    results.where[number] = unknown


@compiled
def _offset(requests: Requests, work: _Work, following: int, rules: Rules) -> int:
    offset_ns: int = requests.offset_ns[work.live[following]] + rules.trigger_ns
    return offset_ns
