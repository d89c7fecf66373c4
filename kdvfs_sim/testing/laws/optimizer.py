"""What has to hold of an Optimizer (core.protocols).

Laws that compare with brute force use at most five launches; laws that compare two answers reach further.
A value that an optimizer does not claim to be ``optimal`` is only held to what holds of any answer.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
from hypothesis import strategies as st

from kdvfs_sim.core.errors import InputError
from kdvfs_sim.core.problem import Metrics, Problem, Solution
from kdvfs_sim.core.protocols import Optimizer
from kdvfs_sim.core.schedule import ClockRequest, Schedule
from kdvfs_sim.core.switching import DRAIN, FOLLOW, FREE
from kdvfs_sim.optimize.baselines import locks, static_lock, static_mix
from kdvfs_sim.testing.judge import best_by_trying_all, replayed
from kdvfs_sim.testing.law import ask, assume, law, require
from kdvfs_sim.testing.laws.answers import (
    CLAIMED,
    EXACT,
    altered,
    anything,
    at_most,
    beside,
    claimed,
    found,
    measured,
    require_same,
    small,
    solve,
    squeezed,
    value,
    words,
)
from kdvfs_sim.testing.notation import costs, same, trace
from kdvfs_sim.testing.notation import problem as pose
from kdvfs_sim.testing.strategies.problems import problems
from kdvfs_sim.testing.strategies.traces import single_stream

# -- an answer by itself -----------------------------------------------------------------------------


@law("optimizer", lambda _: anything, total=True)
def answers_every_problem(optimizer: Optimizer, problem: Problem) -> None:
    """Any valid problem gets a Solution: with schedule and metrics, or a status and a message that say why
    not."""
    solution = ask(optimizer.solve, problem, seed=0)
    require(isinstance(solution, Solution), f"solve returned {solution!r}, not a Solution")
    if solution.status in ("infeasible", "not applicable"):
        require(solution.schedule is None, f"status {solution.status!r} came with a schedule")
        require(bool(solution.message), f"status {solution.status!r} came without a message")
    else:
        require(
            isinstance(solution.schedule, Schedule), f"status {solution.status!r} came without a schedule"
        )
        require(isinstance(solution.metrics, Metrics), f"status {solution.status!r} came without metrics")
    require(0 <= solution.share <= 1, f"share is {solution.share}; from 0 to 1 is right")


@law("optimizer", lambda _: anything)
def schedule_fits_the_trace(optimizer: Optimizer, problem: Problem) -> None:
    """Every request is anchored at a launch of the problem's stream, under its protocol and boundary, and the
    clocks of every launch follow from the schedule."""
    solution = found(solve(optimizer, problem))
    chain, n = problem.chain, len(problem.chain)
    # None: the replay says below if that will do
    own_device, own_stream = (chain.device, None), (chain.stream, None)
    for schedule in filter(None, (solution.schedule, solution.alternate)):
        for request in schedule.requests:
            anchor = (request.device, request.stream, request.launch)
            require(
                request.device in own_device and request.stream in own_stream and 0 <= request.launch < n,
                f"a request is anchored at device, stream, launch {anchor}; the chain is "
                f"device {chain.device}, stream {chain.stream}, launches 0..{n - 1}",
            )
        planned = (schedule.protocol, schedule.boundary)
        asked = (problem.protocol.name, problem.boundary)
        require(planned == asked, f"the schedule is for {planned}, the problem for {asked}")
        covered = bool(schedule.requests) or problem.boundary == "one-shot"
        require(covered, "a periodic schedule without a request says nothing of the clocks")
        if all(_listed(problem, request) for request in schedule.requests):
            try:
                replayed(problem, schedule)
            except InputError as error:
                require(False, f"the replay refuses the schedule: {error}")


@st.composite
def _with_a_reserved_row(draw: st.DrawFn) -> Problem:
    """Problems in which a row may be only ever effective."""
    problem = draw(problems(protocols=(FREE, DRAIN, FOLLOW)))
    n = problem.costs.n_clocks
    reserved = draw(st.integers(0, n - 1))  # 0: none
    offered = np.array([row == 0 or row != reserved for row in range(n)])
    return altered(problem, table=replace(problem.costs, requestable=offered))


@law("optimizer", lambda _: _with_a_reserved_row())
def clocks_are_on_the_table(optimizer: Optimizer, problem: Problem) -> None:
    """Every request asks for a row of the cost table that may be requested."""
    solution = found(solve(optimizer, problem))
    for schedule in filter(None, (solution.schedule, solution.alternate)):
        for request in schedule.requests:
            require(
                _listed(problem, request),
                f"a request asks for {request.clocks}; the table offers "
                + ", ".join(
                    str(pair)
                    for pair, offered in zip(problem.costs.clocks, problem.costs.requestable, strict=True)
                    if offered
                ),
            )


def _listed(problem: Problem, request: ClockRequest) -> bool:
    costs = problem.costs
    return request.clocks in costs.clocks and bool(costs.requestable[costs.index(request.clocks)])


@law("optimizer", lambda _: squeezed | squeezed | squeezed | anything)
def budget_is_kept_after_replay(optimizer: Optimizer, problem: Problem) -> None:
    """The schedule, replayed, keeps the budget: not by the optimizer's own word."""
    solution = found(solve(optimizer, problem))
    real, objective = measured(problem, solution), problem.objective
    assert solution.metrics is not None
    if objective.max_time_s is not None:
        require(
            real.time_s <= objective.max_time_s * (1 + 1e-12),
            f"{real.time_s:.12g} s; at most {objective.max_time_s:.12g} s is allowed, and the optimizer said "
            f"{solution.metrics.time_s:.12g} s",
        )
    if objective.max_energy_j is not None:
        require(
            real.energy_j is not None and at_most(real.energy_j, objective.max_energy_j, EXACT),
            f"{real.energy_j} J; at most {objective.max_energy_j:.12g} J is allowed, and the optimizer said "
            f"{solution.metrics.energy_j} J",
        )


@law("optimizer", lambda _: anything)
def metrics_are_those_of_the_replay(optimizer: Optimizer, problem: Problem) -> None:
    """Time and energy of the answer are what the replay of its schedule measures."""
    solution = found(solve(optimizer, problem))
    assert solution.metrics is not None
    real = measured(problem, solution)
    for name, said, is_ in (
        ("time_s", solution.metrics.time_s, real.time_s),
        ("energy_j", solution.metrics.energy_j, real.energy_j),
    ):
        close = said is is_ if said is None or is_ is None else math.isclose(said, is_, rel_tol=EXACT)
        require(close, f"{name} is said to be {said}; the replay measures {is_}")


@law("optimizer", lambda _: anything)
def never_worse_than_a_baseline(optimizer: Optimizer, problem: Problem) -> None:
    """The answer is at least as good as the best single lock within the budget and, periodic, as the best mix
    of two over iterations: also when it is ``infeasible``."""
    solution = solve(optimizer, problem)
    assume(solution.status != "not applicable")
    candidates = locks(problem)
    baselines = {"static": static_lock(problem, candidates), "static-mix": static_mix(problem, candidates)}
    own = value(problem, None if solution.schedule is None else measured(problem, solution))
    unit = problem.objective.unit
    for name, baseline in baselines.items():
        least = value(problem, baseline.metrics)
        require(
            at_most(own, least, EXACT),
            f"{'no answer' if np.isinf(own) else f'{own:.9g} {unit}'} where {name} gives {least:.9g} {unit}: "
            f"{baseline.message}",
        )


# -- an answer against all others --------------------------------------------------------------------


@law(
    "optimizer",
    lambda _: small | problems(recordings=single_stream(max_ops=4), protocols=(FREE, DRAIN)) | beside,
)
def lower_bound_is_true(optimizer: Optimizer, problem: Problem) -> None:
    """No plan of the decision space, found by trying all, is below the lower bound; nor is the answer
    itself."""
    solution = solve(optimizer, problem)
    assume(solution.lower_bound is not None)
    bound = solution.lower_bound
    assert bound is not None
    own, unit = value(problem, solution.metrics), problem.objective.unit
    said = f"the bound is {bound:.12g} {unit}"
    require(at_most(bound, own, EXACT), f"{said}, the answer itself {own:.12g} {unit}")
    best, plan = best_by_trying_all(problem)
    require(at_most(bound, best, EXACT), f"{said}; {words(plan)} gives {best:.12g} {unit}")


@law("optimizer", lambda _: small)
def optimal_where_it_says_so(optimizer: Optimizer, problem: Problem) -> None:
    """No plan of the decision space is better than an answer whose status is ``optimal``."""
    own, unit = claimed(optimizer, problem), problem.objective.unit
    best, plan = best_by_trying_all(problem)
    require(
        at_most(own, best, CLAIMED),
        f"{own:.12g} {unit} is called optimal; {words(plan)} gives {best:.12g} {unit}",
    )


# -- manners -------------------------------------------------------------------------------------------


@law("optimizer", lambda _: st.tuples(anything, st.integers(0, 3)))
def same_seed_same_answer(optimizer: Optimizer, case: tuple[Problem, int]) -> None:
    """The same problem and seed give the same answer, also when another problem was solved in between."""
    problem, seed = case
    before = solve(optimizer, problem, seed)
    solve(optimizer, _other(), seed)
    require_same(before, solve(optimizer, problem, seed), "when asked again")


def _other() -> Problem:
    table = costs(
        ["auto", "sm=300,mem=auto"], time=[[1.0, 2.0]], power_w=[[100.0, 40.0]], idle_w=[10.0, 10.0]
    )
    return pose(trace((0, 0, 1000)), table, max_time_s=1e-5)


@law("optimizer", lambda _: anything)
def the_problem_is_left_alone(optimizer: Optimizer, problem: Problem) -> None:
    """Nothing of the problem has changed after it was solved."""
    arrays = {
        f"{part}.{f.name}": np.copy(array)
        for part in ("chain", "costs", "switching")
        for f in fields(getattr(problem, part))
        if isinstance(array := getattr(getattr(problem, part), f.name), np.ndarray)
    }
    solve(optimizer, problem)
    for name, before in arrays.items():
        part, _, field = name.partition(".")
        now = getattr(getattr(problem, part), field)
        require(same(before, now), f"{name} was {before.tolist()} and is {now.tolist()}")


# the rest of the laws, so that all are found here
from kdvfs_sim.testing.laws.optimizer_effort import keeps_its_time_and_memory  # noqa: E402
from kdvfs_sim.testing.laws.optimizer_pairs import (  # noqa: E402
    a_dominated_clock_changes_nothing,
    changes_that_cost_nothing_are_free,
    changes_that_never_land_are_not_asked_for,
    duplicated_kinds_do_not_matter,
    more_slack_is_never_worse,
    names_do_not_matter,
    twice_the_power_is_twice_the_energy,
    two_traces_joined_are_no_worse,
)

__all__ = [
    "a_dominated_clock_changes_nothing",
    "changes_that_cost_nothing_are_free",
    "changes_that_never_land_are_not_asked_for",
    "duplicated_kinds_do_not_matter",
    "keeps_its_time_and_memory",
    "more_slack_is_never_worse",
    "names_do_not_matter",
    "twice_the_power_is_twice_the_energy",
    "two_traces_joined_are_no_worse",
]
