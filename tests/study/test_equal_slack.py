"""The table: what every answer must keep, whatever the trace, the GPU and the budget."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from kdvfs_sim.core.clocks import AUTO_CLOCKS
from kdvfs_sim.core.errors import UsageError
from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.core.problem import Objective
from kdvfs_sim.core.switching import FREE, PROTOCOLS
from kdvfs_sim.optimize.baselines import blend
from kdvfs_sim.optimize.solve import solve
from kdvfs_sim.study.equal_slack import BASELINES, EqualSlack, equal_slack
from kdvfs_sim.study.plans import PLANS as PLANS_KNOWN
from kdvfs_sim.study.plans import Budget, Plan, plans_from
from kdvfs_sim.study.power_limit import best_power_limit
from kdvfs_sim.study.scene import Scene, build_scene
from kdvfs_sim.study.sentence import closing_sentence
from kdvfs_sim.testing.notation import trace
from kdvfs_sim.trace.readers import read_trace
from tests.study.conftest import PLANS


@pytest.fixture(scope="module")
def tiny() -> Scene:
    """Three launches of two kinds, one after another."""
    recording = trace((0, 0, 400_000), (1, 400_000, 300_000), (0, 700_000, 500_000))
    kinds = (KernelKind(name="a", category="gemm"), KernelKind(name="b", category="reduction"))
    return build_scene(replace(recording, kinds=kinds), gpu="h200")


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


def test_every_optimum_is_replayed_under_the_dynamic_governor_too(layer: Scene, table: EqualSlack) -> None:
    free, governor = layer.protocols["free"], layer.governor
    assert governor is not None
    row = next(row for row in table.rows if row.protocol == "free" and row.name == "launch")
    answer = row.solution
    assert answer is not None
    assert answer.schedule is not None
    base = layer.replay(layer.static(AUTO_CLOCKS, free), free, governor=governor).metrics
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
        "status", "reason", "assumed", "kept",
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


def test_one_shot_pays_the_first_change_and_has_no_mix() -> None:
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


def test_a_policy_may_be_named_as_the_table_names_it(layer: Scene) -> None:
    assert plans_from("launch,pass,launch,static-mix,auto") == (Plan(granularity="launch"),)
    with pytest.raises(UsageError, match="comes with --confidence"):
        plans_from("launch sure")
    with pytest.raises(UsageError, match="always there are auto, static, static-mix"):
        plans_from("passes")
    table = equal_slack(layer, budget=Budget(slack_pct=1.0), protocols=["free"], plans=plans_from("pass"))
    assert [row.name for row in table.rows] == ["auto", *BASELINES]
    sentence = closing_sentence(table)
    best = min(row.energy_pct for row in table.rows if row.energy_pct is not None)
    assert "all that was asked for" in sentence
    assert f"{-best:.2f} %" in sentence


def test_what_the_replay_flags_is_flagged() -> None:
    """A saving rests on the energy of the same replay: what is a bound there is one here."""
    scene = build_scene(read_trace("h200_decode_tiny_kernels"))
    assert "overlap_energy_is_a_bound" in scene.auto_metrics.flags
    found = equal_slack(scene, budget=Budget(slack_pct=1.0), protocols=["free"], plans=())
    assert "overlap_energy_is_a_bound" in found.flags
    assert len(set(found.flags)) == len(found.flags)


def test_plans_that_can_be_walked_once_serve_every_protocol(tiny: Scene) -> None:
    plans = (Plan(granularity=granularity) for granularity in ("kind", "launch"))
    found = equal_slack(tiny, budget=Budget(slack_pct=1.0), protocols=["free", "drain"], plans=plans)
    names = [(row.protocol, row.name) for row in found.rows]
    for protocol in ("free", "drain"):
        assert {(protocol, "kind"), (protocol, "launch")} <= set(names)


def test_one_protocol_may_be_named_without_a_list(tiny: Scene) -> None:
    found = equal_slack(tiny, budget=Budget(slack_pct=1.0), protocols="drain", plans=())
    assert {row.protocol for row in found.rows} == {"any", "drain"}


def test_every_row_keeps_a_budget_of_energy_and_minimizes_what_it_is_named_for(tiny: Scene) -> None:
    """One so tight that EDP alone would break it; EDP without a budget takes more energy, and is less."""
    base = tiny.auto_metrics
    assert base.energy_j is not None
    edp = solve(tiny.problem(Objective(minimize="edp"), "free"), seed=0).metrics
    assert edp is not None
    assert edp.energy_j is not None
    energy_pct = 100 * edp.energy_j / base.energy_j - 1
    table = equal_slack(tiny, budget=Budget(energy_pct=energy_pct), protocols=["free"], plans=PLANS_KNOWN)
    rows = {row.name: row for row in table.rows if row.name != "auto"}
    for row in rows.values():
        if row.energy_pct is not None:
            assert row.energy_pct <= energy_pct - 100 + 1e-9, row.name
    assert {name: row.objective for name, row in rows.items() if " ed" in name} == {
        "launch edp": "edp",
        "launch ed2p": "ed2p",
    }

    def value(name: str, power: int) -> float:
        time_pct, saved_pct = rows[name].time_pct, rows[name].energy_pct
        assert time_pct is not None
        assert saved_pct is not None
        return (100 + saved_pct) * (100 + time_pct) ** power

    for power, name in ((1, "launch edp"), (2, "launch ed2p")):
        bound_pct = rows[name].lower_bound_pct
        assert bound_pct is not None
        assert value(name, power) >= 100 ** (power + 1) * (1 + bound_pct / 100) * (1 - 1e-9)
        for other in ("static", "kind", "launch", "launch edp", "launch ed2p"):
            assert value(name, power) <= value(other, power) * (1 + 1e-9), (name, other)
    assert rows["launch local"].status == "not applicable"
    assert "budget of time" in rows["launch local"].reason


def test_a_limit_that_the_idle_gpu_exceeds_is_none() -> None:
    """A B200 may be set to 200 W and draws 250 W idle."""
    scene = build_scene(read_trace("h200_decode_tiny_kernels"), gpu="b200")
    assert min(scene.power_limits_w) < scene.gpu.need("power.idle_w").value
    objective = Budget(slack_pct=50.0).objective(
        "energy", scene.replay(scene.static(AUTO_CLOCKS, FREE), FREE).metrics
    )
    choice = best_power_limit(scene, scene.protocols["free"], objective, with_lock=False)
    assert not isinstance(choice, str)
    assert choice.limit_w >= scene.gpu.need("power.idle_w").value
