"""Laws of ``solve`` on small random problems."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kdvfs_sim.core.chain import Chain
from kdvfs_sim.core.clocks import AUTO, AUTO_CLOCKS, Clocks
from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.core.errors import InvariantError, ScheduleError
from kdvfs_sim.core.problem import Objective, Problem, Solution
from kdvfs_sim.core.schedule import ClockRequest, Schedule
from kdvfs_sim.core.switching import DRAIN, FOLLOW, FREE, LOOKAHEAD, Boundary, SwitchProtocol, SwitchTable
from kdvfs_sim.optimize import solve as room
from kdvfs_sim.optimize.baselines import static_lock, static_mix
from kdvfs_sim.optimize.solve import CLOSED, GAP, solve
from kdvfs_sim.optimize.target import Target
from kdvfs_sim.testing.notation import costs, trace
from kdvfs_sim.testing.notation import problem as pose
from tests.optimize.problems import (
    BOUNDARIES,
    CHARGED,
    EVERY,
    judge_of,
    judged_slowly,
    problems,
    random_problem,
    static,
)

NEVER_NS = 10**12
granularities = st.sampled_from(["launch", "segment", "kind"])


def energy(solution: Solution) -> float:
    assert solution.metrics is not None
    assert solution.metrics.energy_j is not None
    return solution.metrics.energy_j


def bound(solution: Solution) -> float:
    assert solution.lower_bound is not None
    return solution.lower_bound


def closed(solution: Solution) -> bool:
    """Not so under ``periodic`` where the best takes several iterations to come round."""
    return energy(solution) <= bound(solution) * (1 + GAP + CLOSED) + 1e-18


def with_switching(problem: Problem, switching: SwitchTable) -> Problem:
    return judged_slowly(replace(problem, switching=switching))


@given(problems(), granularities)
def test_the_answer_is_what_the_judge_says_and_keeps_the_budget(problem: Problem, granularity) -> None:  # type: ignore[no-untyped-def]
    answer = solve(replace(problem, granularity=granularity), seed=0)
    assume(answer.schedule is not None)
    assert answer.schedule is not None
    assert answer.metrics is not None
    if answer.alternate is None:
        assert problem.evaluate(answer.schedule) == answer.metrics
    limit_s = problem.objective.max_time_s
    assert limit_s is not None
    assert answer.metrics.time_s <= limit_s
    assert bound(answer) <= energy(answer)


@given(problems(), granularities)
def test_never_worse_than_the_baselines(problem: Problem, granularity) -> None:  # type: ignore[no-untyped-def]
    answer = solve(replace(problem, granularity=granularity), seed=0)
    for baseline in (static_lock(problem), static_mix(problem)):
        if baseline.metrics is not None:
            assert energy(answer) <= energy(baseline)


@given(problems())
def test_the_same_problem_has_the_same_answer(problem: Problem) -> None:
    assert solve(problem, seed=0) == solve(problem, seed=0)


@given(problems(), st.sampled_from([1.001, 1.05, 1.5]))
def test_more_slack_is_never_worse(problem: Problem, factor: float) -> None:
    limit_s = problem.objective.max_time_s
    assert limit_s is not None
    strict = solve(problem, seed=0)
    loose = solve(replace(problem, objective=Objective(max_time_s=limit_s * factor)), seed=0)
    assume(strict.schedule is not None)
    assert bound(loose) <= energy(strict)
    if closed(loose):
        assert energy(loose) <= energy(strict) * (1 + GAP) + 1e-18


@given(problems(protocols=CHARGED))
def test_changes_that_cost_nothing_leave_the_knapsack(problem: Problem) -> None:
    protocol = problem.protocol.with_timing(trigger_ns=0, relaunch_ns=0)
    problem = replace(problem, protocol=protocol)
    charged = solve(with_switching(problem, SwitchTable.zero(problem.costs.n_clocks)), seed=0)
    free = solve(judged_slowly(replace(problem, protocol=FREE)), seed=0)
    assume(free.schedule is not None)
    assert energy(charged) <= energy(free) * (1 + GAP) + 1e-18
    if charged.alternate is None and free.alternate is None:
        assert energy(charged) >= energy(free) * (1 - CLOSED) - 1e-18


@given(problems(protocols=CHARGED))
def test_switching_longer_than_everything_leaves_the_baselines(problem: Problem) -> None:
    never = SwitchTable.uniform(problem.costs.n_clocks, host_call_ns=0, switching_ns=NEVER_NS)
    problem = with_switching(problem, never)
    answer = solve(problem, seed=0)
    baseline = static_mix(problem) if problem.boundary == "periodic" else static_lock(problem)
    assert (answer.metrics is None) == (baseline.metrics is None)
    if answer.metrics is not None:
        assert energy(answer) == energy(baseline)


@given(problems(protocols=(FOLLOW, LOOKAHEAD), boundaries=("one-shot",)))
def test_no_lock_is_asked_for_that_lands_after_the_end(problem: Problem) -> None:
    """It is as good as the clocks in force at the start, which need no request."""
    never = SwitchTable.uniform(problem.costs.n_clocks, host_call_ns=0, switching_ns=NEVER_NS)
    problem = with_switching(problem, never)
    lock = static_lock(problem)
    assume(lock.metrics is not None)
    assert lock.metrics is not None
    assert lock.metrics.n_switches == 0


@given(
    problems(protocols=(DRAIN,)) | problems(protocols=(LOOKAHEAD,), boundaries=("periodic",)),
    st.integers(0, 2**31),
)
def test_dearer_changes_are_never_better(problem: Problem, seed: int) -> None:
    """Elementwise. Not so under ``follow``, nor for what lookahead asks for at once, one-shot: where
    such a change lands matters, and later may be better."""
    cheap, rng = problem.switching, np.random.default_rng(seed)
    changes = 1 - np.eye(problem.costs.n_clocks, dtype=np.int64)
    dear = replace(
        cheap,
        host_call_ns=cheap.host_call_ns + rng.integers(0, 30, changes.shape) * changes,
        switching_ns=cheap.switching_ns + rng.integers(0, 30, changes.shape) * changes,
        extra_energy_j=cheap.extra_energy_j * rng.uniform(1, 2),
    )
    costly = solve(with_switching(problem, dear), seed=0)
    assume(costly.schedule is not None)
    answer = solve(problem, seed=0)
    assert bound(answer) <= energy(costly) * (1 + CLOSED)
    if closed(answer):
        assert energy(answer) <= energy(costly) * (1 + GAP) + 1e-18


@given(problems(protocols=(DRAIN,)))
def test_the_bound_of_one_choice_a_kind(problem: Problem) -> None:
    answer = solve(replace(problem, granularity="kind"), seed=0)
    judge = judge_of(problem)
    clocks, kinds = problem.costs.clocks, problem.chain.kind
    limit_s = problem.objective.max_time_s
    assert limit_s is not None
    for rows in itertools.product(range(len(clocks)), repeat=problem.costs.n_kinds):
        schedule = Schedule.from_assignment(
            [clocks[rows[kind]] for kind in kinds], protocol="drain", boundary=problem.boundary
        )
        metrics = judge.evaluate(schedule)
        assert metrics.energy_j is not None
        if metrics.time_s <= limit_s:
            assert bound(answer) <= metrics.energy_j * (1 + CLOSED)


@given(problems(protocols=(FREE,)))
def test_a_clock_that_costs_more_and_takes_longer_changes_nothing(problem: Problem) -> None:
    costs = problem.costs
    worse = CostTable(
        kinds=costs.kinds,
        clocks=(*costs.clocks, Clocks(50, AUTO)),
        duration_ns=np.column_stack([costs.duration_ns, costs.duration_ns.max(axis=1) * 2]),
        power_w=np.column_stack([costs.power_w, costs.power_w.max(axis=1) * 2]),
        effective=np.column_stack([costs.effective, np.full(costs.n_kinds, costs.n_clocks, dtype=np.int32)]),
        idle_power_w=np.append(costs.idle_power_w, costs.idle_power_w.max() * 2 + 1),
        recorded=0,
        requestable=np.ones(costs.n_clocks + 1, dtype=np.bool_),
    )
    wider = judged_slowly(replace(problem, costs=worse, switching=SwitchTable.zero(worse.n_clocks)))
    before = energy(solve(problem, seed=0))
    assert abs(energy(solve(wider, seed=0)) - before) <= CLOSED * before


objectives = st.sampled_from(["energy", "time", "edp", "ed2p"])
aggregations = st.sampled_from(["global", "local"])


@given(problems(), granularities, aggregations)
def test_what_is_predicted_is_what_the_judge_says(problem: Problem, granularity, aggregation) -> None:  # type: ignore[no-untyped-def]
    """Of every candidate; a descent over kinds prices a periodic walk before it has found its round."""
    assume(granularity != "kind" or problem.boundary == "one-shot")
    problem = replace(problem, granularity=granularity, aggregation=aggregation)
    method = room._method(problem, GAP)
    for outcome in method.outcomes(Target.of(problem.objective)):
        schedule = method.schedule(outcome) if outcome.time_ns >= 0 else None
        if schedule is not None and (problem.boundary == "one-shot" or outcome.begin is None):
            metrics = problem.evaluate(schedule)
            assert metrics.energy_j == pytest.approx(outcome.energy_j, rel=1e-9)
            assert round(metrics.time_s * 1e9) == outcome.time_ns


@given(problems(max_launches=8, max_clocks=4), granularities, aggregations, objectives)
def test_no_answer_lies_below_its_bound(problem: Problem, granularity, aggregation, minimize) -> None:  # type: ignore[no-untyped-def]
    problem = replace(problem, granularity=granularity, aggregation=aggregation)
    objective = replace(problem.objective, minimize=minimize)
    if minimize == "time":
        objective = Objective(minimize="time", max_energy_j=problem.evaluate(static(problem, 0)).energy_j)
    answer = solve(replace(problem, objective=objective), seed=0)
    if answer.metrics is not None and answer.metrics.energy_j is not None:
        assert bound(answer) <= objective.value(answer.metrics.time_s, answer.metrics.energy_j)


def test_an_energy_budget_that_is_met_exactly_is_met() -> None:
    """AUTO's own energy as the budget: its sum in another order may come out a digit above."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        posed = random_problem(1, protocol=FOLLOW, boundary="one-shot", max_launches=1, max_clocks=1)
        duration_ns = rng.integers(1, 2000, size=5)
        zeros = np.zeros(5, dtype=np.int64)
        chain = Chain(kind=zeros.astype(np.int32), duration_ns=duration_ns, lag_ns=zeros, min_lag_ns=zeros)
        posed = judged_slowly(replace(posed, chain=chain))
        auto = posed.evaluate(static(posed, 0))
        assert auto.energy_j is not None
        objective = Objective(minimize="time", max_energy_j=auto.energy_j)
        answer = solve(replace(posed, objective=objective), seed=0)
        assert answer.metrics == auto
        assert answer.lower_bound == pytest.approx(auto.time_s, rel=1e-9)


def test_a_landing_where_the_old_clocks_are_barred() -> None:
    """Such a launch has no length at the old clocks: the request must not slip behind it."""
    problem = random_problem(2154, protocol=LOOKAHEAD, boundary="one-shot", max_launches=8, max_clocks=4)
    answer = solve(replace(problem, granularity="kind", aggregation="local"), seed=0)
    assert 0 < bound(answer) <= energy(answer)


@pytest.mark.parametrize(("stream", "launch"), [(0, 0), (7, 2)])
def test_a_plan_from_elsewhere_drives_the_same_launches(stream: int, launch: int) -> None:
    table = costs(["auto", "sm=300,mem=auto"], time=[[1, 1]], power_w=[[50, 60]], idle_w=[10, 10])
    posed = pose(trace((0, 0, 1000, 7), (0, 1000, 1000, 7)), table)
    plan = Schedule(requests=(ClockRequest(clocks=AUTO_CLOCKS, launch=launch, stream=stream),))
    with pytest.raises(ScheduleError, match=r"none of the problem's: 0/7, launches 0\.\.1"):
        solve(posed, seed=0, also=[plan])


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("durations_ns", [(0,), (1000, 0), (1000, 0, 0), (0, 1000)])
def test_a_landing_where_a_launch_takes_no_time(boundary: Boundary, durations_ns: tuple[int, ...]) -> None:
    """A launch of no length begins where the next one does, and the last one where the chain ends: a change
    that lands at once is asked for at the launch that it is for."""
    starts_ns = np.cumsum([0, *durations_ns[:-1]]).tolist()
    recorded = trace(*((0, start, ns) for start, ns in zip(starts_ns, durations_ns, strict=True)))
    table = costs(["auto", "sm=300,mem=auto"], time=[[1, 1]], power_w=[[50, 60]], idle_w=[10, 10])
    posed = pose(recorded, table, protocol=LOOKAHEAD, boundary=boundary)
    n = len(durations_ns)
    for k in range(n):
        rows = [int(i == k) for i in range(n)]
        plan = Schedule.from_assignment([table.clocks[row] for row in rows], boundary=boundary)
        answer = solve(posed, seed=0, also=[plan])
        assert energy(answer) == pytest.approx(50 * sum(durations_ns) * 1e-9)


@pytest.mark.parametrize("protocol", EVERY, ids=lambda protocol: protocol.name)
def test_numbers_of_an_answer_are_pythons_own(protocol: SwitchProtocol) -> None:
    for boundary in BOUNDARIES:
        answer = solve(random_problem(3, protocol=protocol, boundary=boundary, max_launches=8), seed=0)
        assert answer.metrics is not None
        numbers = (answer.lower_bound, answer.share, answer.metrics.energy_j, answer.metrics.time_s)
        assert {type(number) for number in numbers} == {float}
        assert {type(number) for number in (answer.n_evaluations, answer.metrics.n_switches)} == {int}


@pytest.mark.parametrize("protocol", EVERY, ids=lambda protocol: protocol.name)
def test_a_bound_above_the_answer_is_an_error(protocol: SwitchProtocol, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    method_of = room._method

    def corrupted(problem: Problem, gap: float) -> room.Method:
        method = method_of(problem, gap)
        method.bound *= 1.01
        method.mixed_bound *= 1.01
        return method

    monkeypatch.setattr(room, "_method", corrupted)
    for boundary in BOUNDARIES:
        problem = random_problem(3, protocol=protocol, boundary=boundary, max_launches=8)
        with pytest.raises(InvariantError, match="below its own lower bound"):
            solve(problem, seed=0)


def test_a_lock_that_breaks_the_rule_of_a_launch_may_lie_below_the_bound_of_those_that_keep_it() -> None:
    problem = random_problem(74, protocol=FREE, boundary="one-shot", max_launches=8, max_clocks=4)
    problem = replace(problem, aggregation="local")
    answer = solve(problem, seed=0)
    assert answer.schedule is not None
    assert answer.schedule.is_static
    assert energy(answer) == bound(answer) < room._method(problem, GAP).bound


def test_a_mix_may_lie_below_the_bound_of_single_schedules() -> None:
    problem = random_problem(102, protocol=FREE, boundary="periodic", max_launches=8, max_clocks=4)
    problem = replace(problem, granularity="segment")
    answer, method = solve(problem, seed=0), room._method(problem, GAP)
    assert answer.alternate is not None
    assert method.mixed_bound * (1 - CLOSED) <= energy(answer) < method.bound
    assert bound(answer) == min(method.mixed_bound, energy(answer))
