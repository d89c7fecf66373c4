"""The table: what every answer must keep, whatever the trace, the GPU and the budget."""

from __future__ import annotations

import importlib
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from kdvfs_sim.core.clocks import AUTO, AUTO_CLOCKS, Clocks
from kdvfs_sim.core.errors import UsageError
from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.core.problem import Objective, Solution
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.core.switching import FREE, PROTOCOLS
from kdvfs_sim.optimize.baselines import blend, static_mix
from kdvfs_sim.optimize.solve import GAP, solve
from kdvfs_sim.report.page import in_words
from kdvfs_sim.report.policy_page import policies_json, show_policies
from kdvfs_sim.study.equal_slack import BASELINES, EqualSlack, equal_slack
from kdvfs_sim.study.mixes import without_noise
from kdvfs_sim.study.plans import PLANS as PLANS_KNOWN
from kdvfs_sim.study.plans import Budget, Plan, plans_from
from kdvfs_sim.study.power_limit import best_power_limit
from kdvfs_sim.study.scene import Scene, build_scene
from kdvfs_sim.study.sentence import NOT_VALIDATED, closing_sentence, own_error
from kdvfs_sim.testing.notation import trace
from kdvfs_sim.trace.readers import read_trace

PLANS = (Plan(granularity="kind"), Plan(granularity="launch"))


@pytest.fixture(scope="module")
def layer() -> Scene:
    return build_scene(read_trace("h200_gpt3xl_layer_train"))


@pytest.fixture(scope="module")
def tiny() -> Scene:
    """Three launches of two kinds, one after another."""
    recording = trace((0, 0, 400_000), (1, 400_000, 300_000), (0, 700_000, 500_000))
    kinds = (KernelKind(name="a", category="gemm"), KernelKind(name="b", category="reduction"))
    return build_scene(replace(recording, kinds=kinds), gpu="h200")


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


def test_no_answer_is_a_mix_for_nothing(table: EqualSlack) -> None:
    mixes = [row for row in table.rows if not row.is_baseline and row.solution and row.solution.alternate]
    assert mixes
    for row in mixes:
        assert row.solution is not None
        assert 0.01 <= row.solution.share <= 0.99, (row.protocol, row.name)


def test_a_mix_is_dropped_only_where_its_second_part_gains_nothing(layer: Scene) -> None:
    problem = layer.problem(
        Objective(minimize="energy", max_time_s=layer.replay(static_auto(layer), FREE).metrics.time_s * 1.01),
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
    budget_s = layer.replay(static_auto(layer), FREE).metrics.time_s * 1.01
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


def test_what_the_replay_flags_is_flagged(layer: Scene) -> None:
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


def static_auto(scene: Scene) -> Schedule:
    return scene.static(AUTO_CLOCKS, FREE)


def page_of(table: EqualSlack, capsys: pytest.CaptureFixture[str]) -> list[str]:
    show_policies(table)
    lines = capsys.readouterr().out.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("protocol"))
    last = next(i for i, line in enumerate(lines) if line.startswith("range:"))
    return lines[first + 1 : last]


def test_baselines_that_no_protocol_changes_stand_once(
    table: EqualSlack, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [line[10:].split("  ")[0].strip() for line in page_of(table, capsys)]
    for name in ("auto", "static", "static-mix", "power-limit", "power-limit and lock"):
        assert names.count(name) == 1, name
    for plan in PLANS:
        assert names.count(plan.name) == len(PROTOCOLS)
    assert next(name for name in names if name) == "auto"


def test_baselines_that_a_protocol_changes_stand_under_each(
    table: EqualSlack, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        replace(row, energy_pct=row.energy_pct + 0.5)
        if row.name == "static" and row.protocol == "drain" and row.energy_pct is not None
        else row
        for row in table.rows
    ]
    names = [line[10:].split("  ")[0].strip() for line in page_of(replace(table, rows=tuple(rows)), capsys)]
    assert names.count("static") == len(PROTOCOLS)
    one = replace(table, rows=tuple(row for row in table.rows if row.protocol in ("any", "free")))
    assert sum(line.startswith("any") for line in page_of(one, capsys)) == 1
    assert any(line.startswith("free") and " static " in line for line in page_of(one, capsys))


def test_words_of_the_table_are_plain(table: EqualSlack, capsys: pytest.CaptureFixture[str]) -> None:
    flagged = replace(table, flags=("cross_stream_unknown", "overlap_energy_is_a_bound", *table.flags))
    show_policies(flagged)
    page = capsys.readouterr().out
    assert "not exact" not in page
    assert "within the gap" in page
    assert "cross_stream_unknown" not in page
    assert "overlap_energy_is_a_bound" not in page
    assert "what waits for what between streams is not known" in page
    assert policies_json(flagged, {})["flags"] == list(flagged.flags)
    assert {row["status"] for row in policies_json(table, {})["policies"]} >= {"not exact"}


def test_every_flag_of_a_replay_has_words() -> None:
    """Flags are identifiers in the source of the replay; people read sentences."""
    for name in ("simulate", "fast", "dependencies"):
        source = Path(importlib.import_module(f"kdvfs_sim.replay.{name}").__file__ or "").read_text()
        flags = re.findall(r'flags\.append\("(\w+)"\)|\("(\w+)", (?:not )?trace\.', source)
        assert flags
        for flag in ("".join(found) for found in flags):
            assert " " in in_words(flag), flag


def test_a_bound_that_is_far_off_is_not_shown(table: EqualSlack, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tuple(
        replace(row, lower_bound_pct=-99.25, gap_pct=98.9, status="not exact")
        if row.protocol == "follow" and row.name == "launch"
        else row
        for row in table.rows
    )
    far = replace(table, rows=rows)
    line = [line for line in page_of(far, capsys) if " launch " in line][2]
    assert line.split("best found")[0].split()[-2:] == ["-", "-"]
    show_policies(far)
    page = capsys.readouterr().out
    assert "99.25" not in page
    assert "-: the bound that is known is far off" in page
    assert any(row["lower_bound_pct"] == -99.25 for row in policies_json(far, {})["policies"])


def test_the_sentence_says_what_a_lagging_governor_leaves(table: EqualSlack) -> None:
    """Of the best plan with free switching, and of the best baseline, each against AUTO under the same."""
    free = {row.name: row for row in table.rows if row.protocol == "free"}
    best, others = free["launch"], [free["static"], free["static-mix"]]
    left = [row.dynamic_pct[1] for row in (best, *others) if row.dynamic_pct is not None]
    assert len(left) == 3
    sentence = closing_sentence(table)
    assert f"Under the GPU's lagging governor it saves {-left[0]:.2f} %, where" in sentence
    assert f"saves {-min(left[1:]):.2f} %." in sentence
    unknown = replace(table, rows=tuple(replace(row, dynamic_pct=None) for row in table.rows))
    assert "lagging" not in closing_sentence(unknown)
    worse = replace(best, dynamic_pct=(0.0, 0.25))
    rows = tuple(worse if row is best else row for row in table.rows)
    assert "governor it takes 0.25 % more" in closing_sentence(replace(table, rows=rows))


def test_the_page_is_no_wider_than_a_window(table: EqualSlack, capsys: pytest.CaptureFixture[str]) -> None:
    show_policies(table)
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("protocol"))
    last = next(i for i, line in enumerate(lines) if line.startswith("range:"))
    assert max(len(line.rstrip()) for line in lines[first:last]) <= 130
    assert "switching does not pay, as static" in " ".join(printed.split())
    words = " ".join(printed.split())
    for row in table.rows:  # what to run is there, over as many lines as it takes
        if row.name == "static":
            assert row.reason.split("; at the ")[0] in words


def test_a_budget_of_energy_ends_with_what_is_fastest(layer: Scene) -> None:
    for saved_pct, says in ((3.0, "Within the energy budget"), (97.0, "No policy keeps the budget.")):
        budget = Budget(energy_pct=100 - saved_pct)
        sentence = closing_sentence(
            equal_slack(layer, budget=budget, protocols=["free"], plans=plans_from("kind"))
        )
        assert sentence.startswith(says)


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
