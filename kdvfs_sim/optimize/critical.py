"""Where times do not simply add: bounds and choices from what binds, path by path.

How long a run takes is the longest path through all that operations wait for. Any mix of paths, taken as
shares ``x`` of the operations on them, bounds it from below: ``T >= sum(x * duration) + lags``. And a run
draws at least what the device draws least, ``w``, and each operation adds to that. So for every multiplier

    E + b T  >=  sum over operations of min over clocks of (added energy + (w + b) x duration) + (w + b) lags

which holds for any schedule under any protocol: requests only delay. The best shares are those at which no
path is longer than their mix: each step moves them a little towards the longest path at the clocks that they
lead to (Frank and Wolfe's method; the dual is concave). At the end, operations that never bind have a share
of 0 and run at the clocks that take the least energy; what is chosen this way is a schedule worth judging.
"""

from __future__ import annotations

import math

import numpy as np

from kdvfs_sim.core.compiled import compiled
from kdvfs_sim.core.problem import Problem
from kdvfs_sim.optimize.additive import Bools, Floats, Ints
from kdvfs_sim.optimize.frontier import FASTEST, ROUNDING, Frontier
from kdvfs_sim.optimize.target import Outcome, Target

MAX_STEPS = 80  # towards longest paths, for one multiplier
NEAR = 1e-4  # relative: how near to the best shares is near enough
MAX_ROUNDS = 8  # of multipliers on both sides of the best one
SPREAD = (0.1, 0.5, 2.0, 8.0, 32.0)  # first multipliers, times the mean power


class CriticalPaths:
    """An ``Oracle`` for energy weights of 1, and of 0 for the fastest.

    ``group`` (n_launches,) and ``allowed`` (n_groups, n_rows of the cost table): the launches that share a
    choice, and what they may run at. Outcomes have a row for every group, and times and energies as predicted.
    """

    def __init__(self, problem: Problem, group: Ints, allowed: Bools) -> None:
        assert problem.chain.precedence is not None
        self._graph = graph = problem.chain.precedence()
        costs = problem.costs
        n_ops = len(graph.kind)
        of_chain = np.flatnonzero(graph.launch >= 0)
        alone = graph.slowest_ns is None
        # Beside others a kernel may run at any row, whatever was asked for.
        ratio = costs.ratio if graph.slowest_ns is None else costs.duration_ns / graph.slowest_ns[:, None]
        power_w = costs.request_power_w if alone else costs.power_w
        idle_w = costs.idle_power_w[np.isfinite(costs.idle_power_w)]
        self.usable = bool(idle_w.size == costs.n_clocks or (alone and idle_w.size))
        self._floor = float(idle_w.min(initial=np.inf)) * 1e-9 if self.usable else 0.0  # J/ns
        # What every kind adds, in J/ns: to the floor if nothing else counts it, else to its row's idle power.
        added = np.stack([power_w * 1e-9 - self._floor, (power_w - costs.idle_power_w) * 1e-9])
        known = np.isfinite(ratio) & np.isfinite(added)
        self._ratio = np.where(known[0], ratio, 0.0)
        self._added = np.where(known, added, 0.0)
        # Operations that share a choice, and among them those of one kind that count alike.
        groups = np.arange(n_ops) + len(allowed)
        # Where a change lands in the midst of work, a launch also runs at the clocks of those before it.
        protocol = problem.protocol
        choices_hold = alone and (protocol.drains or not protocol.charged)
        if choices_hold:
            groups[of_chain] = group[graph.launch[of_chain]]
        _, groups = np.unique(groups, return_inverse=True)
        shared = (~graph.apart).astype(np.int64)
        n_kinds = len(costs.kinds)
        key = (groups * 2 + shared) * n_kinds + graph.kind
        keys, self._atom = np.unique(key, return_inverse=True)
        self._kind, self._shared = keys % n_kinds, keys // n_kinds % 2
        self._group = keys // n_kinds // 2
        self._duration_ns = graph.duration_ns.astype(np.float64)
        self._work_ns = _sums(self._atom, self._duration_ns, len(keys))
        may = np.ones((int(self._group.max(initial=-1)) + 1, costs.n_clocks), dtype=np.bool_)
        np.logical_and.at(may, self._group, known[self._shared, self._kind] | (self._work_ns == 0)[:, None])
        if alone:
            chosen = allowed if choices_hold else np.broadcast_to(costs.requestable, (n_ops, costs.n_clocks))
            if protocol.charged and problem.boundary == "one-shot":  # until the first change
                chosen = chosen | (
                    np.arange(costs.n_clocks) == (costs.auto if problem.start is None else problem.start)
                )
            may &= chosen
        self._may = may
        self.usable &= bool(may.any(axis=1).all())
        # Every start, end and change beside an operation rounds what is left of it.
        spread = math.ceil(float(self._ratio.max(initial=1.0)))
        self._rounding_ns = n_ops * (1 if alone and not protocol.charged else 4 * spread)
        self._most = float(np.abs(self._added).max(initial=0.0)) + self._floor
        self._share = np.empty(n_ops)  # begin at the longest path of the recording
        _, self._lags_ns = self._longest(self._duration_ns, self._share)
        self._plan = (problem.costs, group, allowed, of_chain)

    def __call__(self, energy_weight: float, time_weight: float, /) -> tuple[float, Outcome | None]:
        if energy_weight == 0:
            return self._fastest(time_weight)
        multiplier = time_weight + self._floor
        duration_ns = np.empty_like(self._duration_ns)
        path = np.empty_like(self._duration_ns)
        best = -np.inf
        for step in range(MAX_STEPS):
            passed = _sums(self._atom, self._share * self._duration_ns, len(self._kind))
            value, choice = self._choose(1.0, multiplier * passed)
            value += multiplier * self._lags_ns
            best = max(best, value)
            self._run(choice, duration_ns)
            longest_ns, lags_ns = self._longest(duration_ns, path)
            mixed_ns = float(self._share @ duration_ns) + self._lags_ns
            if multiplier * (longest_ns - mixed_ns) <= NEAR * abs(value):
                break
            size = 2 / (step + 3)
            self._share += size * (path - self._share)
            self._lags_ns += size * (lags_ns - self._lags_ns)
        best -= self._rounding_ns * (self._most + multiplier)
        return best - ROUNDING * abs(best), self._planned(1.0, multiplier * self._share)

    def _fastest(self, time_weight: float) -> tuple[float, Outcome | None]:
        _, choice = self._choose(0.0, self._work_ns)
        duration_ns = np.empty_like(self._duration_ns)
        self._run(choice, duration_ns)
        time_ns, _ = self._longest(duration_ns, np.empty_like(duration_ns))
        everywhere = np.ones_like(duration_ns)
        return time_weight * max(0.0, time_ns - self._rounding_ns), self._planned(0.0, everywhere)

    def _choose(self, energy_weight: float, weight: Floats) -> tuple[float, Ints]:
        """The least weighted sum, and the row of every group that attains it. ``weight`` (n_atoms,): of a
        ratio of 1."""
        return _choose(
            self._group,
            self._kind,
            self._shared,
            self._work_ns,
            weight,
            self._ratio,
            energy_weight * self._added,
            self._may,
        )

    def _run(self, choice: Ints, duration_ns: Floats) -> None:
        """Durations at a choice."""
        duration_ns[:] = self._ratio[self._kind, choice[self._group]][self._atom] * self._duration_ns

    def _longest(self, duration_ns: Floats, path: Floats) -> tuple[float, float]:
        """Length of the longest path and the lags on it; the operations on it are marked in ``path``."""
        graph = self._graph
        return _longest(graph.origin, graph.to, graph.lag_ns, graph.op, graph.n_nodes, duration_ns, path)

    def _planned(self, energy_weight: float, weight: Floats) -> Outcome | None:
        """The clocks that the chain's launches would ask for. ``weight`` (n_ops,): of a nanosecond of each."""
        costs, group, allowed, of_chain = self._plan
        graph = self._graph
        kind, launch = graph.kind[of_chain], graph.launch[of_chain]
        key = group[launch] * len(costs.kinds) + kind
        keys, atom = np.unique(key, return_inverse=True)
        work_ns = _sums(atom, self._duration_ns[of_chain], len(keys))
        passed = _sums(atom, (weight * self._duration_ns)[of_chain], len(keys))
        ratio = np.where(np.isfinite(costs.ratio), costs.ratio, 0.0)
        added = costs.request_power_w * 1e-9 - self._floor
        added = np.where(np.isfinite(added), added, 0.0)[None]
        zeros = np.zeros(len(keys), dtype=np.int64)
        of_atom, kinds = keys // len(costs.kinds), keys % len(costs.kinds)
        if not allowed.any(axis=1).all():
            return None
        _, choice = _choose(of_atom, kinds, zeros, work_ns, passed, ratio, energy_weight * added, allowed)
        duration_ns = self._duration_ns.copy()
        rows = choice[group[launch]]
        duration_ns[of_chain] = np.rint(ratio[kind, rows] * duration_ns[of_chain])
        time_ns, _ = self._longest(duration_ns, np.empty_like(duration_ns))
        energy_j = float((added[0][kind, rows] * duration_ns[of_chain]).sum()) + self._floor * time_ns
        return Outcome(int(time_ns), energy_j, choice)


def explore_paths(paths: CriticalPaths, target: Target, *, gap: float) -> Frontier:
    """Ask for multipliers, nearer and nearer to the one that bounds the target best."""
    frontier = Frontier()
    if not paths.usable:
        return frontier
    frontier.ask(paths, *FASTEST)
    cheapest = frontier.ask(paths, 1.0, 0.0)
    if cheapest is None or not cheapest.time_ns:
        return frontier
    slopes = [0.0]

    def ask(slope: float) -> None:
        if all(abs(slope - other) > 0.01 * other for other in slopes):
            slopes.append(slope)
            frontier.ask(paths, 1.0, slope)

    for times in SPREAD:
        ask(times * cheapest.energy_j / cheapest.time_ns)
    for _ in range(MAX_ROUNDS):
        before = frontier.bound(target)
        if not np.isfinite(before):
            break
        tightest = frontier.tightest(target)[0][1]
        slopes.sort()
        at = slopes.index(tightest)
        below, above = slopes[max(at - 1, 0)], slopes[min(at + 1, len(slopes) - 1)]
        ask(math.sqrt(below * tightest) if below > 0 else tightest / 4)
        ask(math.sqrt(tightest * above) if tightest > 0 else above / 4)
        if frontier.bound(target) <= before * (1 + gap / 10) and len(slopes) > 2 * len(SPREAD):
            break
    return frontier


def _sums(group: Ints, values: Floats, n: int) -> Floats:
    return np.bincount(group, values, minlength=n).astype(np.float64)


@compiled
def _choose(
    group: Ints,
    kind: Ints,
    shared: Ints,
    work_ns: Floats,
    weight: Floats,
    ratio: Floats,
    added: Floats,
    may: Bools,
) -> tuple[float, Ints]:
    """Every group's cheapest row: ``(added * work + weight) * ratio``, summed over its atoms, which are
    sorted by group."""
    n_groups, n_rows = may.shape
    choice = np.zeros(n_groups, dtype=np.int64)
    cost = np.empty(n_rows)
    total, first = 0.0, 0
    for g in range(n_groups):
        cost[:] = 0.0
        stop = first
        while stop < len(group) and group[stop] == g:
            k = kind[stop]
            prices = added[shared[stop], k]
            for c in range(n_rows):
                cost[c] += (prices[c] * work_ns[stop] + weight[stop]) * ratio[k, c]
            stop += 1
        first = stop
        least = np.inf
        for c in range(n_rows):
            if may[g, c] and cost[c] < least:
                least = cost[c]
                choice[g] = c
        total += least
    return total, choice


@compiled
def _longest(
    origin: Ints, to: Ints, lag_ns: Ints, op: Ints, n_nodes: int, duration_ns: Floats, path: Floats
) -> tuple[float, float]:
    at_ns = np.full(n_nodes, -np.inf)
    via = np.full(n_nodes, -1)
    for k in range(len(to)):
        time_ns = float(lag_ns[k])
        if origin[k] >= 0:
            time_ns += at_ns[origin[k]]
        if op[k] >= 0:
            time_ns += duration_ns[op[k]]
        if time_ns > at_ns[to[k]]:
            at_ns[to[k]] = time_ns
            via[to[k]] = k
    path[:] = 0.0
    lags_ns = 0.0
    node = n_nodes - 1
    while node >= 0 and via[node] >= 0:
        k = via[node]
        lags_ns += lag_ns[k]
        if op[k] >= 0:
            path[op[k]] = 1.0
        node = origin[k]
    return at_ns[n_nodes - 1], lags_ns
