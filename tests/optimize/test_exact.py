"""The exact methods beside trying everything, and beside HiGHS.

The long run, 10,000 problems in a few minutes: ``pytest tests/optimize/test_exact.py -m soak -n0``.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from kdvfs_sim.core.problem import Metrics, Problem, Solution
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.core.switching import DRAIN, FOLLOW, FREE, LOOKAHEAD
from kdvfs_sim.optimize import solve as room
from kdvfs_sim.optimize.solve import GAP, solve
from tests.optimize.problems import (
    BOUNDARIES,
    CHARGED,
    EVERY,
    barred,
    best_by_trying_all,
    judged_slowly,
    problems,
    random_problem,
)

ROUNDING = 1e-9
COMBINATIONS = list(itertools.product(EVERY, BOUNDARIES))


def energy(solution: Solution) -> float:
    assert solution.metrics is not None
    assert solution.metrics.energy_j is not None
    return solution.metrics.energy_j


def check(problem: Problem) -> bool:
    """The bound lies below the optimum, and the answer no further above it than the gap asked for.

    Returns False where the gap stated is wider than that: under ``periodic`` the best walk may take
    several iterations to come round.
    """
    answer, best = solve(problem, seed=0), best_by_trying_all(problem)
    if answer.schedule is None:
        assert best == np.inf
        return True
    assert answer.lower_bound is not None
    tiny = ROUNDING * energy(answer) + 1e-18
    assert answer.lower_bound <= best + tiny
    if answer.alternate is None:
        assert energy(answer) >= best - tiny
    closed = energy(answer) <= answer.lower_bound * (1 + GAP) + tiny
    if problem.boundary == "one-shot" or problem.protocol.drains or not problem.protocol.charged:
        assert energy(answer) <= best * (1 + GAP) + tiny
    return closed


@given(problems())
@settings(max_examples=200)
def test_the_optimum_is_found(problem: Problem) -> None:
    check(problem)


@pytest.mark.soak
@pytest.mark.parametrize(("protocol", "boundary"), COMBINATIONS, ids=lambda v: getattr(v, "name", v))
def test_the_optimum_is_found_every_time(protocol, boundary) -> None:  # type: ignore[no-untyped-def]
    n_open = sum(
        not check(random_problem(seed, protocol=protocol, boundary=boundary)) for seed in range(1250)
    )
    assert n_open <= 40


@given(problems(protocols=CHARGED, boundaries=("one-shot",)))
def test_a_start_that_nobody_can_ask_for(problem: Problem) -> None:
    """It is in force until the first change lands, and launches run at it."""
    n_clocks, recorded = problem.costs.n_clocks, problem.costs.recorded
    assume(n_clocks > 1)
    start = (recorded + 1) % n_clocks if problem.start == recorded else problem.start
    costs = replace(problem.costs, requestable=np.arange(n_clocks) != start)
    check(judged_slowly(replace(problem, costs=costs, start=start)))


@given(problems(protocols=CHARGED), st.integers(0, 2**31))
def test_kernels_that_may_not_run_at_some_clocks(problem: Problem, seed: int) -> None:
    check(barred(problem, seed))


@pytest.mark.parametrize(
    ("number", "protocol", "boundary"),
    [
        (4, FOLLOW, "one-shot"),  # changes that take no time where the old clocks are barred
        (4, LOOKAHEAD, "one-shot"),
        (19, LOOKAHEAD, "periodic"),
        (12, LOOKAHEAD, "one-shot"),  # a change that takes its time without progress
        (198, FOLLOW, "periodic"),  # a request in the last launch
    ],
    ids=lambda v: getattr(v, "name", v),
)
def test_changes_where_the_old_clocks_are_barred(number, protocol, boundary) -> None:  # type: ignore[no-untyped-def]
    check(barred(random_problem(number, protocol=protocol, boundary=boundary), number + 7))


@given(problems())
@settings(max_examples=40)
def test_the_bound_does_not_hear_of_the_primal(problem: Problem) -> None:
    """A judge that says nonsense, and schedules that are nonsense, leave the bound where it is."""

    def nonsense(schedule: Schedule) -> Metrics:
        honest = problem.evaluate(schedule)
        assert honest.energy_j is not None
        return replace(honest, energy_j=3 + honest.energy_j, time_s=honest.time_s / 2)

    method = room._method(problem, GAP)
    corrupted = room._method(replace(problem, evaluate=nonsense), GAP)
    before = method.bound, method.mixed_bound
    for outcome in corrupted.outcomes(room.Target.of(problem.objective)):
        outcome.choice[:] = 0
        corrupted.schedule(outcome)
    assert (method.bound, method.mixed_bound) == before == (corrupted.bound, corrupted.mixed_bound)
    answer = solve(replace(problem, evaluate=nonsense), seed=0)
    if answer.lower_bound is not None:
        assert answer.lower_bound == before[answer.alternate is not None]


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("protocol", [FREE, DRAIN], ids=lambda protocol: protocol.name)
def test_highs_agrees(protocol, boundary) -> None:  # type: ignore[no-untyped-def]
    """100 problems, too large to try everything, as integer programmes."""
    for seed in range(25):
        problem = random_problem(seed, protocol=protocol, boundary=boundary, max_launches=12, max_clocks=5)
        answer, optimum = solve(problem, seed=0), highs(problem)
        tiny = ROUNDING * optimum + 1e-18
        assert answer.lower_bound is not None
        assert answer.lower_bound <= optimum * (1 + 1e-7) + tiny
        assert energy(answer) <= optimum * (1 + GAP + 1e-7) + tiny
        if answer.alternate is None:
            assert energy(answer) >= optimum * (1 - 1e-7) - tiny


def highs(problem: Problem) -> float:
    """Least energy: one unit of flow through launches x clocks, a change between any two of them."""
    chain, costs, switching = problem.chain, problem.costs, problem.switching
    n, n_clocks = len(chain), costs.n_clocks
    limit_s = problem.objective.max_time_s
    assert limit_s is not None
    rows, columns, values, energies, times = [], [], [], [], []
    periodic = problem.boundary == "periodic"
    n_nodes = (n if periodic else n + 1) * n_clocks
    for i, old, new in itertools.product(range(n), range(n_clocks), range(n_clocks)):
        if i == 0 and not periodic and old != problem.start:
            continue
        # An arc is the change before launch i, the launch, and the gap after it.
        busy_ns = np.rint(chain.duration_ns[i] * costs.ratio[chain.kind[i], new])
        gap_ns = chain.lag_ns[i + 1] if i + 1 < n else 0
        joule = busy_ns * costs.request_power_w[chain.kind[i], new] + gap_ns * costs.idle_power_w[new]
        pause_ns = 0
        if old != new and problem.protocol.charged:
            lands_ns = switching.switching_ns[old, new]
            pause_ns = max(lands_ns, switching.host_call_ns[old, new]) + problem.protocol.relaunch_ns
            joule += lands_ns * costs.idle_power_w[old] + (pause_ns - lands_ns) * costs.idle_power_w[new]
            joule += switching.extra_energy_j[old, new] * 1e9
        for node, sign in (
            (i * n_clocks + old, -1.0),
            ((i + 1) % (n if periodic else n + 1) * n_clocks + new, 1.0),
        ):
            rows.append(node)
            columns.append(len(energies))
            values.append(sign)
        energies.append(joule)
        times.append(busy_ns + gap_ns + pause_ns)
    n_arcs = len(energies)
    flow = coo_array((values, (rows, columns)), shape=(n_nodes, n_arcs)).tocsr()
    inflow = np.zeros(n_nodes)
    outflow = np.zeros(n_nodes)
    if not periodic:
        assert problem.start is not None
        inflow[problem.start] = outflow[problem.start] = -1
        outflow[n * n_clocks :] = 1
    first = np.array([[1.0 if k < (n_clocks**2 if periodic else n_clocks) else 0.0 for k in range(n_arcs)]])
    solution = milp(
        np.array(energies),
        integrality=np.ones(n_arcs),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(flow, inflow, outflow),
            LinearConstraint(first, 1, 1),
            LinearConstraint(np.array([times]), 0, limit_s * 1e9 * (1 + 1e-12)),
        ],
        options={"mip_rel_gap": 1e-9},
    )
    assert solution.success, solution.message
    return float(solution.fun) * 1e-9
