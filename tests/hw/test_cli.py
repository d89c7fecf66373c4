"""``kdvfs hw doctor`` and ``reset`` as a user types them."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from kdvfs_hw.devices import emulated_gpu
from kdvfs_hw.emulator.gpu import EmulatedGpu
from kdvfs_hw.lock_record import LockRecord, find_unfinished, state_folder
from toy_gpu import toy_spec

from kdvfs_sim.core.clocks import AUTO_CLOCKS
from kdvfs_sim.core.errors import DeviceError


def kdvfs(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from kdvfs_sim.cli import main; main()", "hw", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def has_driver() -> bool:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


@pytest.mark.skipif(has_driver(), reason="an NVIDIA driver is installed: there is a GPU to find")
def test_doctor_without_a_gpu_is_a_helpful_page_and_exit_code_6() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = kdvfs("doctor")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 6
    assert "Traceback" not in done.stdout + done.stderr
    assert "install the driver" in done.stdout
    assert "kdvfs hw doctor --device emulated:h200" in done.stdout
    # it waits for nothing, so this is how long it takes on a machine that does nothing else
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0
    as_json = kdvfs("doctor", "--json")
    assert as_json.returncode == 6
    assert json.loads(as_json.stdout)["gpus"] == []
    assert "Not Found" in json.loads(as_json.stdout)["problem"]


def test_doctor_of_an_emulated_h200() -> None:
    done = kdvfs("doctor", "--device", "emulated:h200")
    assert done.returncode == 0
    assert "lock SM clock      yes" in done.stdout
    assert "SM clocks 345..1980 MHz (110)" in done.stdout
    assert "must lock them again" in done.stdout
    found = json.loads(kdvfs("doctor", "--device", "emulated:h200", "--json").stdout)
    (gpu,) = found["gpus"]
    assert gpu["capabilities"]["energy_counter"]["support"] == "yes"
    assert gpu["uuid"] in done.stdout
    assert len(gpu["sm_mhz"]) == 110


def test_doctor_gives_the_remedy_for_each_no() -> None:
    done = kdvfs("doctor", "--device", "emulated:h200,no_permission,no_energy")
    assert done.returncode == 0
    assert "lock SM clock      needs rights  the driver wants root" in done.stdout
    assert "energy counter     no            Not Supported" in done.stdout
    assert done.stdout.count("-> ") == 3


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["doctor", "--device", "emulated:h200,lost"], 6, ""),
        (["doctor", "--device", "emulated:h2000"], 3, "no GPU named"),
        (["doctor", "--device", "emulated:h200,fire"], 2, "no fault 'fire'"),
        (["doctor", "--device", "emulated:/nowhere"], 6, "no emulated GPU there"),
        (["doctor", "--device"], 2, "--device"),
        (["reset"], 2, "--allow-clock-control"),
        (["reset", "--device", "emulated:h200"], 2, "--allow-clock-control"),
        (["reset", "--device", "emulated:h200,lost", "--allow-clock-control"], 6, "fallen off the bus"),
        (["reset", "--device", "emulated:h200,no_permission", "--allow-clock-control"], 6, ""),
    ],
)
def test_mistakes_and_broken_gpus_are_one_line_and_a_code(arguments: list[str], code: int, says: str) -> None:
    done = kdvfs(*arguments)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == (1 if says else 0)
    assert says in done.stderr


def test_reset_releases_the_gpu_that_is_named() -> None:
    gpu = emulated_gpu("emulated:h200")
    gpu.request("sm", 1200)
    done = kdvfs("reset", "--device", "emulated:h200", "--allow-clock-control")
    assert done.returncode == 0
    assert done.stdout.startswith(f"{gpu.uuid}: released: ")
    assert gpu.locks() == AUTO_CLOCKS
    gpu.close()


def test_reset_without_a_name_repairs_what_is_recorded(tmp_path: Path) -> None:
    assert "no unfinished run" in kdvfs("reset", "--allow-clock-control").stdout
    gpu = EmulatedGpu.create(tmp_path / "gpu", toy_spec())
    gpu.request("sm", 1000)
    lost = LockRecord(state_folder(), gpu.uuid)
    lost.armed(reference=f"emulated:{gpu.folder}", runner=1)
    lost.locking("sm=1000,mem=auto")
    lost.close()
    gone = LockRecord(state_folder(), "GPU-gone")
    gone.armed(reference=f"emulated:{tmp_path}/gone", runner=2)
    gone.locking("sm=1000,mem=auto")
    gone.close()
    done = kdvfs("reset", "--allow-clock-control", "--json")
    assert done.returncode == 6
    outcomes = {each["uuid"]: each for each in json.loads(done.stdout)}
    assert outcomes[gpu.uuid]["complete"]
    assert "no emulated GPU there" in outcomes["GPU-gone"]["outcome"]
    assert gpu.locks() == AUTO_CLOCKS
    gpu.close()


def test_a_record_is_held_by_one_and_says_by_whom(tmp_path: Path) -> None:
    uuid = f"GPU-{uuid4()}"
    first = LockRecord(tmp_path, uuid)
    first.armed(reference="emulated:/x", runner=4321)
    with pytest.raises(DeviceError, match=rf"process 4321: .*; guardian {os.getpid()}: running"):
        LockRecord(tmp_path, uuid)
    assert find_unfinished((tmp_path,)) == ((), ())
    first.locking("sm=1000,mem=auto")
    assert [run.guardian_pid for run in find_unfinished((tmp_path,))[0]] == [os.getpid()]
    first.released("refused", complete=False, why="test")
    assert first.unfinished()
    first.close()
    assert [run.guardian_pid for run in find_unfinished((tmp_path,))[0]] == [None]


def test_a_record_that_cannot_be_written_stops_control(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DeviceError, match="set KDVFS_STATE_DIR"):
        LockRecord(tmp_path / "file" / "below", "GPU-1")
