"""Requests, faults, work and resets in any order: driver, controller and journal stay consistent."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kdvfs_hw.devices import open_emulated
from kdvfs_hw.emulator.gpu import EmulatedGpu
from kdvfs_hw.nvml_control import GuardedClockControl, release_clocks
from toy_gpu import MEM_MHZ, SM_MHZ, toy_spec

from kdvfs_sim.core.clocks import AUTO, AUTO_CLOCKS, Clocks
from kdvfs_sim.core.errors import (
    DeviceError,
    DevicePermissionError,
    DeviceUnsupportedError,
    UnsupportedClocksError,
)
from kdvfs_sim.testing.fake_device import VirtualTime

SCRIPTED = ("no_permission", "no_mem_lock", "lock_ignored", "clipped", "unknown_error", "throttling")
REFUSING = {"no_permission", "unknown_error"}


class Notes:
    """A guard for tests: notes what it is told, and can be gone."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Clocks | None]] = []
        self.gone = False

    def before(self, clocks: Clocks, /) -> None:
        self._note("before", clocks)

    def after(self, held: Clocks | None, /) -> None:
        self._note("after", held)

    def _note(self, what: str, clocks: Clocks | None) -> None:
        if self.gone:
            raise DeviceError("the guard is gone")
        self.told.append((what, clocks))


class ControlMachine(RuleBasedStateMachine):
    """Virtual time, real pynvml. ``locked`` is what a person with a pencil would believe."""

    @initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.stack = ExitStack()
        spec = toy_spec(host_call_ns=1_000_000, switching_ns=7_000_000)
        self.gpu = EmulatedGpu.create(self.folder / "gpu", spec, time=VirtualTime())
        self.device = self.stack.enter_context(open_emulated(self.gpu)).device
        self.notes = Notes()
        self.control = GuardedClockControl(self.device, self.notes)
        self.table = self.device.clock_table()
        self.locked = {"sm": AUTO, "mem": AUTO}
        self.faults: set[str] = set()
        self.energy_mj = 0
        self.n_works = 0

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            for fault in self.faults:
                self.gpu.heal(fault)
            release = release_clocks(self.device, ())
            assert release.complete
            assert self.gpu.locks() == AUTO_CLOCKS
            self.stack.close()
            self.gpu.close()
            shutil.rmtree(self.folder)

    @rule(sm=st.sampled_from([AUTO, *SM_MHZ]), mem=st.sampled_from([AUTO, *MEM_MHZ]))
    def request(self, sm: int, mem: int) -> None:
        clocks = Clocks(sm, mem)
        calls_before = len(self.gpu.calls())
        try:
            request = self.control.request_clocks(clocks)
        except (DevicePermissionError, DeviceUnsupportedError):
            assert self.faults & {"no_permission", "no_mem_lock"}
            if (
                "no_permission" not in self.faults
            ):  # the SM clock comes first, and was set unless it was before
                self._note_accepted("sm", sm, made=self._was_called("Gpu", calls_before))
            assert self.control.target is None
        except DeviceError:
            assert self.faults & {"unknown_error"} or self.notes.gone
        else:
            assert not request.n_calls or not self.faults & REFUSING
            assert self.control.target == self.control.requested == clocks
            made = [c for c in self.gpu.calls()[calls_before:] if "Locked" in str(c["call"])]
            assert request.n_calls == len(made)
            assert (request.n_calls == 0) == (request.returned_ns == request.issued_ns)
            self._note_accepted("sm", sm, made=self._was_called("Gpu", calls_before))
            self._note_accepted("mem", mem, made=self._was_called("Memory", calls_before))
        if not self.notes.gone:
            kinds = [what for what, _ in self.notes.told]
            assert kinds == ["before", "after"] * (len(kinds) // 2)  # nothing untold, however it ended

    def _was_called(self, what: str, since: int) -> bool:
        return any(f"{what}Locked" in str(call["call"]) for call in self.gpu.calls()[since:])

    def _note_accepted(self, domain: str, value: object, *, made: bool) -> None:
        if made and not ("lock_ignored" in self.faults and value is not AUTO):
            self.locked[domain] = value

    @rule()
    def reset(self) -> None:
        release = release_clocks(self.device, {Clocks(*self.locked.values())})
        refuses, no_mem_lock = self.faults & REFUSING, "no_mem_lock" in self.faults
        stuck = no_mem_lock and self.locked["mem"] is not AUTO  # it took the lock, and now knows of none
        assert release.complete == (not refuses and not stuck)
        if not refuses:
            self.locked = {"sm": AUTO, "mem": self.locked["mem"] if no_mem_lock else AUTO}
        self.control._forget()

    @rule(ms=st.integers(0, 3000))
    def wait(self, ms: int) -> None:
        self.gpu.time.sleep_ns(ms * 1_000_000)

    @rule(kind=st.sampled_from(["gemm", "copy"]), n=st.integers(0, 500))
    def launch(self, kind: str, n: int) -> None:
        self.gpu.launch(kind, n)
        self.n_works += 1

    @rule(name=st.sampled_from(SCRIPTED))
    def break_it(self, name: str) -> None:
        if name not in self.faults:
            self.gpu.script(name, 1 if name == "no_permission" else None)
            self.faults.add(name)

    @precondition(lambda self: self.faults)
    @rule(data=st.data())
    def heal(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.faults)))
        self.gpu.heal(name)
        self.faults.discard(name)

    @precondition(lambda self: not self.faults)
    @rule()
    def lose_the_guard(self) -> None:
        self.notes.gone = True
        try:
            self.control.beat()
        except DeviceError:
            self.locked = {"sm": AUTO, "mem": AUTO}
        else:
            raise AssertionError("a lost guard went unnoticed")
        self.notes.gone = False

    @invariant()
    def driver_and_pencil_agree(self) -> None:
        if hasattr(self, "gpu"):
            assert self.gpu.locks() == Clocks(self.locked["sm"], self.locked["mem"])

    @invariant()
    def the_guard_knows_of_every_lock(self) -> None:
        if hasattr(self, "gpu"):
            held = self.notes.told[-1][1] if self.notes.told else None
            for domain in ("sm_mhz", "mem_mhz"):
                locked = getattr(self.gpu.locks(), domain)
                # a driver may accept a change and keep the old lock: which domain is held must be known
                assert locked is AUTO or (held is not None and getattr(held, domain) is not AUTO)

    @invariant()
    def a_landed_lock_is_an_upper_bound(self) -> None:
        if hasattr(self, "gpu"):
            state = self.gpu.view()
            bound = state.in_force["sm"]
            assert state.operating.sm_mhz <= (bound if isinstance(bound, int) else max(SM_MHZ))
            assert state.operating.sm_mhz >= min(SM_MHZ)
            assert state.operating.power_w <= 700

    @invariant()
    def energy_never_goes_back(self) -> None:
        if hasattr(self, "gpu") and "unknown_error" not in self.faults:
            energy_mj = self.device.energy_counter().energy_mj
            assert energy_mj >= self.energy_mj
            self.energy_mj = energy_mj

    @invariant()
    def the_journal_alone_gives_the_same_gpu(self) -> None:
        if hasattr(self, "gpu"):
            again = EmulatedGpu(self.gpu.folder, time=self.gpu.time)
            ours, theirs = self.gpu.view(), again.view()
            for part in (
                "t_ns",
                "energy_j",
                "operating",
                "in_force",
                "accepted",
                "pending",
                "queue",
                "ended",
            ):
                assert getattr(ours, part) == getattr(theirs, part), part
            assert ours.temperature_c == theirs.temperature_c
            again.close()


TestControlMachine = ControlMachine.TestCase
TestControlMachine.settings = settings(max_examples=settings().max_examples // 2, stateful_step_count=25)


def test_a_release_that_may_have_failed_leaves_the_old_lock_on_the_books(open_toy: Any) -> None:
    opened = open_toy()
    notes = Notes()
    control = GuardedClockControl(opened.device, notes)
    control.request_clocks(Clocks(600, AUTO))
    opened.emulated.script("unknown_error")
    with pytest.raises(DeviceError):
        control.request_clocks(AUTO_CLOCKS)
    assert notes.told[-1] == ("after", Clocks(600, AUTO))
    assert control.target is None


def test_a_request_outside_the_table_never_reaches_guard_or_driver(open_toy: Any) -> None:
    opened = open_toy()
    notes = Notes()
    control = GuardedClockControl(opened.device, notes)
    with pytest.raises(UnsupportedClocksError, match="nearest: sm=1400,mem=auto"):
        control.request_clocks(Clocks(1390, AUTO))
    assert notes.told == []
    assert not [call for call in opened.emulated.calls() if "Locked" in call["call"]]


def test_an_interrupted_change_is_asked_again_and_counts_as_held(
    open_toy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_toy()
    notes = Notes()
    control = GuardedClockControl(opened.device, notes)
    control.request_clocks(AUTO_CLOCKS)
    log = EmulatedGpu.log_call

    def interrupt(gpu: EmulatedGpu, name: str, args: Any = ()) -> None:
        log(gpu, name, args)
        if "SetMemory" in name:
            raise KeyboardInterrupt

    monkeypatch.setattr(EmulatedGpu, "log_call", interrupt)
    with pytest.raises(KeyboardInterrupt):
        control.request_clocks(Clocks(1000, 1000))
    monkeypatch.undo()
    assert notes.told[-1] == ("after", Clocks(1000, 1000))
    assert control.target is None
    assert control.request_clocks(Clocks(1000, 1000)).n_calls == 1
