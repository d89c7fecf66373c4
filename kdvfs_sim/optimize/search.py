"""Search without structure: for objectives that the exact methods cannot express.

Several streams, a dynamic governor, a real GPU: whatever ``problem.evaluate`` is. ``LocalSearch`` proposes
and is told (core.protocols.Search); ``SearchOptimizer`` makes an Optimizer of any search.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from kdvfs_sim.core.errors import InputError, NotApplicableError
from kdvfs_sim.core.problem import Candidate, Metrics, Problem, Solution
from kdvfs_sim.core.protocols import Search
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.optimize.additive import group_launches
from kdvfs_sim.optimize.assignment import as_schedule
from kdvfs_sim.optimize.baselines import locks, static_lock, static_mix
from kdvfs_sim.optimize.replayed import BETTER

HISTORY: Final = 40  # accepted values that a proposal is compared with, oldest first
TRIES: Final = 60  # proposals made anew when they were proposed before
OVERRUN: Final = 20.0  # a budget broken by 1 % counts as a value 20 % higher
Rows = tuple[int, ...]


class LocalSearch:
    """Late-acceptance local search over one clock pair per group of launches. A ``Search``.

    It begins with every single lock. After that a proposal changes one stretch, one run, one edge or one kind
    of the current plan, and replaces it if it is no worse than what was current HISTORY steps ago (Burke and
    Bykov, 2017): like annealing, but without a temperature to tune. Plans over the budget count as worse, not
    as impossible, so that the way may lead through them. Raises NotApplicableError for a granularity that the
    recording does not support.
    """

    def __init__(self, problem: Problem, seed: int) -> None:
        self.problem = problem
        self._random = random.Random(seed)
        self._group = group_launches(problem.chain, problem.granularity)
        self._kind = np.full(int(self._group.max()) + 1, -1)
        self._kind[self._group] = problem.chain.kind
        needed = np.unique(problem.chain.kind)
        known = np.isfinite(problem.costs.ratio[needed]).all(axis=0)
        self._rows: list[int] = np.flatnonzero(problem.costs.requestable & known).tolist()
        self._locks = [(row,) * len(self._kind) for row in reversed(self._rows)]
        self._asked: dict[int, Rows] = {}
        self._seen: set[Rows] = set()
        self._current: tuple[float, Rows] | None = None
        self._history: list[float] = []
        self._n_asked = self._n_told = 0
        self._done = not self._rows

    def ask(self) -> Candidate | None:
        """See core.protocols.Search. None once TRIES proposals in a row bring nothing new."""
        rows = None if self._done else self._propose()
        if rows is None:
            self._done = True
            return None
        self._seen.add(rows)
        number, self._n_asked = self._n_asked, self._n_asked + 1
        self._asked[number] = rows
        return Candidate(number=number, schedule=self._schedule(rows))

    def tell(self, candidate: Candidate, metrics: Metrics | None, /) -> None:
        """See core.protocols.Search. Raises InputError for a candidate that is not awaited."""
        rows = self._asked.pop(candidate.number, None)
        if rows is None:
            awaited = ", ".join(map(str, self._asked)) or "none"
            raise InputError(f"candidate {candidate.number} is not awaited; awaited: {awaited}")
        value = self._penalized(metrics)
        if not np.isfinite(value):
            return
        self._n_told += 1
        if not self._history:
            self._history = [value] * HISTORY
        place = self._n_told % HISTORY
        if self._current is None or value <= max(self._history[place], self._current[0]):
            self._current = (value, rows)
        self._history[place] = min(self._history[place], self._current[0])

    # -- proposals

    def _propose(self) -> Rows | None:
        while self._locks:
            lock = self._locks.pop()
            if lock not in self._seen:
                return lock
        if len(self._rows) < 2:
            return None
        base = (self._rows[0],) * len(self._kind) if self._current is None else self._current[1]
        for attempt in range(TRIES):
            rows = base
            for _ in range(1 + attempt // 10):  # the more is known nearby, the farther away
                rows = self._changed(rows)
            if rows not in self._seen:
                return rows
        return None

    def _changed(self, rows: Rows) -> Rows:
        n, draw = len(rows), self._random
        edges = [i for i in range(1, n) if rows[i] != rows[i - 1]]
        move = draw.randrange(4)
        new = draw.choice(self._rows)
        if move == 0:  # a stretch of any length, short ones most often
            first = draw.randrange(n)
            length = 1 + int(n ** draw.random()) if n > 1 else 1
            return (*rows[:first], *(new for _ in rows[first : first + length]), *rows[first + length :])
        if move == 1 and edges:  # an edge moves, perhaps until a run is gone
            edge = draw.choice(edges)
            by = 1 + int(n ** draw.random())
            if draw.random() < 0.5:
                first = max(0, edge - by)
                return (*rows[:first], *(rows[edge] for _ in rows[first:edge]), *rows[edge:])
            return (*rows[:edge], *(rows[edge - 1] for _ in rows[edge : edge + by]), *rows[edge + by :])
        if move == 2:  # a whole run
            bounds = [0, *edges, n]
            run = draw.randrange(len(bounds) - 1)
            first, stop = bounds[run], bounds[run + 1]
            return (*rows[:first], *(new for _ in rows[first:stop]), *rows[stop:])
        kind = draw.choice(self._kind.tolist())
        return tuple(new if k == kind else row for k, row in zip(self._kind.tolist(), rows, strict=True))

    # -- plans as schedules

    def _schedule(self, rows: Rows) -> Schedule:
        return as_schedule(self.problem, np.array(rows)[self._group])

    def _penalized(self, metrics: Metrics | None) -> float:
        if metrics is None or metrics.energy_j is None:
            return np.inf
        objective = self.problem.objective
        value = objective.value(metrics.time_s, metrics.energy_j)
        over = 0.0
        if objective.max_time_s is not None:
            over = metrics.time_s / max(objective.max_time_s, 1e-12) - 1
        if objective.max_energy_j is not None:
            over = metrics.energy_j / max(objective.max_energy_j, 1e-12) - 1
        return value * (1 + OVERRUN * over) if over > 0 else value


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptimizer:
    """Any search as an Optimizer: asks, evaluates, tells, and keeps the best that holds the budget.

    ``search(problem, seed)`` makes the search. Decided by ``n_evaluations`` and not by a clock, so that an
    answer does not depend on the machine.
    """

    search: Callable[[Problem, int], Search] = field(default=LocalSearch)
    n_evaluations: int = 400

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        """The best schedule proposed, a single lock, or a mix of two: whichever is best. No bound.

        Infeasible and not applicable are statuses. Raises nothing but what ``problem.evaluate`` and the
        search raise.
        """
        try:
            search = self.search(problem, seed)
        except NotApplicableError as error:
            return Solution(status="not applicable", message=str(error), seed=seed)
        candidates = locks(problem)
        best, least, n = None, np.inf, 0
        while n < self.n_evaluations and (candidate := search.ask()) is not None:
            metrics = problem.evaluate(candidate.schedule)
            n += 1
            search.tell(candidate, metrics)
            value = problem.objective.value_of(metrics)
            if value < least:
                best, least = Solution(status="feasible", schedule=candidate.schedule, metrics=metrics), value
        baselines = [static_lock(problem, candidates)]
        if problem.aggregation == "global":
            baselines.append(static_mix(problem, candidates))
        judged = [(problem.objective.value_of(b.metrics), b) for b in baselines if b.metrics is not None]
        value, baseline = min(judged, key=lambda one: one[0], default=(np.inf, None))
        if baseline is not None and value < np.inf and value * (1 - BETTER) <= least:
            best = replace(baseline, lower_bound=None)  # of equals, the one that asks for least
        n += len(candidates)
        if best is None:
            message = "no schedule that was tried keeps the budget"
            return Solution(status="infeasible", message=message, n_evaluations=n, seed=seed)
        exact = problem.chain.additive
        return replace(
            best,
            status="feasible" if exact else "not exact",
            message=best.message if exact else problem.chain.reason,
            n_evaluations=n,
            seed=seed,
        )
