"""Every kind of file that we write, and look-alikes, where each command writes: no kind replaces another."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kdvfs_sim.cli import main
from kdvfs_sim.core.errors import InputError
from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.gpu.build import cost_table
from kdvfs_sim.gpu.catalogue import load_gpu, write_gpu
from kdvfs_sim.gpu.tables import read_cost_table, write_cost_table
from kdvfs_sim.report.perfetto import write_perfetto
from kdvfs_sim.report.switching_results import write_study
from kdvfs_sim.study.plans import Budget
from kdvfs_sim.study.scene import build_scene
from kdvfs_sim.study.switching_study import switching_study
from kdvfs_sim.trace.parquet import read_parquet
from kdvfs_sim.trace.readers import read_trace

TRACE = "name,start_ns,duration_ns,stream,category\n" + "".join(
    f"k{i % 2},{i * 40_000_000},40000000,7,{('gemm', 'copy')[i % 2]}\n" for i in range(4)
)
SWEEP = "kernel,sm_mhz,mem_mhz,time_s,power_w\n" + "".join(
    f"g,{mhz},1593,{1.0 + 300 / mhz},{100 + mhz * 0.2}\n" for mhz in range(510, 1411, 90)
)
KINDS = (
    "trace.parquet",
    "costs.parquet",
    "costs.csv",
    "schedule.json",
    "policies.json",
    "timeline.json",
    "entry.toml",
    "study.json",
    "study.png",
    "study.html",
)
OTHERS = {
    "version.json": b'{"otherData": {"kdvfs_version": "0.1"}, "traceEvents": []}',
    "later.json": b'{"format": "theirs", "of": {"format": "kdvfs-timeline"}, "vega": 1}',
    "quoted.json": b'{"note": "\\"format\\": \\"kdvfs-schedule\\"", "vega": 2}',
    "photo.png": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(40),
    "chart.html": b"<!DOCTYPE html><script src='vega.js'></script>",
    "table.csv": b"kernel,sm_mhz,mem_mhz\n",
    "notes.toml": b'format = "notes"\n',
}
# the kind that is written, and the command that writes it: the last argument names the file or its folder
COMMANDS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "import": ("trace.parquet", "out.parquet", ("import", "trace.csv", "-o")),
    "fit": ("entry.toml", "out.toml", ("fit", "sweep.csv", "--gpu", "a100", "-o")),
    "replay": ("timeline.json", "out.json", ("replay", "trace.csv", "--gpu", "h200", "-o")),
    **{
        f"optimize {name}": (kind, name, ("optimize", "trace.csv", "--gpu", "h200", "--out-dir"))
        for name, kind in {
            "policies.json": "policies.json",
            "schedule.json": "schedule.json",
            "schedule-alternate.json": "schedule.json",
            "timeline.json": "timeline.json",
        }.items()
    },
    **{
        f"study {name}": (name, name, ("study", "switching", "trace.csv", "--gpu", "h200", "--out-dir"))
        for name in ("study.json", "study.png", "study.html")
    },
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file of each kind, as the commands and writers leave it."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "trace.csv").write_text(TRACE)
    (folder / "sweep.csv").write_text(SWEEP)
    for name, content in OTHERS.items():
        (folder / name).write_bytes(content)
    trace, entry = str(folder / "trace.csv"), load_gpu("h200")
    for arguments in (
        ["import", trace, "-o", folder / "trace.parquet"],
        ["optimize", trace, "--gpu", "h200", "--protocol", "follow", "--out-dir", folder],
    ):
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        assert not end.value.code, arguments
    scene = build_scene(read_trace(trace), gpu="h200")
    study = switching_study(
        {1: scene}, budget=Budget(slack_pct=1.0), gpus=[entry], protocols=["drain"], latencies_ns=(1_000_000,)
    )
    write_study(folder, study)
    costs = cost_table(entry, [KernelKind(name="g", category="gemm")], [1e6], sm_clocks=[1410])
    for suffix in ("csv", "parquet"):
        write_cost_table(costs, folder / f"costs.{suffix}")
    write_gpu(entry, folder / "entry.toml")
    assert all((folder / kind).stat().st_size for kind in KINDS)
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_replaces_a_file_of_another_kind(
    made: Path,
    tmp_path: Path,
    command: str,
    kdvfs: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written, name, arguments = COMMANDS[command]
    monkeypatch.chdir(made)
    in_folder = arguments[-1] == "--out-dir"
    for kind in (*KINDS, *OTHERS):
        if kind == written:
            continue
        target = shutil.copy(made / kind, tmp_path / name)
        outcome = kdvfs(*arguments, tmp_path if in_folder else target)
        assert (outcome.code, target.read_bytes()) == (3, (made / kind).read_bytes()), (kind, outcome.stderr)
        assert [line for line in outcome.stderr.splitlines() if "exists and is not" in line], kind


@pytest.mark.parametrize("command", ["import", "fit", "replay"])
def test_a_command_replaces_its_own_kind(
    made: Path, tmp_path: Path, command: str, kdvfs: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    written, name, arguments = COMMANDS[command]
    monkeypatch.chdir(made)
    target = shutil.copy(made / written, tmp_path / name)
    before = target.stat().st_ino
    outcome = kdvfs(*arguments, target)
    assert outcome.code == 0, outcome.stderr
    assert target.stat().st_ino != before


def test_a_study_and_an_optimization_may_be_written_again(made: Path, tmp_path: Path) -> None:
    from kdvfs_sim.report import results, switching_results

    results.check_targets(made)
    switching_results.check_targets(made)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_no_cost_table_is_written_over_another_kind(made: Path, tmp_path: Path, suffix: str) -> None:
    costs = read_cost_table(made / f"costs.{suffix}")
    for kind in (*KINDS, *OTHERS):
        target = shutil.copy(made / kind, tmp_path / f"out.{suffix}")
        if kind == f"costs.{suffix}":
            write_cost_table(costs, target)
            continue
        with pytest.raises(InputError, match="exists and is not a cost table"):
            write_cost_table(costs, target)
        assert target.read_bytes() == (made / kind).read_bytes(), kind


def test_a_schedule_with_two_names_stays_one(made: Path, tmp_path: Path, kdvfs: Callable[..., Any]) -> None:
    target = shutil.copy(made / "schedule.json", tmp_path / "s.json")
    outcome = kdvfs("replay", made / "trace.csv", "--gpu", "h200", "--schedule", target, "-o", target)
    assert outcome.code == 3
    assert json.loads(target.read_text())["format"] == "kdvfs-schedule"


def test_the_title_of_a_timeline_makes_it_no_other_kind(made: Path, tmp_path: Path) -> None:
    from kdvfs_sim.core.schedule_file import is_schedule_file, read_schedule
    from kdvfs_sim.report.perfetto import is_timeline_file

    scene = build_scene(read_trace(made / "trace.csv"), gpu="h200")
    run = scene.replay(read_schedule(made / "schedule.json"), scene.protocols["follow"])
    path = tmp_path / "t.json"
    write_perfetto(run.timeline, path, title='"format": "kdvfs-schedule"')
    assert is_timeline_file(path)
    assert not is_schedule_file(path)
    write_perfetto(run.timeline, path)


def test_a_cost_table_is_no_trace(made: Path, kdvfs: Callable[..., Any]) -> None:
    outcome = kdvfs("inspect", made / "costs.parquet")
    assert outcome.code == 3
    assert "not a trace written by kdvfs" in outcome.stderr
    assert read_parquet(made / "trace.parquet").n_ops == 4
