"""The state machine for clock controls: the fake device passes, broken controls do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from kdvfs_sim.core.clocks import AUTO_CLOCKS, Clocks
from kdvfs_sim.core.device import AcceptedRequest
from kdvfs_sim.testing.fake_device import FakeDevice
from kdvfs_sim.testing.machines import Controlled, control_machine, fake_control

TestFakeControl = control_machine(fake_control).TestCase
TestFakeControl.settings = settings(max_examples=200, stateful_step_count=20)


class Snaps(FakeDevice):
    """Takes the nearest clocks for those that are not listed."""

    def request_clocks(self, clocks: Clocks, /) -> AcceptedRequest:
        return super().request_clocks(self.clock_table().nearest(clocks))


class Repeats(FakeDevice):
    """Asks the driver again for what is the target already."""

    def request_clocks(self, clocks: Clocks, /) -> AcceptedRequest:
        return replace(super().request_clocks(clocks), n_calls=1)


class ForgetsToLand(FakeDevice):
    """Accepts a second request and stays at the first."""

    def request_clocks(self, clocks: Clocks, /) -> AcceptedRequest:
        before = self._pending
        made = super().request_clocks(clocks)
        if before[1] != AUTO_CLOCKS:
            self._pending = before
        return made


class BelievesItself(FakeDevice):
    """Takes a request that was cut off for one that was made."""

    def request_clocks(self, clocks: Clocks, /) -> AcceptedRequest:
        try:
            return super().request_clocks(clocks)
        except KeyboardInterrupt:
            self.target = clocks
            raise


@pytest.mark.parametrize(
    "broken", [Snaps, Repeats, ForgetsToLand, BelievesItself], ids=lambda cls: cls.__name__
)
def test_a_broken_control_is_found(broken: Any) -> None:
    def open_broken() -> Controlled:
        return fake_control(broken())

    with pytest.raises(AssertionError):
        run_state_machine_as_test(
            control_machine(open_broken),
            settings=settings(max_examples=300, database=None, phases=(Phase.generate,)),
        )


def test_a_reset_is_heard_after_requests_were_not() -> None:
    device = FakeDevice()
    opened = fake_control(device)
    opened.inject("lock_ignored")
    device.request_clocks(device.clock_table().pairs[0])
    device.request_clocks(AUTO_CLOCKS)
    opened.heal("lock_ignored")
    assert device.request_clocks(AUTO_CLOCKS).n_calls == 0
    assert device.reset_clocks().n_calls > 0
