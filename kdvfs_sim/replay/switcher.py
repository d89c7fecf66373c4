"""The clock requests of one device: when each is issued, what it waits for, when it lands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from kdvfs_sim.replay.phases import CLOCKS, REQUESTS, STARTS
from kdvfs_sim.replay.plan import Request

if TYPE_CHECKING:
    from kdvfs_sim.replay.device import Device
    from kdvfs_sim.replay.engine import Due


class Change(NamedTuple):
    """A change from row ``old`` to row ``new``: when it is asked for, begins to stall, lands, and when the
    call that asked for it returns."""

    issued_ns: int
    stall_from_ns: int
    lands_ns: int
    returns_ns: int
    old: int
    new: int
    extra_energy_j: float = 0.0

    def later(self, by_ns: int) -> Change:
        return self._replace(
            issued_ns=self.issued_ns + by_ns,
            stall_from_ns=self.stall_from_ns + by_ns,
            lands_ns=self.lands_ns + by_ns,
            returns_ns=self.returns_ns + by_ns,
        )


class DeviceCarry(NamedTuple):
    """What a device hands to the next iteration; times count from the start of that one."""

    row: int
    requested: int
    in_flight: tuple[Change, ...] = ()
    returns_ns: int = 0


class Switcher:
    """Requests are issued in order. ``row``: the clocks in force; ``requested``: those asked for last."""

    def __init__(self, device: Device, carry: DeviceCarry, requests: Sequence[Request]) -> None:
        self.row = carry.row
        self.requested = carry.requested
        self.in_flight = list(carry.in_flight)
        self.issued: list[Change] = []
        self.landed: list[Change] = []
        self.n_dropped = len(requests)
        self._device = device
        self._engine = device.engine
        self._protocol = protocol = device.engine.protocol
        self._trigger_ns = (
            protocol.trigger_ns if protocol.charged and not (protocol.drains or protocol.anticipates) else 0
        )
        self._returns_ns = carry.returns_ns
        self._requests = requests
        self._next = 0
        self._triggers: dict[int, int] = {}  # of requests whose anchor has started or, drained, is ready
        self._held: list[int] = []
        self._busy = False  # an event is on its way that will issue the next request or reopen the device
        for change in self.in_flight:
            self._expect(change)

    # -- requests ----------------------------------------------------------------------------------

    def trigger(self, numbers: Sequence[int], now: int) -> None:
        """The anchor of these requests starts (drained: could start, if they were done)."""
        for number in numbers:
            self._triggers[number] = now + self._requests[number].offset_ns + self._trigger_ns
        if self._protocol.charged:
            self._ask_next()
            return
        while self._next in self._triggers:
            self._free_change(now)

    def _free_change(self, now: int) -> None:
        request = self._take_next()
        self.issued.append(Change(now, now, now, now, self.requested, request.row))
        self.requested = self.row = request.row
        self._device.clocks_changed()

    def _take_next(self) -> Request:
        self._next += 1
        self.n_dropped -= 1
        return self._requests[self._next - 1]

    def _ask_next(self) -> None:
        """Plan the next request for when it is triggered and the one before it is done with."""
        if self._next in self._triggers and not self._busy and not self._device.closed:
            free_ns = self._returns_ns
            if self._protocol.device_queue == "serial" and self.in_flight:
                free_ns = max(free_ns, self.in_flight[-1].lands_ns)
            self._busy = True
            at_ns = max(self._triggers[self._next], free_ns, self._engine.now)
            self._engine.at(at_ns, REQUESTS, self._on_turn)

    def _on_turn(self, _: Due) -> None:
        now = self._engine.now
        self._busy = False
        if self._protocol.drains:
            self._device.closed = True
            self.some_ended(now)
        else:
            self._issue(now)
            self._ask_next()
        self._engine.finish(now)

    def _issue(self, now: int) -> Change:
        request, engine = self._take_next(), self._engine
        costs = engine.switching
        assert costs is not None
        old, new = self.requested, request.row
        returns_ns = now + int(costs.host_call_ns[old, new])
        switching_ns = max(0, round(request.factor * int(costs.switching_ns[old, new])) + request.late_ns)
        stall_ns = min(int(costs.stall_ns[old, new]), switching_ns)
        begins_ns = now
        if self._protocol.device_queue == "fifo" and self.in_flight:
            begins_ns = max(now, self.in_flight[-1].lands_ns)
        elif self._protocol.device_queue == "latest_wins":
            self.in_flight.clear()
        lands_ns = begins_ns + switching_ns
        change = Change(
            now,
            lands_ns - stall_ns,
            lands_ns,
            returns_ns,
            old,
            new,
            float(costs.extra_energy_j[old, new]),
        )
        self.requested, self._returns_ns = new, returns_ns
        self.issued.append(change)
        self.in_flight.append(change)
        self._expect(change)
        self._device.clocks_changed()
        if self._protocol.issuer == "launch_thread":
            blocked_ns = max(returns_ns, lands_ns) - now if self._protocol.drains else returns_ns - now
            engine.block_thread(request.op, now, blocked_ns)
        return change

    # -- changes in flight -------------------------------------------------------------------------

    def _expect(self, change: Change) -> None:
        now = self._engine.now
        self._engine.at(change.lands_ns, CLOCKS, self._on_landing, change)
        if now < change.stall_from_ns < change.lands_ns:
            self._engine.at(change.stall_from_ns, CLOCKS, self._on_stall)

    def _on_stall(self, _: Due) -> None:
        self._device.clocks_changed()
        self._engine.finish(self._engine.now)

    def _on_landing(self, event: Due) -> None:
        change = event.value
        if any(c is change for c in self.in_flight):  # else a later request has replaced it
            self.in_flight.remove(change)
            self.landed.append(change)
            self.row = change.new
            self._device.clocks_changed()
        self._engine.finish(self._engine.now)

    def stalls(self, now: int) -> bool:
        return any(c.stall_from_ns <= now < c.lands_ns for c in self.in_flight)

    # -- draining ----------------------------------------------------------------------------------

    def hold(self, op: int) -> None:
        """Start ``op`` when the device reopens."""
        self._held.append(op)

    def some_ended(self, now: int) -> None:
        """If the device is closed and has run empty, make the request it was closed for."""
        if not self._device.closed or self._busy or self._device.running:
            return
        op = self._requests[self._next].op
        change = self._issue(now)
        self._busy = True
        done_ns = max(change.lands_ns, change.returns_ns)
        if self._next < len(self._requests) and self._requests[self._next].op == op:
            self._engine.at(done_ns, REQUESTS, self._on_turn)
        else:
            self._engine.release_thread(op, done_ns)
            self._engine.at(done_ns + self._protocol.relaunch_ns, STARTS, self._on_reopen, op)

    def _on_reopen(self, event: Due) -> None:
        now = self._engine.now
        self._device.closed = self._busy = False
        held, self._held = self._held, []
        self._engine.requests_done(event.value, now)
        for op in held:
            self._engine.start(op, now)
        self._ask_next()
        self._engine.finish(now)

    @property
    def stuck_at(self) -> int | None:
        """The schedule's number of a request that the device was, or waits to be, drained for."""
        if (
            self._protocol.drains
            and self._next < len(self._requests)
            and (self._device.closed or self._triggers)
        ):
            return self._requests[self._next].number
        return None

    # -- the end of an iteration -------------------------------------------------------------------

    def carry(self, end_ns: int) -> DeviceCarry:
        return DeviceCarry(
            self.row,
            self.requested,
            tuple(c.later(-end_ns) for c in self.in_flight),
            max(0, self._returns_ns - end_ns),
        )
