"""Whoever says stop is heard: within a moment, with nothing left running, by every verb."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import start
from kdvfs_hw.devices import open_emulated
from kdvfs_hw.emulator.gpu import EmulatedGpu
from kdvfs_hw.measure.observer import Observer
from kdvfs_hw.nvml_control import GuardedClockControl
from kdvfs_hw.runs.live import Director, _controller
from kdvfs_hw.runs.plan import make_plan
from kdvfs_hw.runs.subject import emulated_workload
from subject import NoGuard, alternating, bench, build, write_subject
from toy_gpu import toy_spec

from kdvfs_sim.core.clocks import AUTO, Clocks
from kdvfs_sim.core.schedule_file import write_schedule

SUBJECT = ("validate", "schedule.json", "--trace", "step.csv", "--gpu", "gpu.toml")
CONTROL = ("--allow-clock-control", "--settle", "1")
VERBS = {
    "observe": ("observe", "--device", "emulated:h200", "--", "sleep", "30"),
    "characterize": ("characterize", "--device", "emulated:h200"),
    "changes": (
        *("characterize", "--device", "emulated:h200,lock_ignored", "--allow-clock-control"),
        *("--clocks", "sm=1005", "--clocks", "auto"),
    ),
    "validate": (*SUBJECT, "--device", "emulated:h200,slower=100"),
    "isolated": (*SUBJECT, "--device", "emulated:h200", "--mode", "isolated", *CONTROL),
    "live": (*SUBJECT, "--device", "emulated:h200,slow_switching=1000", "--mode", "live", *CONTROL),
    "sweep": ("sweep", "points.csv", "--device", "emulated:h200", *CONTROL),
}
MOMENT_S = 4.0  # 0.2 to 0.6 s on a machine that does nothing else


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_ends_soon_after_an_interruption(tmp_path: Path, verb: str) -> None:
    write_subject(tmp_path)
    write_schedule(alternating(), tmp_path / "schedule.json")
    (tmp_path / "points.csv").write_text("kernel,sm_mhz,mem_mhz\n*,1080,auto\n*,1230,auto\n")
    run = start(*VERBS[verb], cwd=tmp_path)
    time.sleep(4.0)
    assert run.poll() is None, run.communicate()
    begun_s = time.monotonic()
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=60)
    assert time.monotonic() - begun_s < MOMENT_S
    assert run.returncode == 130
    assert "Traceback" not in err
    with pytest.raises(ProcessLookupError):
        os.killpg(run.pid, 0)


DEAF = """
import signal, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
print('deaf', flush=True)
time.sleep(30)
"""


def observe(tmp_path: Path, code: str) -> subprocess.Popen[str]:
    run = start("observe", "--device", "emulated:h200", "--", sys.executable, "-c", code, cwd=tmp_path)
    assert run.stdout is not None
    assert run.stdout.readline() == "deaf\n"
    time.sleep(0.2)
    return run


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_that_ends_us_ends_the_command_we_watch(tmp_path: Path, name: str) -> None:
    run = observe(tmp_path, "import time; print('deaf', flush=True); time.sleep(30)")
    run.send_signal(signal.Signals[name])
    run.communicate(timeout=20)  # which waits for the command too: it holds the other end of stdout
    assert run.returncode == 128 + signal.Signals[name]
    with pytest.raises(ProcessLookupError):
        os.killpg(run.pid, 0)


def test_a_command_that_will_not_end_is_given_time_unless_somebody_insists(tmp_path: Path) -> None:
    run = observe(tmp_path, DEAF)
    begun_s = time.monotonic()
    run.send_signal(signal.SIGINT)
    assert run.stderr is not None
    assert "a second interruption kills it" in run.stderr.readline()
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=20)
    assert time.monotonic() - begun_s < MOMENT_S
    assert run.returncode == 130
    with pytest.raises(ProcessLookupError):
        os.killpg(run.pid, 0)


def test_requests_not_yet_made_are_not_made_after_an_interruption(tmp_path: Path) -> None:
    """Each would wait until it lands; where locks are ignored, for seconds."""
    scene = build(tmp_path)
    subject = bench(tmp_path / "gpu", scene, {"per-kernel": alternating()}, "lock_ignored")
    plan = make_plan(scene, {"per-kernel": alternating()}, protocol="lookahead")
    clock = subject.gpu.time
    with open_emulated(subject.gpu) as opened, Observer(opened.device) as observer:
        director = Director(plan, observer, GuardedClockControl(opened.device, NoGuard()))
        work = emulated_workload(scene, subject.gpu)
        begun_ns = 0

        def interrupted() -> None:
            nonlocal begun_ns
            with _controller(director, work) as todo:
                ticket = work.launch(None, 0)
                for i in range(20):
                    todo.append((ticket, 0, Clocks(1080 if i % 2 else 1380, AUTO)))
                clock.sleep_ns(50_000_000)
                begun_ns = clock.now_ns()
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert clock.now_ns() - begun_ns < 60_000_000


def test_the_work_of_a_process_that_has_ended_goes_with_it(tmp_path: Path) -> None:
    """Else a killed run would be a stranger on the GPU for as long as its kernels take."""
    gpu = EmulatedGpu.create(tmp_path / "gpu", toy_spec())
    script = "import sys; from pathlib import Path; from kdvfs_hw.emulator.gpu import EmulatedGpu; "
    script += "EmulatedGpu(Path(sys.argv[1])).launch('gemm', 1e6)"
    subprocess.run([sys.executable, "-c", script, gpu.folder], check=True)
    mine = gpu.launch("gemm", 1)
    assert len(gpu.view().queue) == 2
    again = EmulatedGpu(gpu.folder)
    assert [work.token for work in again.view().queue] in ([mine], [])
    with open_emulated(again) as opened:
        assert opened.device.foreign_processes() == ()
    for each in (gpu, again):
        each.close()
