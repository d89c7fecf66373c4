"""Mixes of two schedules: a second one has to be worth it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kdvfs_sim.core.clocks import AUTO, Clocks
from kdvfs_sim.core.problem import Objective, Solution
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.core.switching import FREE
from kdvfs_sim.optimize.baselines import blend, static_mix
from kdvfs_sim.optimize.solve import GAP, solve
from kdvfs_sim.study.equal_slack import EqualSlack
from kdvfs_sim.study.mixes import without_noise
from kdvfs_sim.study.scene import Scene


def test_no_answer_is_a_mix_for_nothing(table: EqualSlack) -> None:
    mixes = [row for row in table.rows if not row.is_baseline and row.solution and row.solution.alternate]
    assert mixes
    for row in mixes:
        assert row.solution is not None
        assert 0.01 <= row.solution.share <= 0.99, (row.protocol, row.name)


def test_a_mix_is_dropped_only_where_its_second_part_gains_nothing(layer: Scene) -> None:
    problem = layer.problem(
        Objective(minimize="energy", max_time_s=layer.auto_metrics.time_s * 1.01),
        FREE,
        granularity="kind",
    )
    slow, fast = (layer.static(Clocks(mhz, AUTO), FREE) for mhz in (1365, 1980))
    inside, outside = problem.evaluate(fast), problem.evaluate(slow)

    def mixed(share: float, first: Schedule, second: Schedule) -> Solution:
        metrics = blend(problem.evaluate(first), problem.evaluate(second), share)
        return Solution(
            status="optimal", schedule=first, alternate=second, share=share, metrics=metrics, lower_bound=1.0
        )

    assert inside.time_s < outside.time_s
    over = mixed(0.999, slow, fast)  # the larger part alone is over the budget
    assert without_noise(problem, over) is over
    half = mixed(0.5, fast, slow)
    assert without_noise(problem, half) is half
    best = static_mix(problem)
    assert best.schedule is not None
    worse = mixed(0.999, fast, slow)  # worse than a mix of two locks: never returned in its place
    assert without_noise(problem, worse) is worse


@pytest.mark.parametrize(("additive", "status"), [(True, "feasible"), (False, "not exact")])
def test_a_small_second_part_that_gains_nothing_goes(layer: Scene, additive: bool, status: str) -> None:
    budget_s = layer.auto_metrics.time_s * 1.01
    problem = layer.problem(Objective(minimize="energy", max_time_s=budget_s), FREE, granularity="launch")
    problem = replace(problem, chain=replace(problem.chain, additive=additive, reason="host"))
    answer, slow = solve(problem, seed=0), layer.static(Clocks(1365, AUTO), FREE)
    fast = min(
        (schedule for schedule in (answer.schedule, answer.alternate) if schedule is not None),
        key=lambda schedule: problem.evaluate(schedule).time_s,
    )
    found = Solution(
        status="feasible",
        schedule=fast,
        alternate=slow,
        share=0.9999,
        metrics=blend(problem.evaluate(fast), problem.evaluate(slow), 0.9999),
        lower_bound=answer.lower_bound,
    )
    alone = without_noise(problem, found)
    assert (alone.alternate, alone.share, alone.status) == (None, 1.0, status)
    assert alone.metrics is not None
    assert found.metrics is not None
    assert alone.metrics.time_s <= budget_s
    assert alone.metrics.energy_j == pytest.approx(found.metrics.energy_j, rel=GAP)


def test_a_part_too_small_for_its_digits_is_not_said_to_be_nothing(layer: Scene) -> None:
    budget_s = layer.auto_metrics.time_s * 1.01
    problem = layer.problem(Objective(minimize="energy", max_time_s=budget_s), FREE, granularity="kind")
    best = static_mix(problem)
    fast = min((best.schedule, best.alternate), key=lambda s: problem.evaluate(s).time_s)
    baseline = replace(
        problem, objective=Objective(minimize="energy", max_time_s=problem.evaluate(fast).time_s)
    )
    share, slow = 0.99999, layer.static(Clocks(1365, AUTO), FREE)
    mixed = Solution(
        status="feasible",
        schedule=fast,
        alternate=slow,
        share=share,
        metrics=blend(problem.evaluate(fast), problem.evaluate(slow), share),
    )
    message = without_noise(baseline, mixed).message
    assert "for under 0.01% of the iterations" in message
