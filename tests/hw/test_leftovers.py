"""Runner and guardian both killed: whoever looks finds what was left locked, and releases just that."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from command import kdvfs, start
from kdvfs_hw import lock_record
from kdvfs_hw.devices import emulated_gpu, open_emulated, unfinished_runs
from kdvfs_hw.emulator.gpu import EmulatedGpu
from kdvfs_hw.guardian import guarded_clocks
from kdvfs_hw.lock_record import LockRecord, find_unfinished, state_folder, state_folders, unfinished_record
from kdvfs_hw.reset import reset
from subject import alternating, write_subject
from toy_gpu import toy_spec

from kdvfs_sim.core.clocks import AUTO_CLOCKS, Clocks
from kdvfs_sim.core.errors import DeviceError
from kdvfs_sim.core.schedule_file import write_schedule

VALIDATE = (
    "validate",
    "schedule.json",
    "--trace",
    "step.csv",
    "--gpu",
    "gpu.toml",
    "--protocol",
    "lookahead",
)


def wait_until(found: Callable[[], object], timeout_s: float = 40.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not found():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


@pytest.fixture
def left_locked(tmp_path: Path) -> Iterator[EmulatedGpu]:
    """A ``validate`` of a trace on ``emulated:h200``, killed with its guardian while clocks were locked."""
    write_subject(tmp_path)
    write_schedule(alternating(), tmp_path / "schedule.json")
    run = start(
        *VALIDATE,
        *("--device", "emulated:h200", "--mode", "live", "--allow-clock-control", "--settle", "0"),
        cwd=tmp_path,
    )

    def locked() -> bool:
        (found, _) = unfinished_runs()
        return bool(found) and EmulatedGpu(found[0].path.parent).locks() != AUTO_CLOCKS

    wait_until(locked)
    ((found,), _) = unfinished_runs()
    assert found.guardian_pid is not None
    os.killpg(run.pid, signal.SIGSTOP)  # so that the run cannot repair what its guardian no longer does
    os.kill(found.guardian_pid, signal.SIGKILL)
    os.killpg(run.pid, signal.SIGKILL)
    run.communicate()
    wait_until(lambda: unfinished_runs()[0][0].guardian_pid is None)
    gpu = EmulatedGpu(found.path.parent)
    assert gpu.locks() != AUTO_CLOCKS
    yield gpu
    gpu.close()


def test_doctor_and_reset_by_the_name_that_the_user_typed(left_locked: EmulatedGpu) -> None:
    plain = emulated_gpu("emulated:h200")
    assert plain.uuid != left_locked.uuid  # a trace's own behaviour makes it another GPU
    page = kdvfs("doctor", "--device", "emulated:h200").stdout
    assert "CLOCKS MAY BE LOCKED" in page
    assert "  at sm=" in page
    command = f"kdvfs hw reset --device emulated:{left_locked.folder} --allow-clock-control"
    assert command in page
    (run,) = json.loads(kdvfs("doctor", "--device", "emulated:h200", "--json").stdout)["unfinished_runs"]
    assert (run["uuid"], run["reset"]) == (left_locked.uuid, command)
    done = kdvfs("reset", "--device", "emulated:h200", "--allow-clock-control")
    assert done.returncode == 0
    assert f"{left_locked.uuid}: released" in done.stdout
    assert left_locked.locks() == AUTO_CLOCKS
    assert unfinished_runs() == ((), ())
    assert "CLOCKS MAY BE LOCKED" not in kdvfs("doctor", "--device", "emulated:h200").stdout
    plain.close()


def test_doctor_and_reset_without_a_name_and_what_refuses_meanwhile(
    left_locked: EmulatedGpu, tmp_path: Path
) -> None:
    other = emulated_gpu("emulated:a100-sxm-80gb")
    other.request("sm", 1005)  # somebody else's lock, on a GPU where no run of ours was
    assert left_locked.uuid in kdvfs("doctor", "--json").stdout
    for mode in ("observe", "live"):
        refused = kdvfs(
            *VALIDATE, "--device", "emulated:h200", "--mode", mode, "--allow-clock-control", cwd=tmp_path
        )
        assert refused.returncode == 6
        assert f"first run kdvfs hw reset --device emulated:{left_locked.folder}" in refused.stderr
    done = kdvfs("reset", "--allow-clock-control", "--json")
    assert done.returncode == 0
    assert [each["uuid"] for each in json.loads(done.stdout)] == [left_locked.uuid]
    assert left_locked.locks() == AUTO_CLOCKS
    assert other.locks() != AUTO_CLOCKS
    other.close()


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[EmulatedGpu]:
    gpu = EmulatedGpu.create(tmp_path / "toy", toy_spec())
    yield gpu
    gpu.close()


def leave_locked(folder: Path, gpu: EmulatedGpu, clocks: str = "sm=1000,mem=1000") -> None:
    record = LockRecord(folder, gpu.uuid)
    record.armed(reference=f"emulated:{gpu.folder}", runner=1)
    record.locking(clocks)
    record.close()


def test_locks_do_not_outlive_the_machine_so_a_record_from_before_its_start_says_nothing(
    toy: EmulatedGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else ``reset`` would release what the owner has locked since, and every run would wait for it."""
    with monkeypatch.context() as earlier:
        earlier.setattr(lock_record, "boot_id", lambda: "the start before")
        leave_locked(state_folder(), toy)
        assert len(find_unfinished(state_folders())[0]) == 1
    assert find_unfinished(state_folders()) == ((), ())
    toy.request("sm", 1000)
    assert reset(None, allowed=True) == ()
    assert toy.locks() == Clocks.parse("sm=1000,mem=auto")
    record = LockRecord(state_folder(), toy.uuid)
    assert not record.unfinished()
    record.armed(reference="emulated:/x", runner=2)
    assert not record.unfinished()
    record.close()


def test_reset_does_not_take_acceptance_for_effect(toy: EmulatedGpu) -> None:
    leave_locked(toy.folder, toy)
    toy.request("sm", 1000)
    toy.script("reset_ignored")
    toy.launch("gemm", 1e6)
    time.sleep(0.05)
    for _ in range(2):
        done = kdvfs("reset", "--device", f"emulated:{toy.folder}", "--allow-clock-control")
        assert done.returncode == 6
        assert "NOT RELEASED: SM clock unmoved" in done.stdout
        assert "run something on it" in done.stdout
        assert unfinished_record((toy.folder,), toy.uuid) is not None
    toy.heal("reset_ignored")
    assert kdvfs("reset", "--device", f"emulated:{toy.folder}", "--allow-clock-control").returncode == 0
    assert unfinished_record((toy.folder,), toy.uuid) is None


HOLD = """
import sys, time
from pathlib import Path
from kdvfs_hw.lock_record import LockRecord
record = LockRecord(Path(sys.argv[1]), sys.argv[2])
print("held", flush=True)
time.sleep(60)
"""


def test_one_run_at_a_time_also_with_another_state_folder(tmp_path: Path) -> None:
    uuid = f"GPU-{uuid4()}"
    other = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path / "a", uuid], stdout=subprocess.PIPE)
    assert other.stdout is not None
    assert other.stdout.readline() == b"held\n"
    with pytest.raises(DeviceError, match=rf"another run controls this GPU \(guardian {other.pid}, of"):
        LockRecord(tmp_path / "b", uuid)
    other.kill()
    other.communicate()
    LockRecord(tmp_path / "b", uuid).close()


def test_who_is_not_root_finds_what_root_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KDVFS_STATE_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(lock_record, "SYSTEM_FOLDER", tmp_path / "system")
    uuid = f"GPU-{uuid4()}"
    record = LockRecord(state_folder(), uuid)
    assert record.path.parent == (tmp_path / "system" if os.geteuid() == 0 else tmp_path / "home" / "kdvfs")
    assert record.path.stat().st_mode & 0o044 == 0o044
    record.armed(reference=uuid, runner=1)
    record.locking("sm=1000,mem=auto")
    record.close()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    if record.path.parent == tmp_path / "system":
        assert state_folder() == tmp_path / "home" / "kdvfs"
    assert [run.uuid for run in unfinished_runs()[0]] == [uuid]


def test_a_damaged_record_is_named_and_stops_control(toy: EmulatedGpu, tmp_path: Path) -> None:
    damaged = state_folder() / "GPU-x.locks.jsonl"
    damaged.parent.mkdir()
    damaged.write_text('{"event":"armed","boot":"?"}\n{"event":"armed"}\n{"event":"locking"}\n[1]\n')
    found = kdvfs("doctor", "--device", "emulated:h200")
    assert found.returncode == 0
    assert f"{damaged}: is not a record of ours (KeyError: 'reference')" in found.stdout
    (toy.folder / f"{toy.uuid}.locks.jsonl").write_bytes(damaged.read_bytes())
    with (
        open_emulated(toy) as opened,
        pytest.raises(DeviceError, match="is not a record of ours"),
        guarded_clocks(opened, allowed=True, say=lambda _: None),
    ):
        pass
