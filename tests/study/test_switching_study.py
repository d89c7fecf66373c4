"""The switching study: what it must keep whatever is studied, and wherever its cases run."""

from __future__ import annotations

import itertools
import json
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.core.errors import InputError, UsageError
from kdvfs_sim.core.problem import Solution
from kdvfs_sim.core.schedule import ClockRequest, Schedule
from kdvfs_sim.gpu.catalogue import load_gpu
from kdvfs_sim.report.switching_page import sentences, show_study, study_json
from kdvfs_sim.report.switching_plot import figure
from kdvfs_sim.report.switching_results import HTML, PNG, STUDY, check_targets, write_study
from kdvfs_sim.study.plans import Budget
from kdvfs_sim.study.scene import Scene, build_scene
from kdvfs_sim.study.switching_study import (
    GAP,
    HARDWARE_FLOOR,
    SwitchingStudy,
    of_gpu,
    of_latency,
    schedulable_share,
    switching_study,
)
from kdvfs_sim.testing.notation import costs, trace
from kdvfs_sim.trace.readers import read_trace
from kdvfs_sim.trace.repeat import repeated
from kdvfs_sim.trace.table import Trace

LATENCIES_NS = (10_000, 3_000_000, 1_000_000_000)
EXACT = 1e-6  # points
GAP_POINTS = 100 * GAP


def test_a_study_is_within_a_budget_of_time(tmp_path: Path) -> None:
    scene = build_scene(short_trace(tmp_path), gpu="h200")
    with pytest.raises(UsageError, match="budget of time"):
        switching_study({1: scene}, budget=Budget(energy_pct=90), gpus=())


def short_trace(tmp_path: Path) -> Trace:
    """Two long stretches of unlike kernels: something a slow switch can still use."""
    rows = ["name,start_ns,duration_ns,category,flops,bytes"]
    for i in range(12):
        gemm = i < 6
        rows.append(
            f"{'gemm' if gemm else 'copy'},{i * 2_000_000},2000000,{'gemm' if gemm else 'elementwise'},"
            f"{10**12 if gemm else 10**6},{10**7 if gemm else 4 * 10**9}"
        )
    path = tmp_path / "stretches.csv"
    path.write_text("\n".join(rows) + "\n")
    return read_trace(path)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Scene]:
    recording = short_trace(tmp_path_factory.mktemp("study"))
    return {n: build_scene(repeated(recording, n), gpu="h200") for n in (1, 2)}


def run(scenes: dict[int, Scene], executor: Executor | None = None, n_workers: int = 1) -> SwitchingStudy:
    return switching_study(
        scenes,
        budget=Budget(slack_pct=3.0),
        gpus=[load_gpu("h200"), load_gpu("b200")],
        latencies_ns=LATENCIES_NS,
        executor=executor,
        n_workers=n_workers,
    )


@pytest.fixture(scope="module")
def study(scenes: dict[int, Scene]) -> SwitchingStudy:
    return run(scenes)


def test_savings_lie_between_static_mix_and_the_ideal(study: SwitchingStudy) -> None:
    mix, ideal = study.baselines["static-mix"][1], study.baselines["ideal"][1]
    assert ideal < mix
    for row in study.rows:
        assert row.energy_pct <= mix + EXACT
        assert row.lower_bound_pct <= row.energy_pct + EXACT
        if row.protocol == "drain":  # the others may gain by a change that lands inside a kernel
            assert row.energy_pct >= ideal - GAP_POINTS
        assert row.time_pct <= study.budget.slack_pct + EXACT
        assert row.surviving_pct == pytest.approx(100 * (mix - row.energy_pct) / (mix - ideal))


def test_a_change_longer_than_the_period_saves_nothing(study: SwitchingStudy) -> None:
    for protocol in ("drain", "follow", "lookahead"):
        slowest = list(study.curve(protocol))[-1]
        assert slowest.scenario.switching_ns == 1_000_000_000
        assert not slowest.switches_pay
        assert slowest.energy_pct == pytest.approx(study.baselines["static-mix"][1])


def test_lookahead_saves_no_more_the_slower_the_change(study: SwitchingStudy) -> None:
    saved = [row.energy_pct for row in study.curve("lookahead")]
    assert [row.scenario.switching_ns for row in study.curve("lookahead")] == list(LATENCIES_NS)
    assert all(slower >= faster - GAP_POINTS for faster, slower in itertools.pairwise(saved))
    assert saved[0] == pytest.approx(study.baselines["ideal"][1], abs=0.3)


def test_longer_periods_are_tried_at_nominal_switching_and_the_shortest_good_one_named(
    study: SwitchingStudy,
) -> None:
    gpu = study.gpus[0]
    periods = {row.n_iterations for row in study.rows if row.scenario.is_nominal}
    assert periods == {1, 2}
    best = study.best_period(gpu, "lookahead")
    others = [
        row.energy_pct
        for row in study.rows
        if row.scenario.is_nominal and row.scenario.gpu is gpu and row.protocol == "lookahead"
    ]
    assert best.energy_pct <= min(others) + 0.05


def test_a_gpu_is_shown_at_both_ends_and_a_free_call_apart() -> None:
    h200, b200 = of_gpu(load_gpu("h200")), of_gpu(load_gpu("b200"))
    assert [scenario.level for scenario in h200] == ["low", "nominal", "high"]
    assert [scenario.host_call_ns for scenario in b200] == [None, None, None, 0]
    clocks = tuple(load_gpu("b200").clock_table().pairs[:3])
    assert b200[1].table(clocks).host_call_ns[0, 1] == 5_000_000
    assert b200[3].table(clocks).host_call_ns[0, 1] == 0
    assert b200[3].table(clocks).switching_ns[0, 1] == b200[1].table(clocks).switching_ns[0, 1]
    two_memories = (Clocks(1000, 5001), Clocks(1000, 9501))
    assert b200[1].table(two_memories).switching_ns[0, 1] == b200[1].switching_ns  # not nothing
    corners = tuple(Clocks(sm, mem) for sm in (1000, 1500) for mem in (5001, 9501))
    for scenario in (replace(b200[3], host_call_ns=7), replace(HARDWARE_FLOOR, host_call_ns=7)):
        calls = scenario.table(corners).host_call_ns  # SM and memory are two domains and two calls
        assert calls.tolist() == [[0, 7, 7, 14], [7, 0, 14, 7], [7, 14, 0, 7], [14, 7, 7, 0]]
    assert HARDWARE_FLOOR.table(clocks).switching_ns[0, 1] == 100_000
    assert of_latency(5).table(clocks).switching_ns.tolist() == [[0, 5, 5], [5, 0, 5], [5, 5, 0]]


def test_schedulable_share_counts_runs_of_the_free_answer(scenes: dict[int, Scene]) -> None:
    scene = scenes[1]
    clocks = [c for c, ok in zip(scene.choices.clocks, scene.choices.requestable, strict=True) if ok][:2]
    plan = Schedule(
        requests=tuple(
            ClockRequest(clocks=clocks[i % 2], launch=launch, stream=scene.chain.stream)
            for i, launch in enumerate((0, 2, 8, 11))
        )
    )
    # runs of 2, 6, 3 and 1 launches of 2 ms; the last and the first have different clocks
    answer = Solution(status="feasible", schedule=plan)
    shares = dict(schedulable_share(scene, answer, [0, 3_000_000, 5_000_000, 20_000_000]))
    assert shares == {0: 1.0, 3_000_000: 11 / 12, 5_000_000: 9 / 12, 20_000_000: 0.0}


@pytest.mark.parametrize("first", [0, 2], ids=["asked for again", "still in force"])
def test_a_run_goes_on_across_the_end_of_the_period(scenes: dict[int, Scene], first: int) -> None:
    """The clocks before the first request are those of the last, whether they are asked for again or not."""
    scene = scenes[1]
    clocks = [c for c, ok in zip(scene.choices.clocks, scene.choices.requestable, strict=True) if ok][:2]
    asked = [(0, 0), (2, 1), (9, 0)]
    plan = Schedule(
        requests=tuple(
            ClockRequest(clocks=clocks[which], launch=launch, stream=scene.chain.stream)
            for launch, which in asked
            if launch >= first
        )
    )
    # runs of 7 and of 3 + 2 launches of 2 ms
    answer = Solution(status="feasible", schedule=plan)
    shares = dict(schedulable_share(scene, answer, [9_000_000, 11_000_000]))
    assert shares == {9_000_000: 1.0, 11_000_000: 7 / 12}


def same(a: SwitchingStudy, b: SwitchingStudy) -> bool:
    return study_json(a) == study_json(b)


def test_processes_and_threads_give_the_same_numbers(scenes: dict[int, Scene], study: SwitchingStudy) -> None:
    with ThreadPoolExecutor(2) as pool:
        assert same(run(scenes, pool, 2), study)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        assert same(run(scenes, pool, 2), study)


def test_a_dask_cluster_gives_the_same_numbers(scenes: dict[int, Scene], study: SwitchingStudy) -> None:
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert same(run(scenes, client.get_executor(), 2), study)


def test_what_is_written_can_be_read_and_replaces_only_its_own(study: SwitchingStudy, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    for _ in range(2):  # the second time over its own files
        paths, _ = write_study(tmp_path, study)
    assert [path.name for path in paths] == [STUDY, PNG, HTML]
    document = json.loads((tmp_path / STUDY).read_text())
    assert len(document["rows"]) == len(study.rows)
    assert (tmp_path / PNG).read_bytes().startswith(b"\x89PNG")
    assert "cdn" not in (tmp_path / HTML).read_text()[:2000]
    (tmp_path / STUDY).write_text("my notes")
    with pytest.raises(InputError, match=STUDY):
        check_targets(tmp_path)


def test_the_table_of_gpus_has_their_calls(study: SwitchingStudy, capsys: pytest.CaptureFixture[str]) -> None:
    """The curves are of calls that return at once, the GPUs' own are not: without it the two contradict."""
    words = " ".join(_printed(study, capsys).split())
    assert "switching as of call latency" in words
    assert "NVIDIA H200, nominal 4.5 ms 25 ms" in words
    assert "NVIDIA H200, low 4 ms 6 ms" in words
    assert "NVIDIA B200, low 0 ns" in words
    assert "the call returns at once" in words
    chart = json.dumps(figure(study).to_dict())
    assert "the call returns at once" in chart


def test_the_sentences_name_every_gpu_and_that_nothing_was_validated(study: SwitchingStudy) -> None:
    said = sentences(study)
    assert len(said) <= 3
    assert "NVIDIA H200" in said[0]
    assert "25 ms, 6 ms to 100 ms, assumed" in said[0]
    assert "NVIDIA B200" in " ".join(said)
    assert said[-1] == "Not validated on hardware."


def test_the_same_is_said_once(study: SwitchingStudy, capsys: pytest.CaptureFixture[str]) -> None:
    """Of GPUs, and of both ends of a range, that leave the same."""
    static_mix = study.baselines["static-mix"]
    rows = tuple(
        replace(row, switches_pay=False, energy_pct=static_mix[1], lower_bound_pct=static_mix[1])
        for row in study.rows
    )
    alike = replace(study, rows=rows, gpus=tuple(load_gpu(n) for n in ("h200", "b200")))
    first, *others = sentences(alike)
    assert others == ["Not validated on hardware."]
    assert all(name in first for name in ("NVIDIA H200", "NVIDIA B200"))
    assert first.count("nothing beyond a lock or a mix of two") == 1
    assert first.endswith("at the nominal latency and at both ends of what is believable.")
    assert "nothing to survive" not in _printed(alike, capsys)
    unproven = tuple(replace(row, lower_bound_pct=static_mix[1] - 1) for row in rows)
    assert "nothing was found beyond a lock or a mix of two" in sentences(replace(alike, rows=unproven))[0]
    nothing = replace(alike, baselines={**alike.baselines, "ideal": static_mix})
    page = _printed(nothing, capsys)
    assert "no more than without switching, nothing to survive" in page
    assert "0 %" not in [cell.strip() for line in page.splitlines() for cell in line.split("  ")]


def _printed(study: SwitchingStudy, capsys: pytest.CaptureFixture[str]) -> str:
    show_study(study)
    return capsys.readouterr().out


def test_a_study_needs_one_iteration_and_the_periodic_boundary(scenes: dict[int, Scene]) -> None:
    with pytest.raises(UsageError, match="period of 1"):
        run({2: scenes[2]})
    recording = read_trace("h200_gpt3xl_layer_train")
    with pytest.raises(UsageError, match="periodic"):
        run({1: build_scene(recording, boundary="one-shot")})


def test_numbers_are_finite(study: SwitchingStudy) -> None:
    for row in study.rows:
        assert np.isfinite([row.time_pct, row.energy_pct, row.lower_bound_pct, row.surviving_pct]).all()


def test_an_answer_without_a_bound_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    """What idling draws is not known of some clocks: nothing is proven of schedules that pay for changes."""
    recording = trace((0, 0, 400_000), (1, 400_000, 300_000), (0, 700_000, 500_000))
    table = costs(
        ["auto", "sm=1200,mem=auto", "sm=1500,mem=auto"],
        time=[[1, 1.1, 1.02], [1, 1.5, 1.2]],
        power_w=[[400, 150, 180], [500, 300, 400]],
        idle_w=[80, np.nan, 60],
    )
    scene = build_scene(recording, gpu="h200", costs=table)
    found = switching_study(
        {1: scene}, budget=Budget(slack_pct=2.0), gpus=[load_gpu("h200")], latencies_ns=[1000]
    )
    assert {row.lower_bound_pct for row in found.rows} == {None}
    lines = _printed(found, capsys).splitlines()
    assert next(line for line in lines if line.split()[:2] == ["1", "us"]).split()[-1] == "-"
    assert "nothing was found beyond a lock" in sentences(found)[0]
    assert study_json(found)["rows"][0]["lower_bound_pct"] is None
    assert "at best" in json.dumps(figure(found).to_dict())


def test_what_the_replay_flags_is_flagged(tmp_path: Path) -> None:
    """Savings rest on the energy of the same replay: what is a bound there is one here."""
    path = tmp_path / "overlap.csv"
    path.write_text(
        "name,start_ns,duration_ns,stream,category\na,0,4000000,1,gemm\nb,1000000,2000000,2,copy\n"
    )
    scene = build_scene(read_trace(path), gpu="h200")
    study = switching_study(
        {1: scene}, budget=Budget(slack_pct=1.0), gpus=[], protocols=["drain"], latencies_ns=(1_000_000,)
    )
    assert "overlap_energy_is_a_bound" in study.flags
    assert len(set(study.flags)) == len(study.flags)
