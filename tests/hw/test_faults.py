"""The fault table: what each scripted fault does to doctor, to a reading, and to a controlled run.

A controlled run arms the guardian, loads the GPU, asks for clocks, reads back, and ends. Whatever
the fault, it ends with one line of error or none, and with the clocks released, or with a record
that ``kdvfs hw reset`` repairs once the fault has passed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kdvfs_hw.devices import open_emulated
from kdvfs_hw.doctor import examine
from kdvfs_hw.emulator import structs
from kdvfs_hw.emulator.faults import FAULTS
from kdvfs_hw.emulator.gpu import EmulatedGpu
from kdvfs_hw.emulator.library import EmulatedLibrary
from kdvfs_hw.guardian import guarded_clocks
from kdvfs_hw.lock_record import unfinished_record
from kdvfs_hw.nvml_control import release_clocks
from kdvfs_hw.readback import await_clocks
from kdvfs_hw.reset import reset
from toy_gpu import RESET_SM, SET_SM, toy_spec

from kdvfs_sim.core.clocks import AUTO, AUTO_CLOCKS, Clocks
from kdvfs_sim.core.device import Device, Feature
from kdvfs_sim.core.errors import (
    ClocksNotReachedError,
    DeviceError,
    DeviceLostError,
    DevicePermissionError,
    DeviceUnsupportedError,
    KdvfsError,
)

WANTED = Clocks(1000, 1000)


@dataclass(frozen=True)
class Row:
    """One fault. ``doctor``: the features that are not a plain yes, ``run``: how a controlled run ends."""

    doctor: dict[Feature, str]
    run: type[KdvfsError] | None
    says: str = ""
    reading: Callable[[Device], Any] | None = None
    wanted: Clocks = WANTED
    value: float | None = None
    after_lock: bool = False
    left_locked: bool = False


def energy(device: Device) -> Any:
    return device.energy_counter()


TABLE = {
    "no_permission": Row(
        {Feature.LOCK_SM: "needs rights", Feature.LOCK_MEM: "needs rights"},
        DevicePermissionError,
        "run as root",
    ),
    "no_permission=1": Row({}, DevicePermissionError, "Insufficient Permissions", value=1),
    "no_lock": Row({Feature.LOCK_SM: "no", Feature.LOCK_MEM: "no"}, DeviceUnsupportedError, "Not Supported"),
    "no_mem_lock": Row({Feature.LOCK_MEM: "no"}, None, wanted=Clocks(1000, AUTO)),
    "no_persistence": Row({}, None),
    "mig": Row({Feature.LOCK_SM: "no", Feature.LOCK_MEM: "no"}, DeviceUnsupportedError, "MIG is on"),
    "no_energy": Row({Feature.ENERGY_COUNTER: "no"}, None, reading=energy),
    "no_power": Row(
        {Feature.INSTANT_POWER: "no", Feature.AVERAGE_POWER: "no"}, None, reading=lambda d: d.power("instant")
    ),
    "no_reasons": Row({Feature.THROTTLE_REASONS: "no"}, None, reading=lambda d: d.throttle_reasons()),
    "lock_ignored": Row({}, ClocksNotReachedError, "accepted but not reached: observed sm=1600,mem=2000"),
    "clipped": Row({}, ClocksNotReachedError, "observed sm=800,mem=1000", value=800),
    "lock_lost": Row({}, ClocksNotReachedError, "observed sm=1600", value=0.05),
    "reset_ignored": Row({}, DeviceError, "may still be locked: SM clock unmoved", left_locked=True),
    "mem_moves_sm": Row({}, ClocksNotReachedError, "observed sm=880,mem=1000"),
    "frozen_counter": Row({}, None),
    "backward_counter": Row({}, None),
    "counter_gain": Row({}, None),
    "lost": Row({}, DeviceLostError, "fallen off the bus", after_lock=True, left_locked=True),
    "unknown_error": Row({}, DeviceLostError, "Unknown Error", after_lock=True, left_locked=True),
    "throttling": Row({}, ClocksNotReachedError, "hw_thermal_slowdown"),
    "foreign_process": Row({}, DeviceError, "start it with --pid=host"),
    "slower": Row({}, None),
    "power_limit": Row({}, None, wanted=Clocks(400, 1000), value=300),
    "slow_switching": Row({}, ClocksNotReachedError, "observed sm=1600,mem=2000", value=200),
}


def test_the_table_has_a_row_for_every_fault() -> None:
    assert {name.partition("=")[0] for name in TABLE} == set(FAULTS)


@pytest.fixture
def gpu(tmp_path: Path) -> Any:
    made = EmulatedGpu.create(tmp_path / "gpu", toy_spec(host_call_ns=1_000_000, switching_ns=3_000_000))
    yield made
    made.close()


def script(gpu: EmulatedGpu, name: str) -> None:
    gpu.script(name.partition("=")[0], TABLE[name].value)


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if not row.after_lock])
def test_doctor(gpu: EmulatedGpu, name: str) -> None:
    script(gpu, name)
    (found,) = examine(f"emulated:{gpu.folder}").gpus
    assert found.error is None
    assert found.capabilities is not None
    not_plain = {f: c.support for f, c in found.capabilities.items() if c.support != "yes"}
    assert not_plain == TABLE[name].doctor
    assert all(found.capabilities[feature].remedy for feature in not_plain)


@pytest.mark.parametrize("name", ["lost", "unknown_error"])
def test_doctor_of_a_gpu_that_does_not_answer(gpu: EmulatedGpu, name: str) -> None:
    script(gpu, name)
    findings = examine(f"emulated:{gpu.folder}")
    assert not findings.usable
    assert findings.gpus[0].error is not None
    assert "\n" not in findings.gpus[0].error


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row.reading is not None])
def test_a_reading_that_is_not_there_is_an_error(gpu: EmulatedGpu, name: str) -> None:
    script(gpu, name)
    reading = TABLE[name].reading
    assert reading is not None
    with open_emulated(gpu) as opened, pytest.raises(DeviceUnsupportedError, match="Not Supported"):
        reading(opened.device)


def controlled_run(gpu: EmulatedGpu, name: str) -> None:
    row = TABLE[name]
    with open_emulated(gpu) as opened:
        if not row.after_lock:
            script(gpu, name)
        with guarded_clocks(opened, allowed=True, say=lambda _: None) as control:
            gpu.launch("gemm", 1e6)
            time.sleep(0.01)
            control.request_clocks(row.wanted)
            if row.after_lock:
                script(gpu, name)
            await_clocks(opened.device, row.wanted, timeout_s=0.3)
            time.sleep(0.1)
            await_clocks(opened.device, row.wanted, timeout_s=0.0)  # the lock may be lost on the way


@pytest.mark.parametrize("name", list(TABLE))
def test_a_controlled_run(gpu: EmulatedGpu, name: str) -> None:
    row = TABLE[name]
    if row.run is None:
        controlled_run(gpu, name)
    else:
        with pytest.raises(row.run) as caught:
            controlled_run(gpu, name)
        assert row.says in str(caught.value)
        assert "\n" not in str(caught.value)
        assert caught.value.exit_code == 6
    assert (unfinished_record((gpu.folder,), gpu.uuid) is not None) == row.left_locked
    gpu.heal(name.partition("=")[0])
    if row.left_locked:
        wait_for_the_guardian(gpu)
        (outcome,) = reset(f"emulated:{gpu.folder}", allowed=True)
        assert outcome.complete
    assert unfinished_record((gpu.folder,), gpu.uuid) is None
    assert gpu.locks() == AUTO_CLOCKS


def wait_for_the_guardian(gpu: EmulatedGpu) -> None:
    """It goes on trying for a while after the run, and lets go of its record at the end."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        left = unfinished_record((gpu.folder,), gpu.uuid)
        if left is None or left.guardian_pid is None:
            return
        time.sleep(0.05)
    raise AssertionError("the guardian never ended")


def test_a_refusal_without_a_lock_does_not_claim_that_clocks_are_locked(gpu: EmulatedGpu) -> None:
    with pytest.raises(DevicePermissionError) as caught:
        controlled_run(gpu, "no_permission=1")
    assert not getattr(caught.value, "__notes__", [])
    assert not [call for call in gpu.calls() if "Reset" in call["call"]]


def test_preflight_refuses_without_reaching_a_setter(gpu: EmulatedGpu) -> None:
    for name in ("no_permission", "no_lock", "foreign_process"):
        with pytest.raises(DeviceError):
            controlled_run(gpu, name)
        gpu.heal(name)
    assert not [call for call in gpu.calls() if "Set" in call["call"] or "Reset" in call["call"]]


def test_an_error_that_passes_does_not_keep_the_guardian_from_releasing(gpu: EmulatedGpu) -> None:
    with (
        open_emulated(gpu) as opened,
        guarded_clocks(opened, allowed=True, say=lambda _: None) as control,
    ):
        control.request_clocks(WANTED)
        gpu.script("unknown_error", for_s=0.3)
    assert gpu.locks() == AUTO_CLOCKS
    assert unfinished_record((gpu.folder,), gpu.uuid) is None


def test_an_unreleased_lock_is_a_note_on_the_first_error_not_in_its_place(gpu: EmulatedGpu) -> None:
    said: list[str] = []

    def run() -> None:
        with (
            open_emulated(gpu) as opened,
            guarded_clocks(opened, allowed=True, say=said.append) as control,
        ):
            control.request_clocks(WANTED)
            gpu.script("lost")
            raise ZeroDivisionError("the workload's own error")

    with pytest.raises(ZeroDivisionError) as caught:
        run()
    assert "clocks may still be locked" in caught.value.__notes__[0]
    assert "clocks may still be locked" in said[-1]
    gpu.heal("lost")
    wait_for_the_guardian(gpu)
    assert gpu.locks() == AUTO_CLOCKS  # the guardian went on trying after the run had ended


def test_a_slowdown_at_the_locked_clock_is_not_taken_for_a_lock_that_stays(open_toy: Any) -> None:
    opened = open_toy()
    opened.device.ask(SET_SM, 600, 600, may_change={SET_SM})
    opened.emulated.script("throttling", 600)
    opened.emulated.time.sleep_ns(100_000_000)
    release = release_clocks(opened.device, {Clocks(600, AUTO)})
    assert (release.sm, release.complete) == ("accepted", True)


def test_what_a_release_says_of_clocks_that_were_locked(open_toy: Any) -> None:
    opened = open_toy()
    for sm_mhz, outcome in ((600, "moved"), (2000, "highest")):
        opened.device.ask(SET_SM, sm_mhz, sm_mhz, may_change={SET_SM})
        opened.emulated.time.sleep_ns(100_000_000)
        assert release_clocks(opened.device, {Clocks(sm_mhz, AUTO)}).sm == outcome
    opened.emulated.script("no_mem_lock")
    assert release_clocks(opened.device, ()).mem == "not supported"


def test_a_lock_that_was_taken_and_cannot_be_given_back_is_not_released(
    open_toy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that sets, and answers NOT_SUPPORTED to the reset: nothing of it is complete."""
    opened = open_toy()
    opened.device.ask(SET_SM, 600, 600, may_change={SET_SM})
    opened.emulated.time.sleep_ns(100_000_000)
    answer = EmulatedLibrary._answer

    def without_reset(self: Any, name: str, *rest: Any) -> int:
        return structs.NOT_SUPPORTED if name == RESET_SM else answer(self, name, *rest)

    with monkeypatch.context() as context:
        context.setattr(EmulatedLibrary, "_answer", without_reset)
        release = release_clocks(opened.device, {Clocks(600, AUTO)})
        assert (release.sm, release.complete) == ("refused", False)
        assert "Not Supported" in str(release)
        assert release_clocks(opened.device, ()).complete  # where nothing of ours was locked
    assert release_clocks(opened.device, {Clocks(600, AUTO)}).sm == "moved"
