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
import numpy.typing as npt

from kdvfs_sim.core.compiled import compiled
from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.core.precedence import Precedence
from kdvfs_sim.core.problem import Problem
from kdvfs_sim.optimize.additive import LEAST_NS, Bools, Floats, Ints
from kdvfs_sim.optimize.frontier import FASTEST, ROUNDING, Frontier
from kdvfs_sim.optimize.target import Outcome, Target

MAX_STEPS = 80  # towards longest paths, for one multiplier
NEAR = 1e-4  # relative: how near to the best shares is near enough
MAX_ROUNDS = 8  # of multipliers on both sides of the best one
SPREAD = (0.1, 0.5, 2.0, 8.0, 32.0)  # first multipliers, times the mean power


class _Choices:
    """Operations in groups, each of which takes the row that is cheapest for it.

    ``kind``, ``duration_ns`` (as recorded), ``group`` (n_ops,); ``ratio`` (n_kinds, n_rows) of durations to
    recorded ones; ``added`` (n_accounts, n_kinds, n_rows) J/ns, and ``account`` (n_ops,): by which of them an
    operation counts; ``may`` (n_groups, n_rows). Numbers that are not finite bar a row for what takes time.
    """

    def __init__(
        self,
        *,
        kind: npt.NDArray[np.int32],
        duration_ns: Ints,
        group: Ints,
        ratio: Floats,
        added: Floats,
        account: Ints,
        may: Bools,
    ) -> None:
        n_kinds, n_accounts = len(ratio), len(added)
        known = np.isfinite(ratio) & np.isfinite(added)
        self.ratio, self.added = np.where(known.any(axis=0), ratio, 0.0), np.where(known, added, 0.0)
        self._duration_ns = duration_ns.astype(np.float64)
        # Within a group, operations of one kind that count alike are priced as one.
        key = (group * n_accounts + account) * n_kinds + kind
        keys, self._part = np.unique(key, return_inverse=True)
        self._group, self._account = keys // n_kinds // n_accounts, keys // n_kinds % n_accounts
        self._kind = keys % n_kinds
        self._work_ns = self._sums(self._duration_ns)
        self._may = may.copy()
        longest_ns = np.zeros(len(keys))
        np.maximum.at(longest_ns, self._part, self._duration_ns)
        brief = longest_ns[:, None] * np.where(longest_ns[:, None] > 0, ratio[self._kind], 0.0) <= LEAST_NS
        bars = ~(known[self._account, self._kind] | brief)
        np.logical_and.at(self._may, self._group, ~bars)
        self.possible = bool(self._may.any(axis=1).all())

    def cheapest(self, energy_weight: float, time_weight: Floats) -> tuple[float, Ints]:
        """The least weighted sum, and the row of every group. ``time_weight`` (n_ops,): of a nanosecond."""
        weight = self._sums(time_weight * self._duration_ns)
        added = energy_weight * self.added
        return _cheapest(
            self._group, self._kind, self._account, self._work_ns, weight, self.ratio, added, self._may
        )

    def durations_ns(self, choice: Ints) -> Floats:
        """(n_ops,)"""
        ratio: Floats = self.ratio[self._kind, choice[self._group]][self._part]
        return ratio * self._duration_ns

    def added_j(self, choice: Ints) -> float:
        """What all operations add."""
        rows = choice[self._group]
        watts = self.added[self._account, self._kind, rows]
        return float((watts * self.ratio[self._kind, rows] * self._work_ns).sum())

    def _sums(self, values: Floats) -> Floats:
        return np.bincount(self._part, values, minlength=len(self._kind)).astype(np.float64)


class CriticalPaths:
    """An ``Oracle`` for energy weights of 1, and of 0 for the fastest.

    ``group`` (n_launches,) and ``allowed`` (n_groups, n_rows of the cost table): the launches that share a
    choice, and what they may run at. Outcomes have a row for every group, and are plans worth judging: their
    times and energies are predictions. Not ``usable`` where too little is known of power.
    """

    def __init__(self, problem: Problem, group: Ints, allowed: Bools) -> None:
        assert problem.chain.precedence is not None
        self._graph = graph = problem.chain.precedence()
        self._launch = np.flatnonzero(graph.launch >= 0)
        self._floor = _least_power(problem.costs)  # J/ns
        by_launch = group[graph.launch[self._launch]]
        self._plans = _plan_choices(problem.costs, graph, self._launch, by_launch, allowed, self._floor)
        self._choices = _bound_choices(problem, graph, by_launch, allowed, self._floor)
        self.usable = self._choices.possible and _enough_known(problem.costs, graph)
        # Every start, end and change beside an operation rounds what is left of it.
        whole = graph.slowest_ns is None and not problem.protocol.charged
        each_ns = 1 if whole else 4 * math.ceil(_widest(self._choices.ratio))
        self._rounding_ns = each_ns * len(graph.kind)
        self._most = float(np.abs(self._choices.added).max(initial=0.0)) + self._floor
        # The shares, and the lags on the paths they are of: at first the longest path of the recording.
        _, self._lags_ns, self._share = self._longest(graph.duration_ns.astype(np.float64))

    def __call__(self, energy_weight: float, time_weight: float, /) -> tuple[float, Outcome | None]:
        if energy_weight == 0:
            everywhere = np.ones_like(self._share)
            _, choice = self._choices.cheapest(0.0, everywhere)
            time_ns, _, _ = self._longest(self._choices.durations_ns(choice))
            return time_weight * max(0.0, time_ns - self._rounding_ns), self._plan(0.0, everywhere)
        multiplier = time_weight + self._floor
        best = -np.inf
        for step in range(MAX_STEPS):
            value, choice = self._choices.cheapest(1.0, multiplier * self._share)
            value += multiplier * self._lags_ns
            best = max(best, value)
            duration_ns = self._choices.durations_ns(choice)
            longest_ns, lags_ns, path = self._longest(duration_ns)
            mixed_ns = float(self._share @ duration_ns) + self._lags_ns
            if multiplier * (longest_ns - mixed_ns) <= NEAR * abs(value):
                break
            size = 2 / (step + 3)
            self._share += size * (path - self._share)
            self._lags_ns += size * (lags_ns - self._lags_ns)
        best -= self._rounding_ns * (self._most + multiplier)
        return best - ROUNDING * abs(best), self._plan(1.0, multiplier * self._share)

    def _longest(self, duration_ns: Floats) -> tuple[float, float, Floats]:
        """Length of the longest path, the lags on it, and 1 for every operation on it."""
        graph = self._graph
        path = np.zeros_like(duration_ns)
        length_ns, lags_ns = _longest(
            graph.origin, graph.to, graph.lag_ns, graph.op, graph.n_nodes, duration_ns, path
        )
        return length_ns, lags_ns, path

    def _plan(self, energy_weight: float, time_weight: Floats) -> Outcome | None:
        """The rows that the chain's launches would ask for; what runs beside them is taken as recorded."""
        if not self._plans.possible:
            return None
        _, choice = self._plans.cheapest(energy_weight, time_weight[self._launch])
        duration_ns = self._graph.duration_ns.astype(np.float64)
        duration_ns[self._launch] = np.rint(self._plans.durations_ns(choice))
        time_ns, _, _ = self._longest(duration_ns)
        return Outcome(int(time_ns), self._plans.added_j(choice) + self._floor * time_ns, choice)


def explore_paths(paths: CriticalPaths, target: Target, *, gap: float) -> Frontier:
    """Ask for multipliers, nearer and nearer to the one that bounds the target best."""
    frontier = Frontier()
    if not paths.usable:
        return frontier
    frontier.ask(paths, *FASTEST)
    cheapest = frontier.ask(paths, 1.0, 0.0)
    if cheapest is None or min(cheapest.time_ns, cheapest.energy_j) <= 0:
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


def _least_power(costs: CostTable) -> float:
    """What the device draws at least, in J/ns; 0 if it is not known when idle."""
    known_w = costs.idle_power_w[np.isfinite(costs.idle_power_w)]
    return float(known_w.min()) * 1e-9 if known_w.size else 0.0


def _enough_known(costs: CostTable, graph: Precedence) -> bool:
    """Is enough known of power to bound anything?

    Beside others a kernel may run at any row, and how long it takes may be known only of the clocks that the
    recording ran at.
    """
    idle_known = np.isfinite(costs.idle_power_w)
    if graph.slowest_ns is None:
        return bool(idle_known.any())
    guessed = np.isnan(costs.duration_ns) & np.isfinite(costs.power_w)
    return bool(idle_known.all() and not guessed[graph.kind].any())


def _plan_choices(
    costs: CostTable, graph: Precedence, ops: Ints, group: Ints, allowed: Bools, floor: float
) -> _Choices:
    """What plans choose among: the chain's launches, operations ``ops``, at rows that may be asked for."""
    return _Choices(
        kind=graph.kind[ops],
        duration_ns=graph.duration_ns[ops],
        group=group,
        ratio=costs.ratio,
        added=(costs.request_power_w * 1e-9 - floor)[None],
        account=np.zeros_like(ops),
        may=allowed,
    )


def _bound_choices(
    problem: Problem, graph: Precedence, group: Ints, allowed: Bools, floor: float
) -> _Choices:
    """What the bound chooses among: every operation, at whatever it may come to run at."""
    ratio, added = _prices(problem.costs, graph, floor)
    groups, may = _reach(problem, graph, group, allowed)
    return _Choices(
        kind=graph.kind,
        duration_ns=graph.duration_ns,
        group=groups,
        ratio=ratio,
        added=added,
        account=np.where(graph.apart, 0, 1),  # who counts all, and who what it adds to a running device
        may=may,
    )


def _prices(costs: CostTable, graph: Precedence, floor: float) -> tuple[Floats, Floats]:
    """Ratio of durations to recorded ones, (n_kinds, n_rows); and J/ns added to the least that the device
    draws and to what it draws when idle, (2, n_kinds, n_rows). Beside others, both at their least."""
    power_w = costs.request_power_w if graph.slowest_ns is None else costs.power_w
    added = np.stack([power_w * 1e-9 - floor, (power_w - costs.idle_power_w) * 1e-9])
    if graph.slowest_ns is None:
        return costs.ratio, added
    # Who draws less than an idle device saves the more the longer it runs.
    shortest_ns = np.where(np.isfinite(costs.duration_ns), costs.duration_ns, np.inf).min(axis=1)
    added = np.where(added < 0, added * (graph.slowest_ns / shortest_ns)[:, None], added)
    return costs.duration_ns / graph.slowest_ns[:, None], added


def _reach(problem: Problem, graph: Precedence, group: Ints, allowed: Bools) -> tuple[Ints, Bools]:
    """Groups of operations, and the rows at which each may run.

    Beside others a kernel may run at any row, whatever was asked for; and where a change lands in the midst
    of work, a launch also runs at the clocks of those before it.
    """
    costs, protocol = problem.costs, problem.protocol
    alone = graph.slowest_ns is None
    if alone and (protocol.drains or not protocol.charged):
        groups, may = group, allowed
    else:
        groups = np.arange(len(graph.kind))
        may = np.broadcast_to(costs.requestable | (not alone), (len(groups), costs.n_clocks))
    if alone and protocol.charged and problem.boundary == "one-shot":  # until the first change
        start = costs.auto if problem.start is None else problem.start
        may = may | (np.arange(costs.n_clocks) == start)
    return groups, may


def _widest(ratio: Floats) -> float:
    """The most by which durations differ from one row to another, as a factor."""
    some = ratio[ratio > 0]
    return min(float(some.max() / some.min()), 1e12) if some.size else 1.0


@compiled
def _cheapest(
    group: Ints,
    kind: Ints,
    account: Ints,
    work_ns: Floats,
    weight: Floats,
    ratio: Floats,
    added: Floats,
    may: Bools,
) -> tuple[float, Ints]:
    """Every group's cheapest row by ``(added * work + weight) * ratio``, summed over its parts, which are
    sorted by group."""
    n_groups, n_rows = may.shape
    choice = np.zeros(n_groups, dtype=np.int64)
    cost = np.empty(n_rows)
    total, part = 0.0, 0
    for g in range(n_groups):
        cost[:] = 0.0
        while part < len(group) and group[part] == g:
            k, price = kind[part], added[account[part], kind[part]]
            for c in range(n_rows):
                cost[c] += (price[c] * work_ns[part] + weight[part]) * ratio[k, c]
            part += 1
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
    """Length and lags of the longest path; what is on it is marked in ``path``, which is zero."""
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
    lags_ns = 0.0
    node = n_nodes - 1
    while node >= 0 and via[node] >= 0:
        k = via[node]
        lags_ns += lag_ns[k]
        if op[k] >= 0:
            path[op[k]] = 1.0
        node = origin[k]
    return at_ns[n_nodes - 1], lags_ns
