"""One iteration of a program in SimPy: operations, clock changes and the host on one time axis.

Everything that takes time is a SimPy event; its priority is the phase within the nanosecond. When nothing
else is due in a nanosecond, the devices touched in it are settled. What happened is kept as plain lists;
the timeline is computed from them afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import simpy
from simpy.events import Event, EventPriority

from kdvfs_sim.core.errors import InvariantError, ScheduleError
from kdvfs_sim.core.governor import DynamicGovernor
from kdvfs_sim.core.switching import SwitchProtocol, SwitchTable
from kdvfs_sim.replay.device import Device, Running
from kdvfs_sim.replay.host import UNKNOWN, LiveHost
from kdvfs_sim.replay.phases import STARTS
from kdvfs_sim.replay.plan import Request
from kdvfs_sim.replay.program import Program
from kdvfs_sim.replay.states import States
from kdvfs_sim.replay.switcher import DeviceCarry

NOT_YET: Final = -1


class Carry(NamedTuple):
    """What an iteration hands to the next: each device's clocks, and (thread, moment, delay) of calls on
    launch threads that no launch has met yet."""

    devices: tuple[DeviceCarry, ...]
    late: tuple[tuple[int, int, int], ...] = ()


class _Due(Event):
    """An event that happens by itself at a time; a ``simpy.Timeout`` with a priority and one callback."""

    def __init__(
        self,
        env: simpy.Environment,
        delay_ns: int,
        phase: EventPriority,
        callback: Callable[[Event], None],
        value: Any,
    ) -> None:
        self.env = env
        self.callbacks = [callback]
        self._ok = True
        self._value = value
        env.schedule(self, phase, delay_ns)


class Engine:
    """Runs one iteration. Afterwards ``start_ns`` and ``end_ns`` hold every operation's times, the devices
    their logs and changes, ``n_events`` what SimPy was given to do."""

    def __init__(
        self,
        program: Program,
        states: States,
        protocol: SwitchProtocol,
        switching: SwitchTable | None,
        requests: list[list[Request]],
        carry: Carry,
        governor: DynamicGovernor | None,
    ) -> None:
        self.links = program.links
        self.states = states
        self.protocol = protocol
        self.switching = switching
        self.governor = governor
        self.env = simpy.Environment()
        self.dirty: list[Device] = []
        self.n_events = 1
        self.start_ns = [NOT_YET] * program.n_ops
        self.end_ns = [NOT_YET] * program.n_ops
        self._left = program.n_ops
        self._done = self.env.event()
        self._planned = [NOT_YET] * program.n_ops  # when an operation is going to start, as known now
        self._passed: set[int] = set()  # operations whose predecessor has come far enough
        self._ready: dict[int, int] = {}  # of drained anchors: when they could start if nobody drained
        self._anchored: dict[int, list[int]] = {}
        for of_device in requests:
            for number, request in enumerate(of_device):
                self._anchored.setdefault(request.op, []).append(number)
        self._launch_held = self._launches_to_hold()
        self.host = LiveHost(self.links.host, self.end_ns, self._launch_held)
        self._waiting: dict[int, list[int]] = {}  # operations, by what blocks their launch
        self.devices = [Device(self, i, of_device, requests[i]) for i, of_device in enumerate(carry.devices)]
        for thread, moment_ns, delay_ns in carry.late:
            self.host.delay(thread, moment_ns, delay_ns)

    def _launches_to_hold(self) -> dict[int, int]:
        """Under a draining launch thread: the launches it makes only after a request, and whose."""
        if not self.protocol.drains or self.protocol.issuer != "launch_thread":
            return {}
        links = self.links
        launches = {links.launch[op]: op for op in self._anchored if links.in_launch_order[op]}
        return {
            launch: op
            for launch, op in launches.items()
            if launch >= 0 and links.ops_of_launch[launch][0] == op
        }

    def run(self) -> None:
        """Run to the end of the last operation.

        Raises ScheduleError if a drained request waits for an operation that waits for it.
        """
        for op in self.links.first:
            self.consider(op, 0)
        self.finish(0)
        try:
            self.env.run(until=self._done)
        except RuntimeError:
            if not self._left:
                raise
            stuck = [d.switcher.stuck_at for d in self.devices if d.switcher.stuck_at is not None]
            if not stuck:
                raise InvariantError(f"replay: {self._left} operations wait for one another") from None
            raise ScheduleError(
                f"schedule request {stuck[0]}",
                "what it has to wait for waits for another request; order requests as their anchors run",
            ) from None

    @property
    def now(self) -> int:
        return int(self.env.now)

    def at(
        self, time_ns: int, phase: EventPriority, callback: Callable[[Event], None], value: Any = None
    ) -> Event:
        """Have SimPy call back at a time."""
        self.n_events += 1
        env = self.env
        return _Due(env, time_ns - env.now, phase, callback, value)

    def finish(self, now: int) -> None:
        """End of a callback: if nothing else is due in this nanosecond, settle what it touched."""
        dirty = self.dirty
        if dirty and self.env.peek() > now:
            for device in dirty:
                device.settle(now)
            dirty.clear()

    # -- operations --------------------------------------------------------------------------------

    def consider(self, op: int, now: int) -> None:
        """Start ``op``, or plan its start, if all that it waits for is known."""
        if self.start_ns[op] != NOT_YET:
            return
        at_ns = self._ready_ns(op)
        if at_ns == UNKNOWN:
            self._planned[op] = NOT_YET
        elif at_ns <= now:
            self.start(op, now)
        else:
            self._plan_start(op, at_ns)

    def _plan_start(self, op: int, at_ns: int) -> None:
        if self._planned[op] != at_ns:
            self._planned[op] = at_ns
            self.at(at_ns, STARTS, self._on_start, op)

    def _on_start(self, event: Event) -> None:
        op, now = event._value, self.env.now
        if self._planned[op] == now and self.start_ns[op] == NOT_YET:
            self.start(op, now)
        self.finish(now)

    def start(self, op: int, now: int) -> None:
        """All dependencies of ``op`` are met: start it, and what may start at once after it."""
        links = self.links
        while True:
            device = self.devices[links.device[op]]
            anchored = self._anchored.get(op) if self._anchored else None
            if anchored and self.protocol.drains:
                device.switcher.trigger(anchored, now)
                return
            if device.switcher.closed:
                device.switcher.hold(op)
                return
            self.start_ns[op] = now
            device.running.append(Running(op, links.kind[op], links.duration_ns[op]))
            device.touch()
            if anchored:
                device.switcher.trigger(anchored, now)
            if not links.early[op]:
                return
            op = links.next[op]
            at_ns = self._ready_ns(op)
            if at_ns == UNKNOWN:
                return
            if at_ns > now:
                self._plan_start(op, at_ns)
                return

    def _ready_ns(self, op: int) -> int:
        """When all that ``op`` waits for is met, or UNKNOWN; it is then considered again in time.

        Called when its predecessor starts, and whenever something it waited for has happened.
        """
        links, end_ns = self.links, self.end_ns
        if links.overlap_ns[op] >= 0 and op not in self._passed:
            self._mark(op)
            return UNKNOWN
        at_ns = links.not_before_ns[op]
        after = links.after[op]
        if after >= 0:
            end = end_ns[after]
            if end == NOT_YET:
                return UNKNOWN
            at_ns = end + links.after_lag_ns[op]
        if links.waits and op in links.waits:
            for on, lag_ns in links.waits[op]:
                if end_ns[on] == NOT_YET:
                    return UNKNOWN
                at_ns = max(at_ns, end_ns[on] + lag_ns)
        launch = links.launch[op]
        if launch >= 0:
            launched = self.host.starts[launch]
            if launched == UNKNOWN:
                launched = self.host.start_of(launch)
                if launched == UNKNOWN:
                    if self.host.blocked_by != ~launch or self._launch_held.get(launch) != op:
                        self._waiting.setdefault(self.host.blocked_by, []).append(op)
                        return UNKNOWN
                    launched = self.host.reached[launch]
                    self._ready[op] = launched + links.launch_lag_ns[op]
                    return max(at_ns, launched)
            launched += links.launch_lag_ns[op]
            if launched > at_ns:
                at_ns = launched
        return at_ns

    def _mark(self, op: int) -> None:
        """Let the part of the predecessor pass that has to pass before ``op`` may start."""
        links = self.links
        previous = links.previous[op]
        device = self.devices[links.device[op]]
        if all(mark.op != op for mark in device.marks):
            device.marks.append(Running(op, links.kind[previous], links.overlap_ns[op]))
            device.touch()

    def passed(self, op: int, now: int) -> None:
        """The predecessor of ``op`` has come as far as it had when ``op`` started in the recording."""
        self._passed.add(op)
        self.consider(op, now)

    def ended(self, op: int, now: int) -> None:
        """``op`` has ended: consider what waited for that."""
        links = self.links
        self.end_ns[op] = now
        self._left -= 1
        if not self._left:
            self._done.succeed()
        for later in links.on_end[op]:
            previous = links.previous[later]
            if previous < 0 or self.start_ns[previous] != NOT_YET:
                self.consider(later, now)
        if self._waiting:
            for later in self._waiting.pop(op, ()):
                self.consider(later, now)

    # -- requests and the host ---------------------------------------------------------------------

    def requests_done(self, op: int, now: int) -> None:
        """The device reopens for ``op``, whose requests it was drained for."""
        del self._anchored[op]
        at_ns = max(now, self._ready.get(op, now))
        if at_ns > now:
            self._plan_start(op, at_ns)
        else:
            self.start(op, now)

    def block_thread(self, op: int, now: int, delay_ns: int) -> None:
        """The thread that launched ``op`` makes a clock request."""
        launch = self.links.launch[op]
        if launch < 0 or launch in self._launch_held:
            return
        for action in self.host.delay(self.links.host.thread[launch], now, delay_ns):
            for later in self.links.ops_of_launch.get(action, ()):
                if self._planned[later] != NOT_YET:
                    self.consider(later, now)

    def release_thread(self, op: int, at_ns: int) -> None:
        """The thread held before the launch of ``op`` goes on."""
        launch = self.links.launch[op]
        if self._launch_held.get(launch) == op:
            self.host.release(launch, at_ns)
            for later in self._waiting.pop(~launch, ()):
                self.consider(later, self.now)

    def carry(self) -> Carry:
        end_ns = max(self.end_ns)
        return Carry(
            tuple(d.switcher.carry(end_ns) for d in self.devices),
            tuple((thread, moment - end_ns, delay) for thread, moment, delay in self.host.late),
        )
