"""What a scene says of the GPUs it rests on: the one recorded, and the sweep behind a fitted entry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kdvfs_sim.core.clocks import AUTO, AUTO_CLOCKS, Clocks
from kdvfs_sim.core.errors import InputError
from kdvfs_sim.core.problem import Objective
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.core.switching import DRAIN
from kdvfs_sim.gpu.catalogue import load_gpu, write_gpu
from kdvfs_sim.gpu.facts import Fact
from kdvfs_sim.study.equal_slack import equal_slack
from kdvfs_sim.study.plans import Budget, Plan
from kdvfs_sim.study.power_limit import best_power_limit
from kdvfs_sim.study.scene import Scene, build_scene
from kdvfs_sim.study.single import replay_at_recorded, replay_on_gpu
from kdvfs_sim.study.switching_study import switching_study
from kdvfs_sim.study.workload import Workload
from kdvfs_sim.trace.readers import read_trace

NAMES_NONE = "the recording names no GPU; taken as recorded on NVIDIA H200"


@pytest.fixture
def unnamed(tmp_path: Path) -> Path:
    path = tmp_path / "unnamed.csv"
    path.write_text(
        "name,start_ns,duration_ns,category\n"
        "Cijk_Ailk,0,400000,gemm\nsoftmax,400000,300000,reduction\nCijk_Alik,700000,500000,gemm\n"
    )
    return path


def test_a_recording_without_a_gpu_says_whose_it_is_taken_to_be(unnamed: Path) -> None:
    trace = read_trace(unnamed)
    scene = build_scene(trace, gpu="h200")
    assert NAMES_NONE in scene.flags
    table = equal_slack(scene, budget=Budget(slack_pct=1.0), protocols=["free"], plans=())
    assert NAMES_NONE in table.flags
    assert NAMES_NONE in replay_at_recorded(Workload(trace=trace), gpu="h200").flags
    assert not any(
        "names no GPU" in flag for flag in build_scene(read_trace("h200_gpt3xl_layer_train")).flags
    )


def test_recordings_of_other_makers_that_name_no_gpu_say_so(shared: Path) -> None:
    trace = read_trace(shared / "traces" / "tracelens__vllm_decode_hipgraph_mi300x.json.gz")
    assert NAMES_NONE in replay_on_gpu(Workload(trace=trace), gpu="h200", clocks=Clocks(1200, AUTO)).flags


def test_another_gpu_than_the_recorded_one_is_a_transfer_and_says_so() -> None:
    trace = read_trace("h200_gpt3xl_layer_train")
    recorded_on, other = load_gpu("h200"), load_gpu("h100-sxm")
    flag = f"transfer from {recorded_on.name} to {other.name}"
    scene = build_scene(trace, gpu="h100-sxm")
    assert flag in scene.flags
    low, high = (scene.costs[level].duration_ns for level in ("low", "high"))
    assert not np.array_equal(low, high), "a transfer is shown as a range"
    assert flag in replay_at_recorded(Workload(trace=trace), gpu="h100-sxm").flags


@pytest.fixture
def fitted(tmp_path: Path) -> str:
    ends = {"clocks.swept_from_mhz": 1200, "clocks.swept_to_mhz": 1800}
    facts = {path: Fact(value=mhz, source="test", kind="measured") for path, mhz in ends.items()}
    path = tmp_path / "mine.toml"
    write_gpu(load_gpu("h200").with_facts(facts), path)
    return str(path)


def test_no_clocks_outside_of_the_sweep_are_chosen_and_a_note_says_so(fitted: str) -> None:
    scene = build_scene(read_trace("h200_gpt3xl_layer_train"), gpu=fitted)
    assert any("from 1200 to 1800 MHz: no others are chosen" in flag for flag in scene.flags)
    assert any("AUTO may run at up to 1980 MHz" in flag for flag in scene.flags)
    plans = (Plan(granularity="launch"), Plan(granularity="launch", minimize="edp"))
    table = equal_slack(scene, budget=Budget(slack_pct=200.0), protocols=["free", "drain"], plans=plans)
    chosen = {
        request.clocks.sm_mhz
        for row in table.rows
        if row.solution is not None
        for schedule in (row.solution.schedule, row.solution.alternate)
        if schedule is not None
        for request in schedule.requests
    }
    assert {mhz for mhz in chosen if mhz is not AUTO}
    assert all(mhz is AUTO or 1200 <= mhz <= 1800 for mhz in chosen)


def test_power_limits_that_lead_below_the_sweep_are_not_tried(fitted: str) -> None:
    trace = read_trace("h200_gpt3xl_layer_train")
    scene = build_scene(trace, gpu=fitted)
    assert 1 < len(scene.power_limits_w) < len(build_scene(trace).power_limits_w)
    assert scene.power_table is not None
    for limit_w in scene.power_limits_w:
        costs = scene.power_table("nominal", limit_w)
        ran_at = {costs.clocks[row].sm_mhz for row in costs.effective[:, costs.index(Clocks(AUTO, AUTO))]}
        assert all(mhz is AUTO or mhz >= 1200 for mhz in ran_at)


def test_a_replay_refuses_clocks_outside_of_the_sweep(fitted: str) -> None:
    workload = Workload(trace=read_trace("h200_gpt3xl_layer_train"))
    assert replay_on_gpu(workload, gpu=fitted, clocks=Clocks(1500, AUTO)).run.metrics.energy_j
    with pytest.raises(InputError, match=r"sm=600,mem=auto lies outside of the sweep behind mine"):
        replay_on_gpu(workload, gpu=fitted, clocks=Clocks(600, AUTO))


@pytest.fixture
def three(unnamed: Path) -> Scene:
    return build_scene(read_trace(unnamed), gpu="h200", boundary="one-shot")


@pytest.mark.parametrize(
    "ask",
    [
        lambda scene: scene.problem(Objective(), "Drain"),
        lambda scene: scene.judge("Drain"),
        lambda scene: scene.static(AUTO_CLOCKS, "Drain"),
        lambda scene: scene.replay(Schedule.static(AUTO_CLOCKS), "Drain"),
        lambda scene: best_power_limit(scene, "Drain", Objective(), with_lock=False),
        lambda scene: equal_slack(scene, budget=Budget(), protocols=["free", "Drain"], plans=()),
        lambda scene: equal_slack(scene, budget=Budget(), protocols="Drain", plans=()),
        lambda scene: switching_study(
            {1: replace(scene, boundary="periodic")}, budget=Budget(), gpus=(), protocols=["Drain"]
        ),
        lambda scene: replay_on_gpu(Workload(trace=scene.trace), gpu="h200", protocol="Drain"),
    ],
)
def test_an_unknown_protocol_is_refused_with_those_there_are(
    three: Scene, ask: Callable[[Scene], object]
) -> None:
    with pytest.raises(InputError, match="no protocol 'Drain'; there are: free, drain, follow, lookahead"):
        ask(three)


def test_a_protocol_may_be_given_by_name_or_as_it_is(three: Scene) -> None:
    mine = replace(DRAIN, name="mine", relaunch_ns=1)
    assert three.problem(Objective(), "drain").protocol == three.protocols["drain"]
    assert three.problem(Objective(), mine).protocol is mine
    by_name, as_it_is = (three.replay(three.static(AUTO_CLOCKS, p), p) for p in ("drain", DRAIN))
    assert by_name.metrics == as_it_is.metrics


def test_a_schedule_without_requests_is_replayed_as_one(three: Scene) -> None:
    nothing = Schedule(requests=(), protocol="drain", boundary="one-shot")
    workload = Workload(trace=three.trace)
    single = replay_on_gpu(
        workload,
        gpu="h200",
        clocks=Clocks(345, AUTO),
        schedule=nothing,
        protocol="drain",
        boundary="one-shot",
    )
    assert "a schedule of 0 requests under drain, one-shot" in single.setting
    assert single.run.metrics == three.auto_metrics


def test_a_library_error_names_no_option_of_the_command(unnamed: Path) -> None:
    with pytest.raises(InputError, match="name the GPU") as caught:
        build_scene(read_trace(unnamed))
    assert "--" not in str(caught.value)


def test_the_start_clocks_of_a_one_shot_scene_are_those_given(unnamed: Path) -> None:
    """A lock that is held already costs nothing to ask for."""
    lock = Clocks(1200, AUTO)
    trace = read_trace(unnamed)
    locked = Schedule.static(lock, boundary="one-shot", protocol="drain")
    scenes = (
        build_scene(trace, gpu="h200", boundary="one-shot", start=start) for start in (lock, AUTO_CLOCKS)
    )
    held, asked_for = (scene.replay(locked, scene.protocols["drain"]).metrics for scene in scenes)
    assert (held.n_switches, asked_for.n_switches) == (0, 1)
    assert held.time_s < asked_for.time_s
