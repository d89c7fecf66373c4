"""A state machine that tries any ClockControl: requests, faults, time and resets in any order.

``control_machine(open)`` gives a Hypothesis state machine; its ``TestCase`` runs it in any test runner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kdvfs_sim.core.clocks import AUTO, AUTO_CLOCKS, Clocks
from kdvfs_sim.core.device import ClockControl, Device
from kdvfs_sim.core.errors import DeviceError, UnsupportedClocksError
from kdvfs_sim.testing.fake_device import DeviceFault, FakeDevice


@dataclass(frozen=True, kw_only=True)
class Controlled:
    """A device, what controls its clocks, and how to break it: ``inject(name)`` until ``heal(name)``.

    ``refusing``: faults under which a request may raise. ``deaf``: faults under which an accepted request may
    have no effect. ``settle_ns``: after that long without a request or a fault the device runs at its target.
    ``interrupted()``: within it a request is cut off by KeyboardInterrupt; None if it cannot be.
    ``close`` ends it.
    """

    device: Device
    control: ClockControl
    settle_ns: int
    refusing: frozenset[str] = frozenset()
    deaf: frozenset[str] = frozenset()
    inject: Callable[[str], None] = lambda _: None
    heal: Callable[[str], None] = lambda _: None
    interrupted: Callable[[], AbstractContextManager[None]] | None = None
    close: Callable[[], None] = lambda: None


OpenControlled: TypeAlias = Callable[[], Controlled]


def control_machine(open_controlled: OpenControlled) -> type[RuleBasedStateMachine]:
    """The state machine for what ``open_controlled`` opens; each run opens one of its own.

    It holds a control to this: a request for clocks not listed is refused before anything changes; an
    accepted request is the target, and the GPU gets there; a refused one leaves the target unknown or as it
    was; a request for the target makes no call; once faults are healed, a reset gives the clocks back to the
    driver; the energy counter never goes back.
    """

    class ControlMachine(RuleBasedStateMachine):
        @initialize()
        def start(self) -> None:
            self.opened = open_controlled()
            self.device, self.control = self.opened.device, self.opened.control
            self.table = self.device.clock_table()
            self.faults: set[str] = set()
            self.ever_deaf = False  # has a request gone unheard since the last reset?
            self.energy_mj = 0

        def teardown(self) -> None:
            if hasattr(self, "opened"):
                try:
                    for fault in sorted(self.faults):
                        self.opened.heal(fault)
                    self.control.reset_clocks()
                    assert self.control.target == AUTO_CLOCKS
                finally:
                    self.opened.close()

        @rule(data=st.data())
        def request(self, data: st.DataObject) -> None:
            clocks = data.draw(st.sampled_from(self.table.pairs))
            before = self.control.target
            try:
                made = self.control.request_clocks(clocks)
            except DeviceError:
                assert self.faults & self.opened.refusing, "a healthy device refused a request"
                assert self.control.target in (None, before)
            else:
                assert made.clocks == self.control.target == self.control.requested == clocks
                assert made.issued_ns <= made.returned_ns
                assert before != clocks or made.n_calls == 0
                self.ever_deaf |= made.n_calls > 0 and bool(self.faults & self.opened.deaf)

        @precondition(lambda self: self.opened.interrupted is not None and not self.faults)
        @rule(data=st.data())
        def cancel_a_request(self, data: st.DataObject) -> None:
            assert self.opened.interrupted is not None
            clocks, before = data.draw(st.sampled_from(self.table.pairs)), self.control.target
            try:
                with self.opened.interrupted():
                    self.control.request_clocks(clocks)
            except KeyboardInterrupt:
                # nobody knows how far it came: it must be asked again, not taken for done
                assert self.control.target is None or before == clocks
            assert self.control.request_clocks(clocks).clocks == self.control.target == clocks

        @rule()
        def request_the_target_again(self) -> None:
            target = self.control.target
            if target is not None:
                assert self.control.request_clocks(target).n_calls == 0

        @rule(sm_mhz=st.integers(1, 5000))
        def request_what_is_not_listed(self, sm_mhz: int) -> None:
            clocks, before = Clocks(sm_mhz, AUTO), (self.control.target, self.control.requested)
            if clocks not in self.table:
                try:
                    self.control.request_clocks(clocks)
                except UnsupportedClocksError:
                    assert (self.control.target, self.control.requested) == before
                except DeviceError:  # of a device that answers nobody, before or after it looks at the clocks
                    assert self.faults & self.opened.refusing
                else:
                    raise AssertionError(f"{clocks} is not listed and was accepted")

        @rule()
        def reset(self) -> None:
            try:
                self.control.reset_clocks()
            except DeviceError:
                assert self.faults & self.opened.refusing
            else:
                assert self.control.target == AUTO_CLOCKS
                self.ever_deaf = bool(self.faults & self.opened.deaf)

        @rule(ms=st.integers(0, 50))
        def wait(self, ms: int) -> None:
            self.device.time.sleep_ns(ms * 1_000_000)

        @precondition(lambda self: bool(self.opened.refusing | self.opened.deaf))
        @rule(data=st.data())
        def break_it(self, data: st.DataObject) -> None:
            name = data.draw(st.sampled_from(sorted(self.opened.refusing | self.opened.deaf)))
            if name not in self.faults:
                self.opened.inject(name)
                self.faults.add(name)

        @precondition(lambda self: bool(self.faults))
        @rule(data=st.data())
        def mend_it(self, data: st.DataObject) -> None:
            name = data.draw(st.sampled_from(sorted(self.faults)))
            self.opened.heal(name)
            self.faults.discard(name)

        @precondition(lambda self: not self.faults and not self.ever_deaf)
        @rule()
        def settle(self) -> None:
            target = self.control.target
            self.device.time.sleep_ns(self.opened.settle_ns)
            if target is not None:
                observed = self.device.observed_clocks()
                assert observed.off_by_mhz(target) == 0, f"{observed} long after {target} was accepted"

        @invariant()
        def what_is_read_makes_sense(self) -> None:
            if hasattr(self, "opened") and not self.faults:
                observed = self.device.observed_clocks()
                assert min(observed.sm_mhz, observed.mem_mhz) > 0
                energy_mj = self.device.energy_counter().energy_mj
                assert energy_mj >= self.energy_mj
                self.energy_mj = energy_mj

    return ControlMachine


def fake_control(device: FakeDevice | None = None) -> Controlled:
    """A FakeDevice, which controls itself."""
    device = device or FakeDevice()

    def inject(name: str) -> None:
        device.faults = (*device.faults, DeviceFault(name=name))

    def heal(name: str) -> None:
        device.faults = tuple(fault for fault in device.faults if fault.name != name)

    @contextmanager
    def interrupted() -> Iterator[None]:
        device.interrupt = True
        try:
            yield
        finally:
            device.interrupt = False

    return Controlled(
        device=device,
        control=device,
        settle_ns=10_000_000,
        refusing=frozenset({"lost", "no_permission", "unknown_error"}),
        deaf=frozenset({"lock_ignored", "throttled"}),
        inject=inject,
        heal=heal,
        interrupted=interrupted,
    )
