"""The table: what every answer must keep, whatever the trace, the GPU and the budget."""

from __future__ import annotations

import math

import pytest

from kdvfs_sim.core.clocks import AUTO_CLOCKS
from kdvfs_sim.core.errors import UsageError
from kdvfs_sim.core.switching import PROTOCOLS
from kdvfs_sim.optimize.baselines import blend
from kdvfs_sim.study.equal_slack import BASELINES, EqualSlack, equal_slack
from kdvfs_sim.study.plans import PLANS as PLANS_KNOWN
from kdvfs_sim.study.plans import Budget, Plan, plans_from
from kdvfs_sim.study.power_limit import static
from kdvfs_sim.study.scene import Scene, build_scene
from kdvfs_sim.study.sentence import NOT_VALIDATED, closing_sentence, own_error
from kdvfs_sim.trace.readers import read_trace

PLANS = (Plan(granularity="kind"), Plan(granularity="launch"))


@pytest.fixture(scope="module")
def layer() -> Scene:
    return build_scene(read_trace("h200_gpt3xl_layer_train"))


@pytest.fixture(scope="module")
def table(layer: Scene) -> EqualSlack:
    return equal_slack(layer, budget=Budget(slack_pct=1.0), protocols=list(PROTOCOLS), plans=PLANS)


def test_every_protocol_has_the_baselines_and_every_plan(table: EqualSlack) -> None:
    for protocol in PROTOCOLS:
        names = [row.name for row in table.rows if row.protocol == protocol]
        assert names == [*BASELINES, *(plan.name for plan in PLANS)]
    assert [row.name for row in table.rows if row.protocol == "any"] == ["auto"]


def test_every_row_keeps_the_budget_or_says_why_it_is_missing(table: EqualSlack) -> None:
    for row in table.rows:
        if row.time_pct is None:
            assert row.reason
        else:
            assert row.time_pct <= 1.0 + 1e-9


def test_no_policy_is_worse_than_the_best_of_auto_static_and_static_mix(table: EqualSlack) -> None:
    for row in table.rows:
        if row.is_baseline or row.protocol == "any":
            continue
        baselines = [
            other.energy_pct
            for other in table.rows
            if other.protocol == row.protocol and other.name in ("static", "static-mix")
        ]
        assert row.energy_pct is not None
        assert row.energy_pct <= min(0.0, *(b for b in baselines if b is not None)) + 1e-9


def test_no_answer_is_better_than_its_bound_and_free_switching_bounds_the_others(table: EqualSlack) -> None:
    free = {row.name: row for row in table.rows if row.protocol == "free"}
    for row in table.rows:
        if row.lower_bound_pct is None or row.energy_pct is None:
            continue
        assert row.energy_pct >= row.lower_bound_pct - 1e-9
        assert row.gap_pct is not None
        assert row.gap_pct >= -1e-9
        bound = free["launch"].lower_bound_pct
        assert bound is not None
        assert row.energy_pct >= bound - 1e-9


def test_more_freedom_saves_no_less_when_switching_is_free(table: EqualSlack) -> None:
    energy = {row.name: row.energy_pct for row in table.rows if row.protocol == "free"}
    assert energy["launch"] <= energy["kind"] + 1e-6 <= energy["pass"] + 2e-6


def test_ranges_hold_the_nominal_value_and_name_what_they_rest_on(table: EqualSlack) -> None:
    for row in table.rows:
        if row.energy_pct_range is None or row.energy_pct is None:
            continue
        low, high = row.energy_pct_range
        assert low <= row.energy_pct <= high
        assert row.assumed or low == high


def test_the_closing_sentence_compares_with_the_best_baseline(table: EqualSlack) -> None:
    sentence = closing_sentence(table)
    assert sentence.endswith(NOT_VALIDATED)
    assert "AUTO's energy" in sentence
    launch = next(row for row in table.rows if row.protocol == "free" and row.name == "launch")
    mix = next(row for row in table.rows if row.protocol == "free" and row.name == "static-mix")
    assert f"{mix.energy_pct - launch.energy_pct:.2f} points" in sentence
    assert f"{own_error(launch, mix):.2f} points" in sentence


def test_every_optimum_is_replayed_under_the_dynamic_governor_too(layer: Scene, table: EqualSlack) -> None:
    free, governor = layer.protocols["free"], layer.governor
    assert governor is not None
    row = next(row for row in table.rows if row.protocol == "free" and row.name == "launch")
    answer = row.solution
    assert answer is not None
    assert answer.schedule is not None
    base = layer.replay(static(AUTO_CLOCKS, layer, free), free, governor=governor).metrics
    ran = layer.replay(answer.schedule, free, governor=governor).metrics
    if answer.alternate is not None:
        ran = blend(ran, layer.replay(answer.alternate, free, governor=governor).metrics, answer.share)
    assert row.dynamic_pct == pytest.approx(
        (100 * (ran.time_s / base.time_s - 1), 100 * (ran.energy_j / base.energy_j - 1)), abs=1e-9
    )
    assert row.dynamic_pct != pytest.approx((row.time_pct, row.energy_pct), abs=1e-3)
    priced = [
        row for row in table.rows if not row.name.startswith("power-limit") and row.time_pct is not None
    ]
    assert all(row.dynamic_pct is not None for row in priced)


def test_json_has_the_agreed_columns(table: EqualSlack) -> None:
    columns = {
        "name", "granularity", "aggregation", "objective", "protocol", "time_pct", "energy_pct",
        "time_pct_range", "energy_pct_range", "dynamic_pct", "n_switches", "lower_bound_pct", "gap_pct",
        "status", "reason", "assumed",
    }  # fmt: skip
    for row in table.rows:
        assert set(row.to_json()) == columns


def test_node_power_moves_every_energy_towards_time(layer: Scene) -> None:
    alone = equal_slack(layer, budget=Budget(slack_pct=5), protocols=["free"], plans=PLANS[1:])
    trace = read_trace("h200_gpt3xl_layer_train")
    shared = build_scene(trace, node_power_w=400.0)
    with_node = equal_slack(shared, budget=Budget(slack_pct=5), protocols=["free"], plans=PLANS[1:])
    assert alone.baseline.energy_j is not None
    assert math.isclose(
        with_node.baseline.energy_j or 0.0,
        alone.baseline.energy_j + 400.0 * alone.baseline.time_s,
        rel_tol=1e-12,
    )
    saved = [table.rows[-1].energy_pct or 0.0 for table in (alone, with_node)]
    assert saved[0] < saved[1] <= 0


def test_one_shot_pays_the_first_change_and_has_no_mix(layer: Scene) -> None:
    scene = build_scene(read_trace("h200_gpt3xl_layer_train"), boundary="one-shot")
    rows = equal_slack(scene, budget=Budget(slack_pct=1.0), protocols=["drain"], plans=()).rows
    by_name = {row.name: row for row in rows}
    assert by_name["static-mix"].status == "not applicable"
    assert by_name["static"].energy_pct == pytest.approx(0.0, abs=1e-9)  # 25 ms for a trace of 29 ms


def test_policies_are_named_on_the_command_line_as_in_the_table() -> None:
    assert plans_from("all") == PLANS_KNOWN
    assert set(plans_from("common")) < set(PLANS_KNOWN)
    assert [plan.name for plan in plans_from("launch, launch edp")] == ["launch", "launch edp"]
    with pytest.raises(UsageError, match="launch local"):
        plans_from("launch,best")
