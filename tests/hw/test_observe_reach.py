"""Observe mode cannot reach a setter: not by the source, not by the calls made, not by a program started.

Three nets, and each is shown to catch: the source of the package (``reach.py``), an audit hook in
processes that observe, and the driver's own door (``nvml_read.call``), which opens for readings only.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import kdvfs_hw
import pytest
from kdvfs_hw.devices import emulated_gpu, open_emulated
from kdvfs_hw.emulator.gpu import EmulatedGpu
from kdvfs_hw.nvml_read import call
from reach import CHANGES, findings, package_findings
from subject import alternating, write_subject
from toy_gpu import RESET_SM, SET_SM, toy_spec

from kdvfs_sim.core.clocks import AUTO_CLOCKS
from kdvfs_sim.core.errors import InvariantError
from kdvfs_sim.core.schedule_file import write_schedule

PACKAGE = Path(kdvfs_hw.__file__).parent


def test_of_the_whole_package_one_file_imports_the_binding_and_one_names_a_setter() -> None:
    assert package_findings(PACKAGE) == {
        "emulator/library.py": {"setter"},  # it answers to the names, and is the GPU
        "guardian.py": {"process"},  # the guardian
        "nvml_control.py": {"setter"},
        "nvml_read.py": {"binding"},
        "workloads/command.py": {"process"},  # the user's own command
        "workloads/cuda_driver.py": {"library"},  # libcuda, which runs kernels and has no clocks
    }


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("import os, pynvml", "binding"),
        ("import pynvml as driver", "binding"),
        ("from pynvml import nvmlDeviceGetName as f", "binding"),
        ("import pynvml.nvml", "binding"),
        ("import importlib\nimportlib.import_module('pynvml')", "binding"),
        ("__import__('pynvml')", "binding"),
        ("import sys\nsys.modules['pynvml']", "binding"),
        ("device.ask('nvmlDeviceSetGpuLockedClocks', 1, 1)", "setter"),
        ("nvml.nvmlDeviceSetPowerManagementLimit(h, 1)", "setter"),
        ("from kdvfs_hw.x import nvmlDeviceResetGpuLockedClocks", "setter"),
        ("getattr(nvml, 'nvmlDevice' + 'SetGpuLockedClocks')", "setter"),
        ("getattr(nvml, 'nvmlDevice' + 'Set' + what)", "setter"),
        ("getattr(nvml, f'nvmlDeviceSet{what}')", "setter"),
        ("getattr(nvml, f'nvmlDevice{verb}GpuLockedClocks')", "fragment"),
        ("name = {'sm': 'GpuLockedClocks', 'mem': 'MemoryLockedClocks'}", "fragment"),
        ("import ctypes\nctypes.CDLL('libnvidia-ml.so.1')", "library"),
        ("from ctypes import CDLL\nCDLL(name)", "library"),
        ("import ctypes\nctypes.cdll.LoadLibrary(name)", "library"),
        ("open('/dev/nvidiactl')", "library"),
        ("import subprocess\nsubprocess.run(command)", "process"),
        ("from subprocess import run", "process"),
        ("from multiprocessing import Process", "process"),
        ("import os\nos.system(text)", "process"),
        ("import os\nos.execvp(name, [])", "process"),
        ("run(['nvidia-smi', '-lgc', '1000'])", "program"),
        ("run('nvidia-smi -lgc 1000')", "program"),
        ("run(['sudo', tool])", "program"),
        ("'''nvmlDeviceSetGpuLockedClocks is never called here.'''", ""),
        ("remedy = 'without a client the driver forgets settings (nvidia-smi -pm 1)'", ""),
        ("device.ask('nvmlDeviceGetPersistenceMode')", ""),
    ],
)
def test_the_net_over_the_source_catches(source: str, word: str) -> None:
    found = set(findings(source))
    assert (word in found) if word else not found


def test_the_drivers_door_opens_for_readings_only(tmp_path: Path) -> None:
    gpu = EmulatedGpu.create(tmp_path / "gpu", toy_spec())
    with open_emulated(gpu) as opened:
        for name, numbers in (
            (SET_SM, (1000, 1000)),
            (RESET_SM, ()),
            ("nvmlDeviceSetPersistenceMode", (1,)),
            ("nvmlDeviceResetMemoryLockedClocks", ()),
            ("nvmlDeviceGetName_then_nvmlDeviceSetX", ()),
        ):
            with pytest.raises(Exception) as caught:  # noqa: PT011  # the last one is let through, to nowhere
                opened.device.ask(name, *numbers)
            assert isinstance(caught.value, InvariantError) == ("GetName" not in name)
        with pytest.raises(InvariantError, match="goes through ClockControl"):
            call("GPU", "nvmlDeviceSetGpuLockedClocks", None, 1, 1)
        assert not [each for each in gpu.calls() if CHANGES.search(str(each["call"]))]
    assert gpu.locks() == AUTO_CLOCKS
    gpu.close()


# what a process does, whatever its source calls it: events of sys.addaudithook
WATCHED = """
import json, sys
seen = {"library": [], "symbol": [], "program": [], "modules": []}
def hook(event, args):
    if event == "ctypes.dlopen":
        seen["library"].append(str(args[0]))
    elif event in ("ctypes.dlsym", "ctypes.dlsym/handle"):
        seen["symbol"].append(str(args[1]))
    elif event in ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn"):
        seen["program"].append([str(each) for each in args[1]])
    elif event in ("os.system", "pty.spawn"):
        seen["program"].append([str(each) for each in args])
sys.addaudithook(hook)
try:
    if sys.argv[1] == "-c":
        exec(sys.argv[2])
    else:
        from kdvfs_sim.cli import main
        main(["hw", *sys.argv[1:]])
except SystemExit as end:
    seen["code"] = end.code
finally:
    seen["modules"] = [name for name in sys.modules if name.startswith("kdvfs_hw")]
    print(json.dumps(seen), file=sys.stderr)
"""


def watched(*arguments: str, cwd: Path) -> dict[str, list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, *arguments], capture_output=True, text=True, check=False, cwd=cwd
    )
    seen: dict[str, list[str]] = json.loads(done.stderr.splitlines()[-1])
    return seen


def caught(seen: dict[str, list[str]], own: list[list[str]]) -> list[str]:
    """What is out of bounds for a process that observes and starts the programs ``own``."""
    return [
        *(f"library {name}" for name in seen["library"] if re.search("nvidia|dcgm|libcuda", name)),
        *(f"symbol {name}" for name in seen["symbol"] if CHANGES.search(name)),
        *(f"program {command}" for command in seen["program"] if command not in own),
    ]


NAP = [sys.executable, "-c", "import time; time.sleep(0.5)"]
SUBJECT = ["validate", "schedule.json", "--trace", "step.csv", "--gpu", "gpu.toml", "--settle", "0"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["doctor", "--device", "emulated:h200"],
        ["observe", "--device", "emulated:h200", "--out-dir", "run", "--", *NAP],
        ["characterize", "--device", "emulated:h200"],
        [
            *SUBJECT,
            "--device",
            "emulated:h200",
            "--seconds",
            "0.2",
            "--repeats",
            "3",
            "--allow-clock-control",
        ],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_process_that_observes_opens_starts_and_asks_nothing_that_changes(
    arguments: list[str], tmp_path: Path
) -> None:
    write_subject(tmp_path)
    write_schedule(alternating(), tmp_path / "schedule.json")
    seen = watched(*arguments, cwd=tmp_path)
    assert seen["code"] == 0
    assert caught(seen, [NAP]) == []
    assert not {"kdvfs_hw.nvml_control", "kdvfs_hw.guardian", "kdvfs_hw.guardian_process"} & set(
        seen["modules"]
    )
    gpu = emulated_gpu("emulated:h200")
    gpus = [gpu.folder, *(path for path in gpu.folder.parent.iterdir() if path != gpu.folder)]
    asked = {str(each["call"]) for folder in gpus for each in EmulatedGpu(folder).calls()}
    assert len(asked) > 10
    assert not [name for name in asked if CHANGES.search(name)]
    gpu.close()


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("from subprocess import run as look; look(['true', '-lgc'])", "program ['true', '-lgc']"),
        ("import os; os.system('true -lgc 1000')", "program [\"b'true -lgc 1000'\"]"),
        ("import os; os.posix_spawn('/bin/true', ['true'], {})", "program ['true']"),
        (
            "import ctypes as c\ntry: c.CDLL('libnvidia-ml.so.99')\nexcept OSError: pass",
            "library libnvidia-ml.so.99",
        ),
        (
            "import ctypes\ntry: getattr(ctypes.CDLL(None), 'nvmlDevice' + 'SetGpuLockedClocks')\n"
            "except AttributeError: pass",
            "symbol nvmlDeviceSetGpuLockedClocks",
        ),
    ],
)
def test_the_net_over_the_process_catches(code: str, what: str, tmp_path: Path) -> None:
    assert caught(watched("-c", code, cwd=tmp_path), []) == [what]
