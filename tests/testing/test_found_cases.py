"""What very many examples of the laws have found, in the shortest form that broke one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from kdvfs_sim.core.clocks import AUTO_CLOCKS
from kdvfs_sim.core.problem import Metrics, Problem, Solution
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.core.switching import DRAIN, FOLLOW, LOOKAHEAD, SwitchTable
from kdvfs_sim.optimize.search import SearchOptimizer
from kdvfs_sim.optimize.solve import ExactOptimizer
from kdvfs_sim.replay.program import Program
from kdvfs_sim.replay.simulate import replay
from kdvfs_sim.testing.law import Law
from kdvfs_sim.testing.laws.evaluator import energy_is_that_of_the_replay
from kdvfs_sim.testing.laws.optimizer import (
    lower_bound_is_true,
    never_worse_than_a_baseline,
    optimal_where_it_says_so,
)
from kdvfs_sim.testing.laws.optimizer_pairs import (
    changes_that_cost_nothing_are_free,
    changes_that_never_land_are_not_asked_for,
)
from kdvfs_sim.testing.notation import costs, problem, switching, trace
from kdvfs_sim.testing.strategies.scenes import Scene

THREE = ["auto", "sm=300,mem=auto", "sm=600,mem=auto"]


def calls_that_outlast_the_switching() -> Problem:
    """A change is decided at the start of a launch with no call running: one in the gap after it is not."""
    return problem(
        trace((0, 0, 1000), (0, 1000, 0), (0, 1100, 1000), n_kinds=2),
        costs(
            THREE,
            time=[[2.0, 1.0, 1.0], [1.0, 1.0, 1.0]],
            power_w=[[100.0, 100.0, 100.0], [100.0, 100.0, 100.0]],
            idle_w=[0.0, 10.0, 10.0],
        ),
        switching(
            call_ns=[[0, 20, 20], [20, 0, 20], [20, 20, 0]],
            lands_ns=[[0, 1, 1], [1, 0, 1], [1, 1, 0]],
        ),
        protocol=LOOKAHEAD,
        max_time_s=2.1e-06,
    )


def a_change_made_while_the_launch_is_on_its_way() -> Problem:
    """The host launches at 1 ns what starts at 3 ns: a drained change in between takes no time of its own."""
    launches = [(0, 0, 0, "launch"), (0, 0, 0, "launch"), (0, 1, 0, "launch"), (0, 1, 0, "launch")]
    return problem(
        trace(
            (0, 0, 0, 0, 0, 0),
            (0, 0, 0, 0, 0, 1),
            (0, 3, 0, 0, 0, 2),
            (0, 3, 0, 0, 0, 3),
            host=launches,
            n_kinds=3,
        ),
        costs(
            ["auto", "sm=300,mem=auto"],
            time=[[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]],
            power_w=[[100.0, 100.0], [100.0, 100.0], [100.0, 100.0]],
            idle_w=[50.0, 10.0],
        ),
        switching(call_ns=[[0, 0], [0, 0]], lands_ns=[[0, 1], [1, 0]]),
        protocol=DRAIN,
        boundary="one-shot",
        max_time_s=3e-09,
    )


def an_overlap_that_draws_less_than_nothing() -> Problem:
    """Two kernels of 1 W each on a GPU that draws 10 W idle."""
    return problem(
        trace((0, 0, 0), (0, 0, 1), (0, 0, 1, 1), (0, 1, 0), n_kinds=3),
        costs(["auto"], time=[[1.0], [1.0], [1.0]], power_w=[[1.0], [100.0], [100.0]], idle_w=[10.0]),
        stream=(0, 0),
        max_time_s=1e-09,
    )


def a_least_time_that_was_rounded_down() -> Problem:
    """The first outcome takes exactly the least time, which is proven only up to rounding."""
    return problem(
        trace((0, 0, 1000), (0, 1000, 300), (0, 1307, 300), (0, 1614, 50), n_kinds=2),
        costs(
            ["auto", "sm=900,mem=auto", "sm=1200,mem=auto"],
            time=[[1.0, 1.6667, 1.25], [1.0, 1.0, 1.0]],
            power_w=[[350.0, 136.4, 222.8], [350.0, 136.4, 222.8]],
            idle_w=[50.0, 50.0, 50.0],
        ),
        protocol=DRAIN,
        max_time_s=1.8304000000000003e-06,
    )


def a_launch_that_begins_during_one_that_speeds_up_more() -> Problem:
    """The second begins after 600 of the first's 1000 ns, which at the other clocks are 300 of 500."""
    return problem(
        trace((0, 0, 1000), (1, 0, 100, 1), (1, 600, 1000), n_kinds=2),
        costs(
            ["auto", "sm=900,mem=auto"],
            time=[[2.0, 1.0], [1.0, 1.0]],
            power_w=[[100.0, 60.0], [100.0, 60.0]],
            idle_w=[10.0, 10.0],
        ),
        stream=(0, 0),
        max_time_s=1.6e-06,
    )


@pytest.mark.parametrize(
    ("case", "law"),
    [
        (calls_that_outlast_the_switching, lower_bound_is_true),
        (a_change_made_while_the_launch_is_on_its_way, lower_bound_is_true),
        (a_least_time_that_was_rounded_down, changes_that_cost_nothing_are_free),
        (an_overlap_that_draws_less_than_nothing, never_worse_than_a_baseline),
        (a_launch_that_begins_during_one_that_speeds_up_more, lower_bound_is_true),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_it_holds_now(case: Callable[[], Problem], law: Law) -> None:
    law(ExactOptimizer(), case())


def a_request_that_changes_nothing_before_the_end() -> Problem:
    return problem(
        trace((0, 0, 1000), (0, 1000, 300), (0, 1300, 1000), (1, 2300, 1000)),
        costs(
            ["auto", "sm=300,mem=auto"],
            time=[[1.0, 1.0], [1.0, 1.0]],
            power_w=[[100.0, 57.19467288444637], [100.0, 57.19467288444637]],
            idle_w=[10.0, 10.0],
        ),
        protocol=FOLLOW.with_timing(trigger_ns=5),
        boundary="one-shot",
        start=1,
        max_time_s=3.6300000000000004e-06,
    )


def a_request_that_saves_the_last_digit() -> Problem:
    return problem(
        trace((0, 0, 300), (0, 400, 50), (1, 450, 1000), (1, 1550, 1000)),
        costs(
            ["auto", "sm=300,mem=auto", "sm=600,mem=auto"],
            time=[[0.5, 1.0, 1.0], [1.0, 1.0, 1.0]],
            power_w=[[100.0, 100.0, 100.0], [488.1660102407211, 100.0, 100.0]],
            idle_w=[10.0, 10.0, 10.0],
        ),
        protocol=FOLLOW,
        max_time_s=2.55e-06,
    )


@pytest.mark.parametrize(
    "case", [a_request_that_changes_nothing_before_the_end, a_request_that_saves_the_last_digit]
)
def test_of_equals_a_search_takes_the_one_that_asks_for_nothing(case: Callable[[], Problem]) -> None:
    for seed in range(20):
        changes_that_never_land_are_not_asked_for(Seeded(seed), case())


def two_requests_within_one_trigger() -> Problem:
    """Launches that begin before the trigger of a request has passed: no second one is decided there."""
    return problem(
        trace((0, 0, 0), (0, 0, 1000), n_kinds=2),
        costs(
            THREE,
            time=[[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]],
            power_w=[[100.0, 101.0, 101.0], [100.0, 101.0, 101.0]],
            idle_w=[10.0, 10.0, 10.0],
        ),
        switching(call_ns=[[0, 0, 0]] * 3, lands_ns=[[0, 0, 0], [0, 0, 0], [1, 0, 0]]),
        protocol=FOLLOW.with_timing(trigger_ns=5),
        boundary="one-shot",
        start=2,
        minimize="energy",
    )


def test_a_change_is_outstanding_from_where_it_is_decided() -> None:
    optimal_where_it_says_so(ExactOptimizer(), two_requests_within_one_trigger())
    lower_bound_is_true(ExactOptimizer(), two_requests_within_one_trigger())


class Seeded:
    """A search by its own seed: what a law finds depends on it."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        return SearchOptimizer(n_evaluations=30).solve(problem, seed=self._seed)


def test_a_bound_holds_where_kernels_draw_less_than_the_idle_device() -> None:
    answer = ExactOptimizer().solve(an_overlap_that_draws_less_than_nothing(), seed=0)
    assert answer.lower_bound is not None
    assert answer.metrics is not None
    assert answer.metrics.energy_j is not None
    assert answer.lower_bound <= answer.metrics.energy_j


class Booked:
    """Adds up what launches add to the idle power, the idle power and what switches take: in another order
    than the replay does, and as true."""

    def __init__(self, program: Program, **arguments: Any) -> None:
        self._replay = partial(replay, program, **arguments)

    def evaluate(self, schedule: Schedule) -> Metrics:
        run = self._replay(schedule=schedule)
        states = run.timeline.states
        idle_j = sum(
            float((states.floor_w[d.state] * (d.end_ns - d.start_ns)).sum()) * 1e-9 + d.extra_energy_j
            for d in run.timeline.intervals_of
        )
        return replace(run.metrics, energy_j=float(run.timeline.launch_energy_j.sum()) + idle_j)


def test_energy_is_the_same_up_to_the_order_of_its_sum_where_it_is_nothing() -> None:
    """Kernels of 0 W beside an idle device that draws some: 1e-13 J are rounding, of hundreds of joules."""
    ends_ns = [0, 850_624_225, 1_487_585_912, 1_998_722_392]
    scene = Scene(
        trace=trace(*((0, start, end - start) for start, end in pairwise(ends_ns))),
        costs=costs(["auto"], time=[[1]], power_w=[[0]], idle_w=[733.1]),
        switching=SwitchTable.zero(1),
        protocol=DRAIN,
        schedule=Schedule(requests=(), protocol="drain"),
        boundary="periodic",
        start=AUTO_CLOCKS,
    )
    arguments = {name: value for name, value in scene.arguments.items() if name != "schedule"}
    said = Booked(scene.program, **arguments).evaluate(scene.schedule).energy_j
    assert said is not None
    assert 0 < abs(said) < 1e-12
    energy_is_that_of_the_replay(Booked, scene)
