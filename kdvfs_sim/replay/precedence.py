"""The graph of what a program waits for (core.precedence)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kdvfs_sim.core.compiled import compiled
from kdvfs_sim.core.precedence import Precedence
from kdvfs_sim.replay.program import LONG_AGO

if TYPE_CHECKING:
    import numpy.typing as npt

    from kdvfs_sim.core.costs import CostTable
    from kdvfs_sim.replay.program import Int64s, Program


def precedence_of(program: Program, costs: CostTable, stream: int) -> Precedence:
    """See Precedence. ``stream``: index of the chain's.

    An operation that may start while its predecessor runs is only held to start after it: one that is left
    out makes a longest path no longer, so bounds stay bounds.
    """
    origin, to, lag_ns, op = program.edges
    ops = program.ops_of_stream[stream]
    launch = np.full(program.n_ops, -1, dtype=np.int64)
    launch[ops] = np.arange(ops.size)
    overlaps = bool((program.after[ops[1:]] != program.previous[ops[1:]]).any())
    apart = np.zeros(program.n_ops, dtype=np.bool_)
    apart[_one_after_another(program, ops) if overlaps else ops] = True
    alone = len(program.streams) == 1 and not overlaps
    return Precedence(
        origin=origin,
        to=to,
        lag_ns=lag_ns,
        op=op,
        n_nodes=program.n_ops + len(program.host) + 1,
        kind=program.kind,
        duration_ns=program.duration_ns,
        launch=launch,
        apart=apart,
        slowest_ns=None if alone else _slowest_ns(program, costs),
    )


def edges_of(program: Program) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """Origin, target, lag and operation to pass, in the order of Precedence. Nodes: starts of operations, of
    host actions, the end."""
    host, n = program.host, program.n_ops
    ops, actions = np.arange(n), np.arange(len(host))
    none = np.int64(-1)
    columns: list[tuple[Int64s, Int64s, Int64s | int, Int64s | np.int64]] = []

    def add(origin: Int64s, to: Int64s, lag_ns: Int64s | int, op: Int64s | np.int64 = none) -> None:
        columns.append((origin, to, lag_ns, op))

    def after_action(before: Int64s, to: Int64s, gap_ns: Int64s | int) -> None:
        """``to`` begins when host actions have returned, those that wait for an operation with it."""
        add(n + before, to, host.length_ns[before] + gap_ns)
        waits = host.awaits[before] >= 0
        op = host.awaits[before][waits]
        gaps_ns = gap_ns if isinstance(gap_ns, int) else gap_ns[waits]
        add(op, to[waits], host.await_lag_ns[before][waits] + gaps_ns, op)

    held = program.previous >= 0
    add(program.previous[held], ops[held], 0)
    held = program.after >= 0
    add(program.after[held], ops[held], program.after_lag_ns[held], program.after[held])
    add(program.wait_on, program.wait_op, program.wait_lag_ns, program.wait_on)
    held = program.launch >= 0
    add(n + program.launch[held], ops[held], program.launch_lag_ns[held])
    held = program.not_before_ns > LONG_AGO
    add(np.full(int(held.sum()), -1), ops[held], program.not_before_ns[held])
    first = host.prev_any < 0
    add(np.full(int(first.sum()), -1), n + actions[first], host.start_ns[first])
    after_action(host.prev_any[~first], n + actions[~first], host.gap_ns[~first])
    held = host.prev_own >= 0
    after_action(host.prev_own[held], n + actions[held], 0)
    add(ops, np.full(n, n + len(host)), 0, ops)
    sizes = [origin.size for origin, *_ in columns]
    parts = [
        [np.broadcast_to(c, size) for c, size in zip(col, sizes, strict=True)]
        for col in zip(*columns, strict=True)
    ]
    origin, to, lag_ns, op = (np.concatenate(part).astype(np.int64) for part in parts)
    order = _in_order(origin, to, n + len(host) + 1)
    return origin[order], to[order], lag_ns[order], op[order]


def _in_order(origin: Int64s, to: Int64s, n_nodes: int) -> Int64s:
    """The edges such that each comes after all that lead to its origin."""
    by_origin = np.argsort(origin, kind="stable").astype(np.int64)
    first = np.searchsorted(origin[by_origin], np.arange(n_nodes + 1)).astype(np.int64)
    rank = _ranks(to[by_origin], first, np.bincount(to[origin >= 0], minlength=n_nodes))
    order: Int64s = np.argsort(rank[to], kind="stable")
    return order


@compiled
def _ranks(to: Int64s, first: Int64s, n_before: Int64s) -> Int64s:
    """Number the nodes so that edges lead upwards; node i's edges are ``to[first[i] : first[i + 1]]``."""
    n = len(n_before)
    rank, queue = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    done, known = 0, 0
    for node in range(n):
        if n_before[node] == 0:
            queue[known] = node
            known += 1
    while done < known:
        node = queue[done]
        rank[node] = done
        done += 1
        for k in range(first[node], first[node + 1]):
            n_before[to[k]] -= 1
            if n_before[to[k]] == 0:
                queue[known] = to[k]
                known += 1
    return rank


def _one_after_another(program: Program, ops: Int64s) -> Int64s:
    """Of the operations of a stream those, as long as can be, of which each waits for the one before."""
    after, duration_ns = program.after.tolist(), program.duration_ns.tolist()
    total_ns: dict[int, int] = {}
    for op in ops.tolist():
        total_ns[op] = duration_ns[op] + total_ns.get(after[op], 0)
    chosen, op = [], max(total_ns, key=lambda op: total_ns[op])
    while op >= 0:
        chosen.append(op)
        op = after[op]
    return np.array(chosen, dtype=np.int64)


def _slowest_ns(program: Program, costs: CostTable) -> npt.NDArray[np.float64]:
    """See Precedence. Kernels that run at once run at a common row: the highest, from the lowest of their own
    downwards, that keeps the power cap, and where there is no cap that lowest one.

    How many run at once is known where every stream runs its operations one by one: as many as there are
    streams. Where a stream's overlap any row may have been it.
    """
    longest = np.where(np.isfinite(costs.duration_ns), costs.duration_ns, 0.0)
    if (program.after != program.previous).any():
        slowest: npt.NDArray[np.float64] = longest.max(axis=1)
        return slowest
    kinds = np.unique(program.kind)
    reference = costs.recorded_effective
    alone = costs.effective[:, costs.recorded] if reference is None else reference
    beside_w = _beside_w(program, costs)
    slowest = longest[np.arange(costs.n_kinds), alone]
    keys = [pair.sort_key[::-1] for pair in costs.clocks]
    order = sorted(range(costs.n_clocks), key=keys.__getitem__, reverse=True)
    for lowest in set(alone[kinds].tolist()):
        mem = costs.clocks[lowest].mem_mhz
        rows = [e for e in order[order.index(lowest) :] if costs.clocks[e].mem_mhz == mem]
        concerned = [k for k in kinds.tolist() if keys[alone[k]] >= keys[lowest]]
        keeps = np.ones((len(concerned), len(rows)), dtype=np.bool_)
        if costs.cap_w is not None and reference is None:
            keeps = ~(costs.power_w[np.ix_(concerned, rows)] + beside_w[rows] > costs.cap_w)
        last = np.where(keeps.any(axis=1), keeps.argmax(axis=1), len(rows) - 1)
        so_far = np.maximum.accumulate(longest[np.ix_(concerned, rows)], axis=1)
        slowest[concerned] = np.maximum(slowest[concerned], so_far[np.arange(len(concerned)), last])
    return slowest


def _beside_w(program: Program, costs: CostTable) -> npt.NDArray[np.float64]:
    """The most that what runs beside a kernel adds to the power, at each row: one operation of every other
    stream. Unknown power limits nothing."""
    added = costs.power_w - costs.idle_power_w
    added = np.where(np.isfinite(added), np.maximum(added, 0.0), 0.0)
    of_stream = np.array([added[np.unique(program.kind[ops])].max(axis=0) for ops in program.ops_of_stream])
    most: npt.NDArray[np.float64] = np.sort(of_stream, axis=0)[1:].sum(axis=0)
    return most
