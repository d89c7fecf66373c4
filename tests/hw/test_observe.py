"""Observe mode cannot reach a setter; the setters are named in one file."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import kdvfs_hw
from kdvfs_hw.devices import open_emulated
from kdvfs_hw.emulator.gpu import EmulatedGpu
from toy_gpu import RESET_SM, SET_SM, toy_spec

PACKAGE = Path(kdvfs_hw.__file__).parent
CHANGES = re.compile(r"nvml\w*(Set|Reset|Clear|Remove|Freeze|Validate)\w*")

OBSERVE = """
import json, sys
from kdvfs_hw.devices import open_device
from kdvfs_hw.doctor import examine, to_lines
from kdvfs_hw.readback import await_clocks
from kdvfs_sim.core.clocks import AUTO_CLOCKS

reference = "emulated:" + sys.argv[1]
page = list(to_lines(examine(reference)))
with open_device(reference) as opened:
    device = opened.device
    readings = [
        device.observed_clocks(), device.energy_counter(), device.power("instant"), device.power("average"),
        device.throttle_reasons(), device.temperature_c(), device.foreign_processes(), device.clock_table(),
        device.power_limit_w(), device.capabilities(), device.software(), await_clocks(device, AUTO_CLOCKS),
    ]
print(json.dumps({"modules": sorted(sys.modules), "n_lines": len(page), "n_readings": len(readings)}))
"""


def test_in_a_process_that_observes_the_setter_module_is_absent(tmp_path: Path) -> None:
    gpu = EmulatedGpu.create(tmp_path / "gpu", toy_spec())
    output = subprocess.check_output([sys.executable, "-c", OBSERVE, gpu.folder], text=True)
    seen = json.loads(output)
    assert seen["n_readings"] == 12
    assert "kdvfs_hw.nvml_read" in seen["modules"]
    assert "pynvml" in seen["modules"]
    assert "kdvfs_hw.nvml_control" not in seen["modules"]
    assert "kdvfs_hw.guardian_process" not in seen["modules"]
    calls = [call["call"] for call in gpu.calls()]
    assert len(calls) > 30
    assert not [call for call in calls if CHANGES.search(call)]
    assert gpu._requests.read(0)[0] == []
    gpu.close()


def test_the_call_log_would_show_a_setter(tmp_path: Path) -> None:
    gpu = EmulatedGpu.create(tmp_path / "gpu", toy_spec())
    with open_emulated(gpu) as opened:
        opened.device.ask(SET_SM, 1000, 1000, may_change={SET_SM})
        opened.device.ask(RESET_SM, may_change={RESET_SM})
    changes = [(call["call"], call["args"]) for call in gpu.calls() if CHANGES.search(call["call"])]
    assert changes == [
        ("nvmlDeviceSetGpuLockedClocks", [1000, 1000]),
        ("nvmlDeviceResetGpuLockedClocks", []),
    ]
    gpu.close()


def test_nothing_reads_gpus_at_import() -> None:
    script = "import sys, kdvfs_sim, kdvfs_hw, kdvfs_hw.cli; print(*sys.modules)"
    modules = subprocess.check_output([sys.executable, "-c", script], text=True).split()
    assert not {"pynvml", "ctypes", "numpy", "polars", "kdvfs_hw.nvml_read"} & set(modules)
