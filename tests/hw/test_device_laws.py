"""The emulated GPU keeps the laws of a Device, and its guarded control those of a ClockControl."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from kdvfs_hw.devices import open_emulated
from kdvfs_hw.emulator.gpu import EmulatedGpu
from kdvfs_hw.nvml_control import GuardedClockControl
from test_control_machine import Notes
from toy_gpu import toy_spec

from kdvfs_sim.core.device import Device
from kdvfs_sim.testing.fake_device import VirtualTime
from kdvfs_sim.testing.law import Law, laws_of
from kdvfs_sim.testing.machines import Controlled, control_machine
from kdvfs_sim.testing.run import report, run_law

# what each breaks is what it is for
BREAKS = {
    "backward_counter=50": {"the_energy_counter_never_goes_back"},
    "no_energy": set(),
    "no_power": set(),
    "no_reasons": set(),
    "frozen_counter": set(),
    "throttling": set(),
    "lost": set(),
}


@contextmanager
def toy(*faults: str) -> Iterator[Device]:
    folder = Path(tempfile.mkdtemp())
    gpu = EmulatedGpu.create(folder / "gpu", toy_spec(), time=VirtualTime(), faults=faults)
    try:
        with open_emulated(gpu) as opened:
            yield opened.device
    finally:
        gpu.close()
        shutil.rmtree(folder)


@pytest.mark.parametrize("law", laws_of("device"), ids=lambda law: law.name)
def test_a_healthy_gpu_keeps_every_law(law: Law) -> None:
    verdict = run_law(law, toy, n_examples=15)
    assert verdict.outcome == "held", report(verdict)


@pytest.mark.parametrize("fault", BREAKS)
def test_a_broken_gpu_breaks_only_what_its_fault_is_about(fault: str) -> None:
    verdicts = [run_law(law, lambda: toy(fault), n_examples=15, shrink=False) for law in laws_of("device")]
    assert {verdict.law.name for verdict in verdicts if verdict.outcome == "broken"} == BREAKS[fault]


def guarded() -> Controlled:
    """A guarded control of an emulated GPU, with the faults that make it refuse or have no effect."""
    stack = ExitStack()
    folder = Path(tempfile.mkdtemp())
    stack.callback(shutil.rmtree, folder)
    gpu = EmulatedGpu.create(
        folder / "gpu", toy_spec(host_call_ns=1_000_000, switching_ns=7_000_000), time=VirtualTime()
    )
    stack.callback(gpu.close)
    opened: Any = stack.enter_context(open_emulated(gpu))

    def inject(name: str) -> None:
        gpu.script(name, 1 if name == "no_permission" else None)

    @contextmanager
    def interrupted() -> Iterator[None]:
        log = gpu.log_call

        def interrupt(name: str, args: Any = ()) -> None:
            log(name, args)
            if "Set" in name:
                raise KeyboardInterrupt

        gpu.log_call = interrupt  # type: ignore[method-assign]
        try:
            yield
        finally:
            del gpu.log_call

    return Controlled(
        device=opened.device,
        control=GuardedClockControl(opened.device, Notes()),
        settle_ns=2_000_000_000,
        refusing=frozenset({"no_permission", "unknown_error"}),
        deaf=frozenset({"lock_ignored", "reset_ignored"}),
        inject=inject,
        heal=gpu.heal,
        interrupted=interrupted,
        close=stack.close,
    )


TestGuardedControl = control_machine(guarded).TestCase
TestGuardedControl.settings = settings(
    max_examples=max(5, settings().max_examples // 5), stateful_step_count=20
)
