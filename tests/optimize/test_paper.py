"""The published pass-level measurements: what the policies make of them."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kdvfs_sim.core.chain import Chain
from kdvfs_sim.core.problem import Objective, Problem, Solution
from kdvfs_sim.core.switching import FREE, SwitchTable
from kdvfs_sim.optimize.baselines import static_lock, static_mix
from kdvfs_sim.optimize.solve import pass_plan, solve
from tests.optimize.reference import SlowEvaluator

sys.path.append(str(Path(__file__).parents[1] / "gpu"))
from paper_tables import FORWARD_WEIGHT, pass_costs


@pytest.fixture(scope="module")
def iteration(shared: Path) -> Problem:
    """A forward and a backward pass; at (AUTO, AUTO) 1 s and 1 J."""
    costs = pass_costs(shared)
    forward_ns = round(FORWARD_WEIGHT * 1e9)
    chain = Chain(
        kind=np.array([costs.kinds.index("forward"), costs.kinds.index("backward")], dtype=np.int32),
        duration_ns=np.array([forward_ns, 10**9 - forward_ns]),
        lag_ns=np.zeros(2, dtype=np.int64),
        min_lag_ns=np.zeros(2, dtype=np.int64),
        passes=np.array([0, 1], dtype=np.int8),
    )
    switching = SwitchTable.zero(costs.n_clocks)
    judge = SlowEvaluator(
        chain=chain, costs=costs, switching=switching, protocol=FREE, boundary="periodic", start=costs.auto
    )
    return Problem(
        chain=chain,
        costs=costs,
        switching=switching,
        protocol=FREE,
        boundary="periodic",
        objective=Objective(max_time_s=1.0),
        evaluate=judge.evaluate,
        granularity="pass",
    )


def percentages(solution: Solution) -> tuple[float, float]:
    metrics = solution.metrics
    assert metrics is not None
    assert metrics.energy_j is not None
    return 100 * (metrics.time_s - 1), 100 * (metrics.energy_j - 1)


def within(slack_pct: float) -> Objective:
    return Objective(max_time_s=1 + slack_pct / 100)


def near(time_pct: float, energy_pct: float) -> object:
    return pytest.approx((time_pct, energy_pct), abs=0.02)


def test_strict_local(iteration: Problem) -> None:
    assert percentages(pass_plan(replace(iteration, aggregation="local"), seed=0)) == near(-0.20, -1.98)


def test_strict_global(iteration: Problem) -> None:
    plan = pass_plan(iteration, seed=0)
    assert percentages(plan) == near(-0.10, -2.07)
    assert plan.status == "optimal"


def test_edp(iteration: Problem) -> None:
    plan = pass_plan(replace(iteration, objective=Objective(minimize="edp")), seed=0)
    assert percentages(plan) == near(10.21, -25.42)
    assert plan.status == "optimal"


def test_at_the_slack_of_the_headline(iteration: Problem) -> None:
    relaxed = replace(iteration, objective=within(0.6))
    static = static_lock(relaxed)
    assert percentages(static) == near(0.04, -9.62)
    assert static.message == "sm=auto,mem=9501"
    assert percentages(pass_plan(relaxed, seed=0)) == near(0.09, -9.66)
    assert percentages(static_mix(relaxed)) == near(0.60, -10.45)


def test_static_mix_at_five_per_cent(iteration: Problem) -> None:
    assert percentages(static_mix(replace(iteration, objective=within(5))))[1] == pytest.approx(
        -16.92, abs=0.02
    )


def test_a_policy_mixes_plans_where_that_is_better_than_locks(iteration: Problem) -> None:
    answer = solve(replace(iteration, objective=within(0.6)), seed=0)
    assert percentages(answer) == near(0.60, -10.55)
    assert answer.lower_bound is not None
    assert answer.lower_bound == pytest.approx(1 - 0.1055, abs=2e-4)
    assert answer.alternate is not None


def test_every_pair_of_settings_tried(iteration: Problem) -> None:
    """The same, by trying all 66 x 66 pairs."""
    costs = iteration.costs
    time = costs.ratio * [[FORWARD_WEIGHT], [1 - FORWARD_WEIGHT]]
    energy = time * costs.request_power_w
    forward, backward = (costs.kinds.index(name) for name in ("forward", "backward"))
    weights = {forward: FORWARD_WEIGHT, backward: 1 - FORWARD_WEIGHT}
    time = np.stack([costs.ratio[k] * weights[k] for k in (forward, backward)])
    energy = time * np.stack([costs.request_power_w[k] for k in (forward, backward)])
    total_time = time[0][:, None] + time[1][None, :]
    total_energy = energy[0][:, None] + energy[1][None, :]
    best = np.nanmin(np.where(total_time <= 1.006, total_energy, np.nan))
    plan = pass_plan(replace(iteration, objective=within(0.6)), seed=0)
    assert plan.metrics is not None
    assert plan.metrics.energy_j == pytest.approx(best, rel=1e-9)
