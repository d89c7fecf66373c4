"""The dynamic governor's own clock moves on one device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kdvfs_sim.core.governor import DynamicGovernor
from kdvfs_sim.replay.budget import Allowance
from kdvfs_sim.replay.phases import CLOCKS
from kdvfs_sim.replay.states import States

if TYPE_CHECKING:
    from kdvfs_sim.replay.device import Device
    from kdvfs_sim.replay.engine import Due


class Governed:
    """The effective row of a device whose governor lags.

    ``sense_ns`` after the steady answer to the load has changed the governor looks at the load of that
    moment and starts to move there; moves under way go on until then. A lock that lands acts at once:
    its switching time runs until the device is at the new clocks. With a power budget the answer is
    not the steady one but that to the allowance of the moment, looked at again every tick.
    """

    def __init__(self, governor: DynamicGovernor, device: Device, row: int) -> None:
        self.row = row
        self._governor = governor
        self._device = device
        self._states = device.engine.states
        self._aim = row
        self._lock = row
        self._kinds: tuple[int, ...] = ()
        self._paths: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self._sensing = False
        self._moves = 0  # counts decisions; steps of an earlier one are void
        self._allowance = None
        if governor.budget is not None and self._states.cap_w is not None:
            self._allowance = Allowance(governor.budget, self._states, row)
            device.engine.at(governor.budget.tick_ns, CLOCKS, self._on_tick)

    def settle(self, kinds: tuple[int, ...], lock: int, now: int, stalled: bool) -> int:
        """The effective row from now on; plans a look at the load if that is not the answer to it."""
        row = self._settle(kinds, lock, now)
        if self._allowance is not None:
            self._allowance.draw(now, kinds, row, stalled)
        return row

    def _settle(self, kinds: tuple[int, ...], lock: int, now: int) -> int:
        target = self._answer(kinds, lock)
        self._kinds = kinds
        if lock != self._lock or (target != self.row and self._is_instant(target)):
            self._lock = lock
            self._moves += 1
            self.row = self._aim = target
        elif target != self._aim and not self._sensing:
            self._sensing = True
            self._device.engine.at(now + self._governor.sense_ns, CLOCKS, self._on_sense)
        return self.row

    def _answer(self, kinds: tuple[int, ...], lock: int) -> int:
        if self._allowance is None:
            return self._states.resolve(kinds, lock)
        return self._states.within(kinds, lock, self._allowance.limit_w)

    def _on_tick(self, due: Due) -> None:
        engine, allowance = self._device.engine, self._allowance
        assert allowance is not None
        if allowance.tick(due.at_ns):
            self._device.clocks_changed()
        engine.at(due.at_ns + allowance.tick_ns, CLOCKS, self._on_tick)
        engine.finish(due.at_ns)

    def _is_instant(self, target: int) -> bool:
        return (
            not self._governor.sense_ns and moves(self._governor, self._states, self.row, target)[-1][0] == 0
        )

    def _on_sense(self, _: Due) -> None:
        engine = self._device.engine
        self._sensing = False
        target = self._answer(self._kinds, self._lock)
        if target != self._aim:
            self._aim = target
            self._moves += 1
            if (self.row, target) not in self._paths:
                self._paths[self.row, target] = moves(self._governor, self._states, self.row, target)
            for delay_ns, row in self._paths[self.row, target]:
                engine.at(engine.now + delay_ns, CLOCKS, self._on_step, (self._moves, row))
        engine.finish(engine.now)

    def _on_step(self, event: Due) -> None:
        engine = self._device.engine
        decision, row = event.value
        if decision == self._moves and row != self.row:
            self.row = row
            self._device.clocks_changed()
        engine.finish(engine.now)


def moves(governor: DynamicGovernor, states: States, current: int, target: int) -> list[tuple[int, int]]:
    """(delay in ns, row) of each step from ``current`` to ``target``; the last row is the target."""
    here, there = states.sm_mhz(current), states.sm_mhz(target)
    if there >= here:
        return _ramp(states, here, there, target, governor.steps, 0, governor.rise_ns)
    if not governor.overshoot:
        return _ramp(states, here, there, target, governor.steps, 0, governor.fall_ns)
    deepest = max(0.0, there - governor.overshoot * (here - there))
    bottom = states.nearest(deepest, like=target)
    fall = _ramp(states, here, deepest, bottom, governor.steps, 0, governor.fall_ns)
    return fall + _ramp(states, deepest, there, target, governor.steps, governor.fall_ns, governor.rise_ns)


def _ramp(
    states: States, here: float, there: float, target: int, steps: int, from_ns: int, over_ns: int
) -> list[tuple[int, int]]:
    """Equal steps of the SM clock, each rounded to a row; the last is ``target`` itself."""
    path = [
        (from_ns + over_ns * i // steps, states.nearest(here + (there - here) * i / steps, like=target))
        for i in range(1, steps)
    ]
    return [*path, (from_ns + over_ns, target)]
