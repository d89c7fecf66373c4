"""``kdvfs study switching`` end to end, on two long stretches of unlike kernels."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path

import pytest

from kdvfs_sim.cli.study import _priced_by
from kdvfs_sim.gpu.catalogue import load_gpu, write_gpu
from kdvfs_sim.study.switching_study import SwitchingStudy

from .conftest import Outcome


def stretches(path: Path) -> Path:
    rows = ["name,start_ns,duration_ns,category"]
    rows += [f"{name},{i * 2_000_000},2000000,{name}" for i, name in enumerate(["gemm"] * 4 + ["copy"] * 4)]
    path.write_text("\n".join(rows) + "\n")
    return path


def test_a_study_prints_json_and_leaves_its_files(kdvfs: Callable[..., Outcome], tmp_path: Path) -> None:
    outcome = kdvfs(
        "study", "switching", stretches(tmp_path / "t.csv"), "--gpu", "h200", "--protocol", "lookahead",
        "--iterations", "1", "--slack", "2%", "--workers", "1", "--json", "--out-dir", tmp_path / "out",
    )  # fmt: skip
    assert outcome.code == 0, outcome.stderr
    document = json.loads(outcome.stdout)
    assert {row["gpu"] for row in document["rows"]} == {None, "h200"}
    written = json.loads((tmp_path / "out" / "study.json").read_text())
    assert written["rows"] == document["rows"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "study.html", "study.json", "study.png",
    ]  # fmt: skip
    assert document["sentences"][-1] == "Not validated on hardware."


def test_a_study_without_what_plots_need_leaves_its_numbers(
    kdvfs: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no plot of an earlier study beside them."""
    command = (
        "study", "switching", stretches(tmp_path / "t.csv"), "--gpu", "h200", "--protocol", "lookahead",
        "--iterations", "1", "--workers", "1", "--out-dir", tmp_path / "out",
    )  # fmt: skip
    assert kdvfs(*command).code == 0
    monkeypatch.setitem(sys.modules, "altair", None)
    outcome = kdvfs(*command)
    assert outcome.code == 0, outcome.stderr
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["study.json"]
    assert "plots need altair: pip install 'kdvfs-sim[plots]'" in outcome.stderr
    assert f"removed: {tmp_path / 'out' / 'study.png'}" in outcome.stderr


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_a_study_that_is_killed(tmp_path: Path, how: signal.Signals) -> None:
    """Whatever ends the parent: its pipe, which the workers hold too, closes soon after."""
    command = [sys.executable, "-m", "kdvfs_sim", "study", "switching", "h200_gpt3xl_full_train"]
    run = subprocess.Popen(
        [*command, "--workers", "2", "--iterations", "1", "--out-dir", str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children")
    if not children.exists():
        run.kill()
        run.communicate()
        pytest.skip("no /proc to see workers in")
    deadline = time.monotonic() + 90
    while len(children.read_text().split()) < 3 and time.monotonic() < deadline:  # two and their tracker
        time.sleep(0.1)
    time.sleep(2)
    run.send_signal(how)
    run.communicate(timeout=20)
    assert run.returncode != 0
    assert not list((tmp_path / "out").iterdir())


def test_a_worker_that_is_killed_is_no_bug_of_ours(
    kdvfs: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where memory runs out the kernel ends processes: what to do is said, and nothing is written."""

    def killed(*_: object, executor: Executor, **__: object) -> SwitchingStudy:
        executor.submit(signal.raise_signal, signal.SIGKILL).result()
        raise AssertionError("the worker lives")

    monkeypatch.setattr("kdvfs_sim.study.switching_study.switching_study", killed)
    outcome = kdvfs(
        "study", "switching", stretches(tmp_path / "t.csv"), "--gpu", "h200", "--iterations", "1",
        "--workers", "2", "--out-dir", tmp_path / "out",
    )  # fmt: skip
    assert outcome.code == 6, outcome.stderr
    assert "--workers 1" in outcome.stderr.splitlines()[-1]
    assert outcome.stdout == ""
    assert not list((tmp_path / "out").iterdir())


def test_an_entry_for_the_recorded_gpu_gives_the_costs(tmp_path: Path) -> None:
    """A user's own, as it says where the catalogue has none; else the catalogue's, whatever else is named."""
    mine = tmp_path / "mine.toml"
    write_gpu(replace(load_gpu("h200"), device_names=("My GPU*",)), mine)
    assert _priced_by(f"b200, {mine}", "My GPU 80GB") == str(mine)
    assert _priced_by(f"b200,{mine}", "NVIDIA H200") is None
    assert _priced_by(f"b200,{mine}", "") == "b200"
    assert _priced_by(None, "NVIDIA H200") is None
    assert _priced_by(None, "") is None
