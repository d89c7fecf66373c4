"""What a run writes: whole or not there, one run to a folder, and one line where it cannot be written."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import kdvfs, start
from kdvfs_hw.runs.bundle import write_bundle
from kdvfs_hw.runs.plan import make_plan
from kdvfs_hw.runs.record import LINES, Record, read_record
from subject import alternating, build, write_subject

from kdvfs_sim.core.errors import InputError
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.core.schedule_file import write_schedule

OBSERVE = ("observe", "--device", "emulated:h200", "--out-dir", "run", "--")
NAP = (sys.executable, "-c", "import time; time.sleep(0.2)")


def test_a_folder_is_for_one_run_and_an_end_before_the_beginning_leaves_it_free(tmp_path: Path) -> None:
    with Record(tmp_path / "run"), pytest.raises(InputError, match="another run is writing its record"):
        Record(tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []
    for arguments, code in (
        (("observe", "--device", "emulated:h200,lost", "--out-dir", "run", "--", *NAP), 6),
        ((*OBSERVE, "no-such-command-here"), 2),
        ((*OBSERVE, *NAP), 0),
        ((*OBSERVE, *NAP), 3),
    ):
        assert kdvfs(*arguments, cwd=tmp_path).returncode == code, arguments
        if code == 2:  # it had begun: what it was about is on disk
            shutil.rmtree(tmp_path / "run")


@pytest.mark.parametrize("name", ["record.md", "kernels.csv", "costs.csv", "scope_gemm.csv"])
def test_a_run_replaces_no_file_of_its_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_text("mine")
    done = kdvfs(*OBSERVE, *NAP, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    assert (
        done.stderr
        == f"kdvfs: run: already holds {name}; a record is never overwritten, name another folder\n"
    )
    assert [path.name for path in (tmp_path / "run").iterdir()] == [name]
    assert (tmp_path / "run" / name).read_text() == "mine"


def test_a_table_that_cannot_be_made_whole_is_not_there(tmp_path: Path) -> None:
    def rows() -> Iterator[tuple[Any, ...]]:
        yield from [(i, i) for i in range(5000)]
        raise KeyboardInterrupt

    record = Record(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        record.table("costs.csv", ("a", "b"), rows())
    assert [path.name for path in (tmp_path / "run").iterdir()] == [LINES]
    record.close()


def test_killed_at_any_instant_a_record_is_whole_lines(tmp_path: Path) -> None:
    for i in range(4):
        out = ("observe", "--device", "emulated:h200", "--out-dir", f"run{i}", "--")
        run = start(*out, sys.executable, "-c", "import time; time.sleep(0.6)", cwd=tmp_path)
        path = tmp_path / f"run{i}" / LINES
        deadline = time.monotonic() + 40
        while i and time.monotonic() < deadline and not (path.exists() and path.stat().st_size):
            time.sleep(0.01)
        time.sleep(0.2 * i or 0.5)
        os.killpg(run.pid, signal.SIGKILL)
        run.communicate()
        lines = path.read_text().splitlines() if path.exists() else []
        assert lines or i == 0
        assert all(json.loads(line)["kind"] for line in lines)


ON_A_SMALL_DISK = """
import subprocess, sys
folder, *command = sys.argv[1:]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k,nr_inodes=20", "none", folder], check=True)
sys.exit(subprocess.run(command).returncode)
"""


def own_mounts() -> bool:
    unshare = shutil.which("unshare")
    return bool(unshare) and not subprocess.run([str(unshare), "-rm", "true"], check=False).returncode


small_disk = pytest.mark.skipif(not own_mounts(), reason="needs the right to mount in an own namespace")


def on_a_small_disk(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    return subprocess.run(
        ["unshare", "-rm", sys.executable, "-c", ON_A_SMALL_DISK, folder, *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


FILL = """
import sys
from pathlib import Path
from kdvfs_hw.runs.record import Record
from kdvfs_sim.core.errors import InputError
with Record(Path(sys.argv[1]) / "run") as record:
    try:
        for i in range(100):
            record.add("step", text="x" * 500)
    except InputError as error:
        print(error)
    print((Path(sys.argv[1]) / "run" / "record.jsonl").read_text().count("\\n"))
    try:
        record.table("costs.csv", ("a",), [("y" * 9000,)])
    except InputError as error:
        print(error)
    print(sorted(path.name for path in (Path(sys.argv[1]) / "run").iterdir()))
"""


@small_disk
def test_a_full_disk_is_one_line_and_what_was_written_stays_readable(tmp_path: Path) -> None:
    done = on_a_small_disk(tmp_path / "disk", sys.executable, "-c", FILL, str(tmp_path / "disk"))
    assert done.returncode == 0, done.stderr
    full, n_lines, table, names = done.stdout.splitlines()
    assert "record.jsonl: " in full
    assert "No space left" in full or "is the disk full?" in full
    assert int(n_lines) > 5
    assert "costs.csv: cannot be written (No space left" in table
    assert names == "['record.jsonl']"


GUARDED = """
import os, sys
from pathlib import Path
from kdvfs_hw.devices import open_device
from kdvfs_hw.guardian import guarded_clocks
from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.core.errors import DeviceError
disk, gpu = sys.argv[1:]
def fill():
    descriptor = os.open(disk + "/filling", os.O_WRONLY | os.O_CREAT)
    try:
        while os.write(descriptor, b"x" * 100):
            pass
    except OSError:
        return
try:
    with open_device("emulated:" + gpu) as opened:
        if "first" in gpu:
            fill()
        with guarded_clocks(opened, allowed=True, folder=Path(disk), say=lambda _: None) as control:
            control.request_clocks(Clocks(1000, 1000))
            fill()
            control.request_clocks(Clocks(600, 1000))
            print("ran")
        print("released")
except DeviceError as error:
    print(error)
"""


@small_disk
@pytest.mark.parametrize(("name", "says"), [("first", "cannot be written"), ("later", "ran")])
def test_without_a_note_on_disk_nothing_is_locked_and_a_disk_that_fills_later_stops_no_release(
    tmp_path: Path, name: str, says: str
) -> None:
    from kdvfs_hw.emulator.gpu import EmulatedGpu
    from toy_gpu import toy_spec

    from kdvfs_sim.core.clocks import AUTO_CLOCKS

    gpu = EmulatedGpu.create(tmp_path / name, toy_spec())
    done = on_a_small_disk(
        tmp_path / "disk", sys.executable, "-c", GUARDED, str(tmp_path / "disk"), str(gpu.folder)
    )
    assert done.returncode == 0, done.stderr
    assert says in done.stdout
    made = [call["call"] for call in gpu.calls() if "Locked" in call["call"]]
    assert bool(made) == (name == "later")
    assert gpu.locks() == AUTO_CLOCKS
    gpu.close()


def test_where_nothing_can_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    write_subject(tmp_path)
    write_schedule(alternating(), tmp_path / "schedule.json")
    subject = ("validate", "schedule.json", "--trace", "step.csv", "--gpu", "gpu.toml")
    for arguments in (
        ("observe", "--device", "emulated:h200", "--out-dir", "file/run", "--", *NAP),
        (*subject, "--bundle", "file/box", "--workload", "gpt3xl-layer"),
        (*subject, "--bundle", "file", "--workload", "gpt3xl-layer"),
    ):
        done = kdvfs(*arguments, cwd=tmp_path)
        assert done.returncode == 3
        assert done.stderr.splitlines()[-1].startswith(
            f"kdvfs: {arguments[4] if 'observe' in arguments else ''}"
        )
        assert "file" in done.stderr
        assert "stdout" not in done.stderr
        assert "our bug" not in done.stderr


def experiment(folder: Path, schedules: dict[str, Schedule]) -> dict[str, Any]:
    scene = build(folder)
    plan = make_plan(scene, schedules, protocol="lookahead")
    return {"plan": plan, "trace": scene.trace, "schedules": schedules, "gpu": scene.gpu}


def test_a_bundle_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    what = experiment(tmp_path, {"per-kernel": alternating()})

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "box").mkdir()
    before = sorted(path.name for path in tmp_path.iterdir())
    with monkeypatch.context() as context:
        context.setattr(shutil, "copytree", fail)
        with pytest.raises(InputError, match=r"box: cannot be written \(No space left on device\)"):
            write_bundle(tmp_path / "box", workload="gpt3xl-layer", **what)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert list((tmp_path / "box").iterdir()) == []
    assert len(write_bundle(tmp_path / "box", workload="gpt3xl-layer", **what)) == 8
    assert os.access(tmp_path / "box" / "run.sh", os.X_OK)


def test_a_bundle_runs_what_it_was_named_whatever_the_name(tmp_path: Path) -> None:
    names = ("two words", "-x; touch intruder", "$(touch intruder)", "it's")
    schedules = {name: alternating() for name in names}
    workload = "my file.py:Work; touch intruder"
    write_bundle(tmp_path / "box", workload=workload, **experiment(tmp_path, schedules))
    shown = tmp_path / "show"
    shown.write_text('#!/bin/sh\nfor each in "$@"; do printf "%s\\n" "$each"; done\n')
    shown.chmod(0o755)
    environment = {**os.environ, "PYTHON": str(shown), "GPU": "emulated:my gpu"}
    for verb in ("observe", "control"):
        done = subprocess.run(
            [tmp_path / "box" / "run.sh", verb], capture_output=True, text=True, env=environment, check=True
        )
        typed = done.stdout.splitlines()
        assert typed[:7] == ["-m", "kdvfs_hw", "validate", *(f"./{name}.json" for name in names)]
        assert f"--workload={workload}" in typed
        assert typed[typed.index("--device") + 1] == "emulated:my gpu"
        for name in names:
            assert (tmp_path / "box" / f"{name}.json").is_file()
    assert not (tmp_path / "box" / "intruder").exists()


def test_a_bundle_loses_no_schedule_to_its_plan(tmp_path: Path) -> None:
    what = experiment(tmp_path, {"plan": alternating()})
    with pytest.raises(InputError, match=r"named 'plan' would be replaced by the bundle's plan\.json"):
        write_bundle(tmp_path / "box", workload="gpt3xl-layer", **what)
    assert not (tmp_path / "box").exists()


def test_a_record_may_be_read_while_it_is_written(tmp_path: Path) -> None:
    with Record(tmp_path / "run") as record:
        record.add("record", format="kdvfs-measurement", schema_version=1)
        assert len(read_record(tmp_path / "run")) == 1
