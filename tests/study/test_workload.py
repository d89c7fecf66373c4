"""What a user may name: recordings, and published runs with their own costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from kdvfs_sim.core.clocks import AUTO, AUTO_CLOCKS, Clocks
from kdvfs_sim.core.errors import InputError
from kdvfs_sim.study.scene import build_scene
from kdvfs_sim.study.single import replay_on_gpu
from kdvfs_sim.study.workload import read_workload

PAPER = "gpt3xl_3080ti_paper"


def test_a_recording_brings_no_costs_and_a_published_run_does() -> None:
    assert read_workload("h200_gpt3xl_layer_train").costs is None
    paper = read_workload(PAPER)
    assert paper.costs is not None
    assert len(paper.costs.kinds) == len(paper.trace.kinds) == 46
    assert paper.trace.ops.height == 897


def test_a_path_wins_over_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(PAPER).write_text("name,start_ns,duration_ns\nk,0,10\n")
    assert read_workload(PAPER).costs is None


def test_a_lock_costs_what_the_published_table_says() -> None:
    """897 launches at their own ratios: (AUTO, 9501) takes AUTO's time and a good deal less energy."""
    paper = read_workload(PAPER)
    result = replay_on_gpu(paper, clocks=Clocks(AUTO, 9501))
    costs = paper.costs
    assert costs is not None
    row, auto = costs.index(Clocks(AUTO, 9501)), costs.index(AUTO_CLOCKS)
    kinds = paper.trace.ops["kind"].to_numpy()
    seconds = [costs.duration_ns[kinds, column].sum() * 1e-9 for column in (row, auto)]
    assert result.time_pct == pytest.approx(100 * (seconds[0] / seconds[1] - 1), abs=1e-4)
    assert result.energy_pct is not None
    assert result.energy_pct < -5
    assert result.setting.startswith("NVIDIA GeForce RTX 3080 Ti, clocks sm=auto,mem=9501")


def test_published_costs_stay_on_their_gpu_and_at_their_clocks() -> None:
    paper = read_workload(PAPER)
    with pytest.raises(InputError, match="name no other GPU"):
        build_scene(paper.trace, costs=paper.costs, gpu="h200")
    with pytest.raises(InputError, match="give no others"):
        read_workload(PAPER, recorded_clocks=Clocks(1680, 9501))


def test_a_dynamic_replay_is_compared_with_auto_under_the_same_governor() -> None:
    layer = read_workload("h200_gpt3xl_layer_train")
    result = replay_on_gpu(layer, clocks=AUTO_CLOCKS, dynamic=True)
    assert result.time_pct == 0
    assert result.energy_pct == 0
