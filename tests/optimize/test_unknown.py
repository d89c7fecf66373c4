"""Bounds where a cost table does not know everything, and where numbers are at their edges."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kdvfs_sim.core.clocks import AUTO_CLOCKS
from kdvfs_sim.core.problem import Problem
from kdvfs_sim.core.switching import DRAIN, FOLLOW, FREE, LOOKAHEAD, SwitchTable
from kdvfs_sim.optimize.baselines import locked
from kdvfs_sim.optimize.critical import CriticalPaths, explore_paths
from kdvfs_sim.optimize.solve import CLOSED, solve
from kdvfs_sim.optimize.target import Target
from kdvfs_sim.testing.judge import best_by_trying_all, replayed
from kdvfs_sim.testing.notation import costs, problem, switching, trace

CLOCKS = ["auto", "sm=300,mem=auto", "sm=600,mem=auto"]
NAN = math.nan


def check(made: Problem) -> None:
    """The answer would lie below its bound otherwise, which is an error."""
    answer = solve(made, seed=0)
    least, _ = best_by_trying_all(made)
    assert math.isfinite(least)
    assert answer.metrics is not None
    assert answer.lower_bound is None or answer.lower_bound <= least * (1 + CLOSED)


@pytest.mark.parametrize("protocol", [FREE, DRAIN, FOLLOW, LOOKAHEAD], ids=lambda p: p.name)
@pytest.mark.parametrize("duration_ns", [0, 1])
def test_what_takes_no_time_draws_nothing_whatever_its_power(protocol, duration_ns: int) -> None:  # type: ignore[no-untyped-def]
    """Kernels of no length, and those that other clocks make so short."""
    for boundary in ("periodic", "one-shot"):
        check(
            problem(
                trace((0, 0, duration_ns), (0, 100, duration_ns), (1, 200, 50)),
                costs(CLOCKS[:2], time=[[1, 0.5], [1, 1]], power_w=[[50, NAN], [100, 50]], idle_w=[50, 10]),
                SwitchTable.zero(2),
                protocol=protocol,
                boundary=boundary,
            )
        )


def test_a_launch_that_lasts_until_the_next_begins_leaves_no_gap_to_idle_in() -> None:
    """Where the host binds a gap may be none at some clocks: it does not matter then what idling draws."""
    made = problem(
        trace(
            (0, 0, 50, 0, 0, 0),
            (1, 3050, 1000, 0, 0, 1),
            (1, 4050, 50, 0, 0, 2),
            (0, 4100, 50, 0, 0, 3),
            host=[
                (0, 0, 40, "launch"),
                (0, 140, 5, "launch"),
                (0, 2145, 0, "launch"),
                (0, 2145, 5, "launch"),
            ],
        ),
        costs(
            CLOCKS,
            time=[[1, 2, 2], [1, 1.05, 1.5]],
            power_w=[[100, 50, 36], [100, 40, 72]],
            idle_w=[0, NAN, 10],
        ),
        minimize="edp",
        boundary="one-shot",
        start=2,
    )
    assert made.chain.floor_ns is not None
    check(made)


@pytest.mark.parametrize("protocol", [FOLLOW.with_timing(trigger_ns=400), LOOKAHEAD], ids=lambda p: p.name)
def test_clocks_that_are_left_before_the_device_idles(protocol) -> None:  # type: ignore[no-untyped-def]
    """What idling draws is not known of the first clocks; a change lands before there is a gap."""
    made = problem(
        trace((0, 0, 10_000), (0, 13_000, 1_000), (0, 15_000, 10_000)),
        costs(CLOCKS[:2], time=[[1, 1]], power_w=[[50, 100]], idle_w=[10, NAN]),
        SwitchTable.uniform(2, host_call_ns=0, switching_ns=5_000),
        protocol=protocol,
        boundary="one-shot",
        start=1,
    )
    answer = solve(made, seed=0)
    assert answer.metrics is not None
    assert answer.status == "feasible"  # nothing is claimed


@pytest.mark.parametrize("protocol", [FREE, DRAIN, FOLLOW, LOOKAHEAD], ids=lambda p: p.name)
@pytest.mark.parametrize("minimize", ["energy", "edp"])
def test_slow_clocks_that_idle_dearly(protocol, minimize) -> None:  # type: ignore[no-untyped-def]
    """Schedules may take longer than any plan of the critical paths, on whose times the bound once ended."""
    check(
        problem(
            trace(
                (1, 0, 20_000, 0, 0, 0),
                (0, 20_000, 5_000, 0, 0, 1),
                (1, 20_000, 20_000, 1, 0, 2),
                host=[(0, -10, 0, "launch"), (0, 90, 40, "launch"), (0, 230, 0, "launch")],
            ),
            costs(CLOCKS[:2], time=[[1, 2], [1, 1.8]], power_w=[[100, 40], [100, 40]], idle_w=[0, 40]),
            SwitchTable.uniform(2, host_call_ns=0, switching_ns=10**13),
            protocol=protocol,
            stream=(0, 0),
            minimize=minimize,
        )
    )


def test_kernels_that_draw_less_than_an_idle_device() -> None:
    """Beside others, how long they save is what is not known."""
    check(
        problem(
            trace(
                (0, 0, 10**12, 1, 0, 0),
                (1, 100, 10**12, 0, 0, 1),
                host=[(0, 0, 0, "launch"), (0, 3, 5, "launch")],
            ),
            costs(
                CLOCKS[:2],
                time=[[1, 0.9], [1, 1.5]],
                power_w=[[100, 0], [228, 50]],
                idle_w=[50, 10],
                cap_w=150.0,
            ),
            stream=(0, 0),
            minimize="edp",
        )
    )


@pytest.mark.parametrize("call_ns", [0, 10**6])
def test_a_call_that_holds_up_the_launching_thread_saves_what_runs_at_dear_clocks(call_ns: int) -> None:
    """The device idles until the change has landed: times add only as long as nobody holds up the host."""
    made = problem(
        trace(
            (0, 0, 1_000_000, 0, 0, 0),
            (0, 1_003_000, 1_000_000, 0, 0, 1),
            (0, 2_003_000, 1_000_000, 0, 0, 2),
            host=[(0, -500, 0, "launch"), (0, 1500, 5, "launch"), (0, 1600, 0, "launch")],
        ),
        costs(CLOCKS[:2], time=[[1, 0.9]], power_w=[[50, 100]], idle_w=[50, 10]),
        SwitchTable.uniform(2, host_call_ns=call_ns, switching_ns=10**6),
        protocol=FOLLOW,
        boundary="one-shot",
        start=1,
    )
    assert made.chain.additive
    check(made)
    assert (solve(made, seed=0).status == "optimal") == (call_ns == 0)


def test_a_multiplier_that_is_out_of_all_proportion() -> None:
    """Three microseconds for half the energy: what is left of large sums is no more exact than they are."""
    check(
        problem(
            trace((0, 0, 10**15), (0, 10**15 + 3000, 10**12), (0, 10**15 + 10**12 + 3007, 10**9)),
            costs(CLOCKS, time=[[1, 2, 1]], power_w=[[100, 50, 40]], idle_w=[10, 10, 0]),
            switching(
                call_ns=[[0] * 3] * 3, lands_ns=[[0, 5_000, 1_000_000], [1_000_000, 0, 0], [30, 500, 0]]
            ),
            protocol=DRAIN,
            boundary="one-shot",
            max_time_s=1001001.000003007,
        )
    )


def test_a_request_that_comes_in_time_at_slow_clocks_only() -> None:
    """Under ``periodic`` it is none once the iteration has ended, as it has by then at the fastest clocks."""
    check(
        problem(
            trace((0, 0, 5000), (0, 8000, 5000)),
            costs(CLOCKS, time=[[1, 1.5, 1.5]], power_w=[[100, 40, 50]], idle_w=[10, 50, 0]),
            SwitchTable.zero(3),
            protocol=FOLLOW.with_timing(trigger_ns=5000),
            minimize="edp",
        )
    )


def test_a_plan_that_rounding_makes_less_than_nothing_of() -> None:
    """A kernel of half a nanosecond that draws less than an idle device: multipliers are never negative."""
    made = problem(
        trace((0, 0, 1, 0, 0, 0), (1, 1, 1, 0, 0, 1), host=[(0, -500, 40, "launch"), (0, -360, 5, "launch")]),
        costs(CLOCKS[:2], time=[[1, 1], [1, 0.5]], power_w=[[0, 456], [50, 0]], idle_w=[50, 50]),
        SwitchTable.uniform(2, host_call_ns=0, switching_ns=10**13),
        protocol=LOOKAHEAD,
        boundary="one-shot",
        start=1,
        minimize="time",
        max_energy_j=4.78e-7,
    )
    group = np.arange(2)
    paths = CriticalPaths(made, group, np.ones((2, 2), dtype=np.bool_))
    target = Target.of(made.objective)
    least, _ = best_by_trying_all(made)
    assert explore_paths(paths, target, gap=1e-4).bound(target) <= least


def test_small_sums_of_large_parts() -> None:
    """A kernel of 0 W on a device of 120 W: the parts of the energy are rounded by more than 1e-9 of it."""
    made = problem(
        trace((0, 0, 10**12), (1, 10**12, 1000)),
        costs(["auto"], time=[[1], [1]], power_w=[[0], [30]], idle_w=[120]),
    )
    assert replayed(made, locked(made, AUTO_CLOCKS)).energy_j == pytest.approx(3e-5)
