"""Small random problems, and every schedule of their decision space."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np
from hypothesis import strategies as st

from kdvfs_sim.core.chain import Chain
from kdvfs_sim.core.clocks import AUTO, AUTO_CLOCKS, Clocks
from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.core.problem import Metrics, Objective, Problem
from kdvfs_sim.core.schedule import ClockRequest, Schedule
from kdvfs_sim.core.switching import (
    DRAIN,
    FOLLOW,
    FREE,
    LOOKAHEAD,
    Boundary,
    SwitchProtocol,
    SwitchTable,
)
from kdvfs_sim.optimize.paths import ClosedPaths, OpenPaths
from kdvfs_sim.optimize.target import Outcome
from tests.optimize.reference import Log, SlowEvaluator

EVERY = (FREE, DRAIN, FOLLOW, LOOKAHEAD)
CHARGED = (DRAIN, FOLLOW, LOOKAHEAD)
BOUNDARIES: tuple[Boundary, ...] = ("periodic", "one-shot")


def problems(
    *,
    protocols: tuple[SwitchProtocol, ...] = EVERY,
    boundaries: tuple[Boundary, ...] = BOUNDARIES,
    max_launches: int = 5,
    max_clocks: int = 3,
) -> st.SearchStrategy[Problem]:
    """Random problems; what fails is reported as the seed of ``random_problem``."""
    return st.builds(
        random_problem,
        st.integers(0, 2**31),
        protocol=st.sampled_from(protocols),
        boundary=st.sampled_from(boundaries),
        max_launches=st.integers(1, max_launches),
        max_clocks=st.integers(1, max_clocks),
    )


def random_problem(
    seed: int,
    *,
    protocol: SwitchProtocol,
    boundary: Boundary,
    max_launches: int = 5,
    max_clocks: int = 3,
) -> Problem:
    """A few launches of kinds that mind a low clock more or less, so that changing may pay.

    Switching takes from nothing to longer than everything, by pairs or by target; half of the
    tables also stall, and cost energy.
    """
    rng = np.random.default_rng(seed)
    n_clocks, n = rng.integers(1, (max_clocks + 1, max_launches + 1), (2, 2)).max(axis=0)
    n_kinds = int(rng.integers(1, 4))
    speed = np.sort(rng.uniform(0.3, 1, n_clocks))[::-1]
    speed[0] = 1.0
    minds = rng.choice([0.0, 0.1, 1.0], n_kinds)[:, None]
    power_w = rng.uniform(50, 300, (n_kinds, 1)) * speed ** rng.uniform(0.5, 3, (n_kinds, 1))
    order = rng.permutation(n_clocks)
    costs = CostTable(
        kinds=tuple(f"k{i}" for i in range(n_kinds)),
        clocks=(AUTO_CLOCKS, *(Clocks(100 * (i + 1), AUTO) for i in range(n_clocks - 1))),
        duration_ns=(minds / speed + 1 - minds)[:, order],
        power_w=power_w[:, order],
        effective=np.tile(np.arange(n_clocks, dtype=np.int32), (n_kinds, 1)),
        idle_power_w=(30 * speed)[order] * rng.choice([0, 1]),
        recorded=0,
        requestable=np.ones(n_clocks, dtype=np.bool_),
    )
    lag_ns = np.append(0, rng.choice([0, 0, 7, 100], n - 1)).astype(np.int64)
    chain = Chain(
        kind=rng.integers(n_kinds, size=n).astype(np.int32),
        duration_ns=rng.choice([0, 50, 300, 700, 1000], n).astype(np.int64),
        lag_ns=lag_ns,
        min_lag_ns=lag_ns,
    )
    problem = Problem(
        chain=chain,
        costs=costs,
        switching=random_switching(rng, n_clocks),
        protocol=protocol.with_timing(
            trigger_ns=int(rng.choice([0, 3, 60])), relaunch_ns=int(rng.choice([0, 10]))
        ),
        boundary=boundary,
        objective=Objective(),
        evaluate=lambda _: Metrics(time_s=0, energy_j=None),
        start=int(rng.integers(n_clocks)),
    )
    return judged_slowly(problem, slack=float(rng.choice([0.0, 0.006, 0.05, 0.1, 0.3, 1.0])))


def random_switching(rng: np.random.Generator, n_clocks: int) -> SwitchTable:
    latency_ns, call_ns = rng.choice([0, 1, 5, 20, 60, 200, 10**6]), rng.choice([0, 0, 5, 100, 10**6])
    rows, plain = int(rng.choice([1, n_clocks])), bool(rng.choice([False, True]))
    changes = 1 - np.eye(n_clocks, dtype=np.int64)

    def table(low: int, high: int) -> np.ndarray:
        return rng.integers(low, high + 1, (rows, n_clocks)) * changes

    switching_ns = table(latency_ns // 2, latency_ns + latency_ns // 2)
    return SwitchTable(
        host_call_ns=table(call_ns // 2, call_ns),
        switching_ns=switching_ns,
        stall_ns=0 * switching_ns if plain else np.minimum(table(0, 20), switching_ns),
        extra_energy_j=0.0 * switching_ns if plain else 1e-9 * table(0, 1000),
    )


def judge_of(problem: Problem) -> SlowEvaluator:
    return SlowEvaluator(
        chain=problem.chain,
        costs=problem.costs,
        switching=problem.switching,
        protocol=problem.protocol,
        boundary=problem.boundary,
        start=0 if problem.start is None else problem.start,
    )


def judged_slowly(problem: Problem, slack: float | None = None) -> Problem:
    """The problem with the slow evaluator as its judge and, if given, a time budget over AUTO."""
    slow = judge_of(problem)
    problem = replace(problem, evaluate=lru_cache(maxsize=None)(slow.evaluate))
    if slack is None:
        return problem
    auto = slow.evaluate(static(problem, 0))
    return replace(problem, objective=Objective(max_time_s=auto.time_s * (1 + slack)))


def barred(problem: Problem, seed: int) -> Problem:
    """The same with power that is not known, so that some kinds may not run at some clocks; never AUTO.

    Every launch takes some time: one that takes none draws nothing at any power.
    """
    unknown = np.random.default_rng(seed).random(problem.costs.power_w.shape) < 0.3
    unknown[:, problem.costs.auto] = False
    duration_ns = np.maximum(problem.chain.duration_ns, 50)
    problem = replace(
        problem,
        costs=replace(problem.costs, power_w=np.where(unknown, np.nan, problem.costs.power_w)),
        chain=replace(problem.chain, duration_ns=duration_ns),
    )
    slow = judge_of(problem)

    def evaluate(schedule: Schedule) -> Metrics:
        metrics = slow.evaluate(schedule)
        known = metrics.energy_j is not None and np.isfinite(metrics.energy_j)
        return metrics if known else replace(metrics, energy_j=None)

    return replace(problem, evaluate=evaluate)


def static(problem: Problem, row: int) -> Schedule:
    return Schedule.static(
        problem.costs.clocks[row],
        stream=problem.chain.stream,
        device=problem.chain.device,
        protocol=problem.protocol.name,
        boundary=problem.boundary,
    )


def judged_as_placed(problem: Problem, paths: OpenPaths | ClosedPaths, outcome: Outcome) -> Metrics:
    """What the judge says of the requests that bring an outcome about."""
    placed = paths.place(outcome)
    assert placed is not None
    return problem.evaluate(
        placed.schedule(
            problem.costs.clocks,
            protocol=problem.protocol.name,
            boundary=problem.boundary,
            stream=0,
            device=0,
        )
    )


def best_by_trying_all(problem: Problem) -> float:
    """The least objective over the decision space, within the budget; infinite if nothing keeps it."""
    slow, best = judge_of(problem), np.inf
    for requests in decision_space(problem):
        if problem.boundary == "one-shot" and len(requests) > 1 and requests[0][2] == problem.start:
            requests = requests[1:]  # asking for what is there
        if not all(problem.costs.requestable[row] for _, _, row in requests):
            continue
        schedule = Schedule(
            requests=tuple(
                ClockRequest(launch=launch, offset_ns=offset_ns, clocks=problem.costs.clocks[row])
                for launch, offset_ns, row in requests
            ),
            protocol=problem.protocol.name,
            boundary=problem.boundary,
        )
        metrics, log = slow.run(schedule)
        assert metrics.energy_j is not None
        if metrics.flags or not admissible(problem, log, round(metrics.time_s * 1e9)):
            continue
        if problem.objective.allows(metrics.time_s, metrics.energy_j):
            best = min(best, problem.objective.value(metrics.time_s, metrics.energy_j))
    return best


def decision_space(problem: Problem) -> Iterator[list[tuple[int, int, int]]]:
    """Lists of requests (launch, offset, row), among them all that the decision space holds.

    One for each assignment of clocks to launches under ``free`` and ``drain``; a request or none at
    every launch under ``follow``; under ``lookahead`` one that lands on each boundary at which an
    assignment changes, and, one-shot, perhaps one at once.
    """
    n, n_clocks, protocol = len(problem.chain), problem.costs.n_clocks, problem.protocol
    if problem.boundary == "one-shot":
        yield []  # nothing asked for
    for row in range(n_clocks):
        yield [(0, 0, row)]
    if not protocol.charged or protocol.drains:
        for rows in itertools.product(range(n_clocks), repeat=n):
            yield [(i, 0, row) for i, row in enumerate(rows) if i == 0 or row != rows[i - 1]]
    elif not protocol.anticipates:
        for wishes in itertools.product(range(-1, n_clocks), repeat=n):
            if max(wishes) >= 0:
                yield [(i, 0, row) for i, row in enumerate(wishes) if row >= 0]
    else:
        for rows in itertools.product(range(n_clocks), repeat=n):
            if problem.boundary == "periodic":
                yield from _landings(problem, rows, rows[-1], [])
            else:
                start = 0 if problem.start is None else problem.start
                yield from _landings(problem, rows, start, [])
                yield from _landings(problem, rows, rows[0], [(0, 0, rows[0])])


def _landings(
    problem: Problem, rows: tuple[int, ...], before: int, first: list[tuple[int, int, int]]
) -> Iterator[list[tuple[int, int, int]]]:
    """The requests that land where an assignment changes; none if one would have to be made earlier
    than the launches that run on the old clocks before it begin."""
    n, chain = len(rows), problem.chain
    requests = list(first)
    for m in range(n):
        old = rows[m - 1] if m else before
        if rows[m] == old:
            continue
        needed = int(problem.switching.switching_ns[old, rows[m]] - problem.switching.stall_ns[old, rows[m]])
        reached, j = 0, m
        while reached < needed and j > m - n and (j > 0 or problem.boundary == "periodic"):
            j -= 1
            if rows[j % n] != old:
                return
            ratio = problem.costs.ratio[chain.kind[j % n], old]
            # The gap before launch j + 1; there is none between iterations.
            reached += int(np.rint(chain.duration_ns[j % n] * ratio)) + int(chain.lag_ns[(j + 1) % n])
        if reached < needed:
            return
        requests.append((j % n, reached - needed, rows[m]))
    if requests:
        yield sorted(requests[: len(first)]) + sorted(requests[len(first) :])


def admissible(problem: Problem, log: Log, time_ns: int) -> bool:
    """Was every change decided at a boundary of its own, with no other outstanding, and made then
    (``follow``) or in time to land on a boundary (``lookahead``)?"""
    protocol, periodic = problem.protocol, problem.boundary == "periodic"
    if not protocol.charged or protocol.drains:
        return True
    laps = range(-1, 4) if periodic else range(1)
    starts = [start + lap * time_ns for lap in laps for start in log.starts_ns]
    asked = [(one, lap * time_ns) for lap in (range(3) if periodic else range(1)) for one in log.asked]
    decided = -1
    for k, (one, shift_ns) in enumerate(asked):
        issued_ns, ready_ns, stops_ns = (t + shift_ns for t in (one.issued_ns, one.ready_ns, one.stops_ns))
        at_ns = issued_ns if protocol.anticipates else issued_ns - protocol.trigger_ns
        decided = next((i for i in range(decided + 1, len(starts)) if starts[i] >= ready_ns), len(starts))
        if one.waited or decided == len(starts) or starts[decided] > at_ns:
            return False
        if not protocol.anticipates:
            decided = max(decided, starts.index(at_ns))
        elif stops_ns not in starts and (periodic or k or issued_ns):
            return False
    return True
