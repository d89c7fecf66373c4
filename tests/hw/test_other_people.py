"""A GPU is not ours alone: others start work, lock clocks, lower the power limit, stop our processes."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from command import start, stop
from kdvfs_hw import guardian
from kdvfs_hw.devices import open_device, open_emulated
from kdvfs_hw.doctor import examine, to_lines
from kdvfs_hw.emulator.behaviour import TableBehaviour
from kdvfs_hw.emulator.gpu import EmulatedGpu
from kdvfs_hw.guardian import guarded_clocks
from kdvfs_hw.lock_record import unfinished_record
from kdvfs_hw.measure.loop import Reading, measure
from kdvfs_hw.measure.observer import Observer
from kdvfs_hw.runs.isolated import held_below, highest_sm_mhz, why_void
from kdvfs_hw.timing import ThreadedVirtualTime
from kdvfs_hw.workloads.emulated import EmulatedWorkload, Operation
from subject import alternating, write_subject
from toy_gpu import SET_SM, toy_spec

from kdvfs_sim.core.clocks import AUTO, AUTO_CLOCKS, Clocks
from kdvfs_sim.core.device import ClockControl
from kdvfs_sim.core.errors import DeviceError, UnsupportedClocksError
from kdvfs_sim.core.schedule_file import write_schedule


@contextmanager
def watched_toy(
    folder: Path, *, alone: bool = False
) -> Iterator[tuple[EmulatedGpu, EmulatedWorkload, Observer]]:
    gpu = EmulatedGpu.create(folder, toy_spec(), time=ThreadedVirtualTime())
    work = EmulatedWorkload(gpu, [Operation("gemm", 3), Operation("copy", 2)])
    with open_emulated(gpu) as opened, Observer(opened.device, alone=alone) as observer:
        observer.await_period()
        yield gpu, work, observer
    gpu.close()


def read(folder: Path, meanwhile: Callable[[EmulatedGpu], None], clocks: Clocks = AUTO_CLOCKS) -> Reading:
    with watched_toy(folder) as (gpu, work, observer):
        if clocks.sm_mhz is not AUTO:
            gpu.request("sm", int(clocks.sm_mhz))
        meanwhile(gpu)
        return measure(work, "copy", observer, seconds=0.8, clocks=clocks)


def test_a_power_limit_lowered_meanwhile_marks_this_reading_and_those_after_it(tmp_path: Path) -> None:
    undisturbed = read(tmp_path / "a", lambda _: None)
    assert undisturbed.seen.marks == ()
    with watched_toy(tmp_path / "b") as (gpu, work, observer):
        gpu.script("power_limit", 300, after_s=0.6)
        first, second = (measure(work, "copy", observer, seconds=0.8) for _ in range(2))
        assert observer.device.power_limit_w() == 300
    for reading in (first, second):
        assert reading.seen.marks == ("the power limit is 300 W, and was 700 W",)
    assert second.seen.sm_mhz == pytest.approx(1000, abs=5)
    assert second.seen.capped == pytest.approx(1.0)


def test_a_lock_of_another_tool_in_the_middle_makes_a_reading_at_our_clocks_void(tmp_path: Path) -> None:
    ours = Clocks(1000, AUTO)
    assert why_void(read(tmp_path / "a", lambda _: None, ours).seen, ours) == ""

    def other_tool(gpu: EmulatedGpu) -> None:
        gpu.script("clipped", 600, after_s=0.7)

    assert "SM clock not kept: asked for 1000 MHz, read 600" in why_void(
        read(tmp_path / "b", other_tool, ours).seen, ours
    )


def test_a_lock_of_another_tool_at_auto_is_suspected_in_words(tmp_path: Path) -> None:
    with watched_toy(tmp_path / "c") as (_, _, observer):
        highest_mhz = highest_sm_mhz(observer.device)
    assert highest_mhz == 2000
    assert held_below([read(tmp_path / "a", lambda _: None)], highest_mhz) == ""
    locked = read(tmp_path / "b", lambda gpu: gpu.request("sm", 1200))
    assert "the SM clock stayed at 1200 MHz, below the highest (2000)" in held_below([locked], highest_mhz)


def test_a_process_that_begins_to_use_the_gpu_ends_a_controlled_run(tmp_path: Path) -> None:
    def run() -> None:
        with watched_toy(tmp_path / "gpu", alone=True) as (gpu, work, observer):
            gpu.script("foreign_process", after_s=0.5)
            measure(work, "copy", observer, seconds=5.0)

    with pytest.raises(DeviceError, match=r"another process \(4000001\) has begun to use the GPU"):
        run()


def test_and_the_clocks_are_the_others_at_once(tmp_path: Path) -> None:
    write_subject(tmp_path)
    write_schedule(alternating(), tmp_path / "schedule.json")
    gpu = EmulatedGpu.create(tmp_path / "gpu", _named_spec(tmp_path))
    run = start(
        *("validate", "schedule.json", "--trace", "step.csv", "--gpu", "gpu.toml", "--mode", "live"),
        *("--device", f"emulated:{gpu.folder}", "--allow-clock-control", "--settle", "1"),
        cwd=tmp_path,
    )
    while gpu.locks() == AUTO_CLOCKS:
        assert run.poll() is None, run.communicate()
        time.sleep(0.02)
    gpu.script("foreign_process")
    _, err = run.communicate(timeout=60)
    assert run.returncode == 6, err
    assert "has begun to use the GPU" in err
    assert [call for call in gpu.calls() if call["call"] == SET_SM]
    assert gpu.locks() == AUTO_CLOCKS
    assert unfinished_record((gpu.folder,), gpu.uuid) is None
    gpu.close()


def _named_spec(folder: Path) -> object:
    from kdvfs_hw.runs.subject import emulated_spec

    from kdvfs_sim.study.scene import build_scene
    from kdvfs_sim.trace.readers import read_trace

    return emulated_spec(build_scene(read_trace(str(folder / "step.csv")), gpu=str(folder / "gpu.toml")))


def test_a_reading_during_which_nobody_looked_says_so(tmp_path: Path) -> None:
    with watched_toy(tmp_path / "gpu") as (gpu, _, observer):
        clock = gpu.time
        begun_ns = clock.now_ns()
        clock.sleep_ns(300_000_000)
        with observer.suspended():
            clock.sleep_ns(1_500_000_000)
        clock.sleep_ns(300_000_000)
        marks = observer.between(begun_ns, clock.now_ns()).marks
    assert [mark.partition(" s:")[0] for mark in marks] == ["nothing was seen for 1.5"]


def test_a_run_that_was_stopped_for_a_while_says_so(tmp_path: Path) -> None:
    nap = "import time; print('begun', flush=True); time.sleep(5)"
    run = start("observe", "--device", "emulated:h200", "--", sys.executable, "-c", nap, cwd=tmp_path)
    assert run.stdout is not None
    assert run.stdout.readline() == "begun\n"
    os.kill(run.pid, signal.SIGSTOP)
    time.sleep(1.5)
    os.kill(run.pid, signal.SIGCONT)
    out, err = run.communicate(timeout=30)
    assert run.returncode == 0, err
    assert "nothing was seen for 1." in out


@contextmanager
def guarded(gpu: EmulatedGpu) -> Iterator[ClockControl]:
    with (
        open_device(f"emulated:{gpu.folder}") as opened,
        guarded_clocks(opened, allowed=True, say=lambda _: None) as control,
    ):
        yield control


def guardian_of(gpu: EmulatedGpu) -> int:
    left = unfinished_record((gpu.folder,), gpu.uuid)
    assert left is not None
    assert left.guardian_pid is not None
    return left.guardian_pid


def test_a_guardian_that_is_stopped_loses_its_run_which_releases_by_itself_and_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guardian, "_ANSWER_TIMEOUT_S", 0.3)
    gpu = EmulatedGpu.create(tmp_path / "gpu", toy_spec())
    pid = 0
    begun_s = 0.0

    def run() -> None:
        nonlocal pid, begun_s
        with guarded(gpu) as control:
            control.request_clocks(Clocks(1000, 1000))
            pid = guardian_of(gpu)
            stop(pid)
            begun_s = time.monotonic()
            control.request_clocks(Clocks(600, 1000))

    with pytest.raises(
        DeviceError, match=r"stopped by something else.* does not answer; the run has released the clocks"
    ):
        run()
    assert time.monotonic() - begun_s < 10
    assert gpu.locks() == AUTO_CLOCKS
    with pytest.raises(ProcessLookupError):  # asleep, it would have held the GPU against the next run
        os.kill(pid, signal.SIGCONT)
    assert unfinished_record((gpu.folder,), gpu.uuid) is None
    with guarded(gpu) as control:
        control.request_clocks(Clocks(600, 1000))
    assert gpu.locks() == AUTO_CLOCKS
    gpu.close()


def test_nobody_waits_for_a_stopped_guardian_to_release(tmp_path: Path) -> None:
    gpu = EmulatedGpu.create(tmp_path / "gpu", toy_spec())
    with guarded(gpu) as control:
        control.request_clocks(Clocks(1000, 1000))
        stop(guardian_of(gpu))
        begun_s = time.monotonic()
    assert time.monotonic() - begun_s < 5
    assert gpu.locks() == AUTO_CLOCKS
    assert unfinished_record((gpu.folder,), gpu.uuid) is None
    gpu.close()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exec sleep 30", r"wrote nothing .*: running\); is this machine too busy\? Try again"),
        ("kill -STOP $$", r"wrote nothing .*: stopped by something else\); something outside"),
        ("kill -KILL $$", r"wrote nothing .*: killed by signal 9\); something outside"),
        ("echo first >&2; echo no such module >&2; exit 3", r"\(ended with code 3\): no such module \("),
    ],
)
def test_of_a_guardian_that_does_not_start_what_is_known_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: str
) -> None:
    gpu = EmulatedGpu.create(tmp_path / "gpu", toy_spec())
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    (gpu.folder / "guardian.log").write_text("of an earlier one\n")
    monkeypatch.setattr(sys, "executable", str(fake))
    monkeypatch.setattr("kdvfs_hw.guardian._ARM_TIMEOUT_S", 0.5)
    with (
        open_emulated(gpu) as opened,
        pytest.raises(DeviceError, match=words),
        guarded_clocks(opened, allowed=True, say=lambda _: None),
    ):
        pass
    gpu.close()


def test_a_folder_in_which_the_guardian_cannot_log_is_one_line(tmp_path: Path) -> None:
    gpu = EmulatedGpu.create(tmp_path / "gpu", toy_spec())
    (tmp_path / "state" / "guardian.log").mkdir(parents=True)
    with (
        open_emulated(gpu) as opened,
        pytest.raises(DeviceError, match=r"guardian\.log: Is a directory; set KDVFS_STATE_DIR"),
        guarded_clocks(opened, allowed=True, folder=tmp_path / "state", say=lambda _: None),
    ):
        pass
    (tmp_path / "file").write_text("")
    with (
        open_emulated(gpu) as opened,
        pytest.raises(DeviceError, match=r"cannot be made .*; set KDVFS_STATE_DIR"),
        guarded_clocks(opened, allowed=True, folder=tmp_path / "file" / "state", say=lambda _: None),
    ):
        pass
    gpu.close()


def with_holes() -> TableBehaviour:
    """At memory 1000 only three SM clocks, as at the lower memory clocks of real GPUs."""
    whole = toy_spec().behaviour
    kept = [
        i for i, row in enumerate(whole.rows) if row.mem_mhz != 1000 or row.sm_mhz in (AUTO, 400, 800, 1400)
    ]
    at = {old: new for new, old in enumerate(kept)}

    def pick(values: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(values[i] for i in kept)

    loads = {
        name: replace(
            load,
            duration_ns=pick(load.duration_ns),
            power_w=pick(load.power_w),
            effective=tuple(at.get(load.effective[i], at[i]) for i in kept),
        )
        for name, load in whole.loads.items()
    }
    return replace(
        whole,
        rows=tuple(whole.rows[i] for i in kept),
        mhz=tuple(whole.mhz[i] for i in kept),
        idle_w=pick(whole.idle_w),
        loads=loads,
    )


def test_a_clock_table_with_holes_is_kept_to(tmp_path: Path) -> None:
    gpu = EmulatedGpu.create(tmp_path / "gpu", toy_spec(behaviour=with_holes()))
    page = "\n".join(to_lines(examine(f"emulated:{gpu.folder}")))
    assert "SM clocks 400..2000 MHz (8), memory 1000, 2000 MHz" in page
    with (
        open_emulated(gpu) as opened,
        guarded_clocks(opened, allowed=True, say=lambda _: None) as control,
    ):
        control.request_clocks(Clocks(800, 1000))
        with pytest.raises(UnsupportedClocksError, match="sm=1000,mem=1000 are not supported"):
            control.request_clocks(Clocks(1000, 1000))
        assert gpu.locks() == Clocks(800, 1000)
        control.request_clocks(Clocks(1000, 2000))
    assert gpu.locks() == AUTO_CLOCKS
    gpu.close()


def test_persistence_mode_off_is_said_and_stops_nothing(tmp_path: Path) -> None:
    gpu = EmulatedGpu.create(tmp_path / "gpu", toy_spec(), faults=["no_persistence"])
    assert "persistence mode is off" in "\n".join(to_lines(examine(f"emulated:{gpu.folder}")))
    with (
        open_emulated(gpu) as opened,
        guarded_clocks(opened, allowed=True, say=lambda _: None) as control,
    ):
        control.request_clocks(Clocks(800, AUTO))
    assert gpu.locks() == AUTO_CLOCKS
    gpu.close()
