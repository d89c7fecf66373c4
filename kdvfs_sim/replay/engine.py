"""One iteration of a program in SimPy: operations, clock changes and the host on one time axis.

Everything that takes time is a SimPy event; its priority is the phase within the nanosecond. When nothing
else is due in a nanosecond, the devices touched in it are settled. What happened is kept as plain lists;
the timeline is computed from them afterwards.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import simpy
from simpy.events import EventPriority

from kdvfs_sim.core.errors import InvariantError, ScheduleError
from kdvfs_sim.core.governor import DynamicGovernor
from kdvfs_sim.core.switching import SwitchProtocol, SwitchTable
from kdvfs_sim.replay.device import Device
from kdvfs_sim.replay.host import UNKNOWN, LiveHost
from kdvfs_sim.replay.phases import NEVER, REQUESTS, STARTS
from kdvfs_sim.replay.plan import Request
from kdvfs_sim.replay.program import Program
from kdvfs_sim.replay.states import States
from kdvfs_sim.replay.switcher import DeviceCarry

NOT_YET: Final = -1
UNSETTLED: Final = 0.0  # the ratio of what has not been settled


class Carry(NamedTuple):
    """What an iteration hands to the next: each device's clocks, and (thread, moment, delay) of calls on
    launch threads that no launch has met yet."""

    devices: tuple[DeviceCarry, ...]
    late: tuple[tuple[int, int, int], ...] = ()


Callbacks: TypeAlias = Sequence[Callable[["Due"], None]]


class Due:
    """An event as SimPy's queue wants it: a ``simpy.Timeout`` with a priority, and half as dear to make."""

    __slots__ = ("at_ns", "callbacks", "value")
    _ok: Final = True

    at_ns: int
    callbacks: Callbacks
    value: Any


_new_due: Final = Due.__new__


class Engine:
    """Runs one iteration. Afterwards ``start_ns`` and ``end_ns`` hold every operation's times, the devices
    their logs and changes, ``n_events`` what SimPy was given to do."""

    __slots__ = (
        "_anchored",
        "_done",
        "_launch_held",
        "_left",
        "_needs",
        "_passed",
        "_planned",
        "_ready",
        "_roots",
        "_schedule",
        "_start_callbacks",
        "_waiting",
        "device_of",
        "devices",
        "end_ns",
        "ends_at",
        "env",
        "governor",
        "host",
        "left_ns",
        "links",
        "n_events",
        "next_time",
        "protocol",
        "ratio",
        "start_ns",
        "states",
        "switching",
    )

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
        self._schedule: Callable[[Due, EventPriority, int], None] = self.env.schedule  # type: ignore[assignment]
        self._start_callbacks = [self._on_start]
        self.next_time = self.env.peek
        self.start_ns = [NOT_YET] * program.n_ops
        self.end_ns = [NOT_YET] * program.n_ops
        self._left = program.n_ops
        self._done = self.env.event()
        # by operation, and by n_ops + operation for the part of its predecessor that it waits for:
        self.left_ns = [*self.links.duration_ns, *self.links.overlap_ns]  # recorded time until settled
        self.ends_at = [NEVER] * (2 * program.n_ops)
        self.ratio = [UNSETTLED] * (2 * program.n_ops)
        self._planned = [NOT_YET] * program.n_ops  # when operations are going to start, as known now
        self._passed: set[int] = set()  # operations whose predecessor has come far enough
        self._ready: dict[int, int] = {}  # of drained anchors: when they could start if nobody drained
        self._anchored: dict[int, list[int]] = {}
        for of_device in requests:
            for number, request in enumerate(of_device):
                self._anchored.setdefault(request.op, []).append(number)
        self._launch_held = self._launches_to_hold()
        self.host = LiveHost(self.links.host, self.end_ns, self._launch_held)
        self._needs, self._roots = self.links.needs, self.host.roots
        self._waiting: dict[int, list[int]] = {}  # operations, by what blocks their launch
        self.devices = [Device(self, i, of_device, requests[i]) for i, of_device in enumerate(carry.devices)]
        self.device_of = [self.devices[i] for i in self.links.device]
        for thread, moment_ns, delay_ns in carry.late:
            self.host.delay(thread, moment_ns, delay_ns)

    def _launches_to_hold(self) -> dict[int, int]:
        """Under a draining launch thread: the launches it makes only after a request, and whose."""
        if not self.protocol.drains or self.protocol.issuer != "launch_thread":
            return {}
        links = self.links
        launches = ((links.launch[op], op) for op in self._anchored if links.launch[op] >= 0)
        return {
            launch: op
            for launch, op in launches
            if launch == links.last_action[op] and links.ops_of_launch[launch][0] == op
        }

    def run(self) -> None:
        """Run to the end of the last operation.

        Raises ScheduleError if a drained request waits for an operation that waits for it.
        """
        for op in self.links.first:
            self.consider(op, 0)
        self.at(NEVER, REQUESTS, self._on_nothing_left)
        self.finish(0)
        self.env.run(until=self._done)
        self.n_events = next(self.env._eid)  # SimPy numbers the events it is given

    def _on_nothing_left(self, _: Due) -> None:
        """Nothing can happen any more, but operations are left. Raises."""
        stuck = [d.switcher.stuck_at for d in self.devices if d.switcher.stuck_at is not None]
        if not stuck:
            raise InvariantError(f"replay: {self._left} operations wait for one another")
        raise ScheduleError(
            f"schedule request {stuck[0]}",
            "what it has to wait for waits for another request; order requests as their anchors run",
        )

    @property
    def now(self) -> int:
        return int(self.env.now)

    def at(self, at_ns: int, phase: EventPriority, callback: Callable[[Due], None], value: Any = None) -> Due:
        """Have SimPy call back at a time."""
        return self.schedule(self.now, at_ns, phase, [callback], value)

    def schedule(
        self,
        now: int,
        at_ns: int,
        phase: EventPriority,
        callbacks: Callbacks,
        value: Any = None,
    ) -> Due:
        """The same where it counts: ``callbacks`` may be shared by many events."""
        due = _new_due(Due)
        due.at_ns = at_ns
        due.callbacks = callbacks
        due.value = value
        self._schedule(due, phase, at_ns - now)
        return due

    def finish(self, now: int) -> None:
        """End of a callback: if nothing else is due in this nanosecond, settle what was touched in it."""
        if self.next_time() > now:
            self.settle(now)

    def settle(self, now: int) -> None:
        for device in self.devices:
            if device.touched:
                device.settle(now)

    # -- operations --------------------------------------------------------------------------------

    def rescale(self, slot: int, ratio: float, now: int, was_frozen: bool, frozen: bool) -> int:
        """Go on at another speed; returns the new end.

        The arithmetic of docs/explanation/replay.md, shared with fast.py.
        """
        old = self.ratio[slot]
        if old == UNSETTLED:
            left = self.left_ns[slot]
            if ratio != 1.0:
                left = round(left * ratio)
        else:
            left = self.left_ns[slot] if was_frozen else self.ends_at[slot] - now
            if ratio != old:
                left = round(left * (ratio / old))
        self.ratio[slot] = ratio
        if frozen or was_frozen:
            self.left_ns[slot] = left
        end_ns = self.ends_at[slot] = NEVER if frozen and left else now + left
        return end_ns

    def consider(self, op: int, now: int) -> None:
        """Start ``op``, or plan its start, if all that it waits for is known."""
        if self.start_ns[op] == NOT_YET and self._may_start(op, now):
            self.start(op, now)

    def _may_start(self, op: int, now: int) -> bool:
        """Is all that ``op`` waits for met? If it is known when it will be, the start is planned;
        if not, ``op`` is considered again when something of it has happened.

        Called when its predecessor has started, and whenever something it waited for has happened.
        """
        special, after, after_lag_ns, root, root_lag_ns = self._needs[op]
        at_ns = self._special_ready_ns(op) if special else self.end_ns[after] + after_lag_ns
        launched = self._roots[root]
        if launched == UNKNOWN:
            at_ns = self._launched_ns(op, at_ns)
        else:
            launched += root_lag_ns
            if launched > at_ns != UNKNOWN:
                at_ns = launched
        if at_ns > now:
            self._planned[op] = at_ns
            self.schedule(now, at_ns, STARTS, self._start_callbacks, op)
            return False
        self._planned[op] = NOT_YET
        return at_ns != UNKNOWN

    def _on_start(self, due: Due) -> None:
        op, now = due.value, due.at_ns
        if self._planned[op] == now:
            self.start(op, now)
        if self.next_time() > now:
            self.settle(now)

    def start(self, op: int, now: int) -> None:
        """All dependencies of ``op`` are met: start it, and what may start at once after it."""
        links = self.links
        while True:
            # no longer planned, even if it is held now: nobody has to consider it again
            self._planned[op] = NOT_YET
            device = self.device_of[op]
            anchored = self._anchored.get(op) if self._anchored else None
            if anchored and self.protocol.drains:
                device.switcher.trigger(anchored, now)
                return
            if device.closed:
                device.switcher.hold(op)
                return
            self.start_ns[op] = now
            device.running.append(op)
            device.touched = True
            if anchored:
                device.switcher.trigger(anchored, now)
            if not links.early[op]:
                return
            op = links.next[op]
            if not self._may_start(op, now):
                return

    def _special_ready_ns(self, op: int) -> int:
        """The same without the launch, of an operation that waits for more than its predecessor's end."""
        links, end_ns = self.links, self.end_ns
        if links.overlap_ns[op] >= 0 and op not in self._passed:
            device = self.device_of[op]
            if op not in device.marks:
                device.marks.append(op)
                device.touched = True
            return UNKNOWN
        at_ns = links.not_before_ns[op]
        after = links.after[op]
        if after >= 0:
            if end_ns[after] == NOT_YET:
                return UNKNOWN
            at_ns = end_ns[after] + links.after_lag_ns[op]
        for on, lag_ns in links.waits.get(op, ()):
            if end_ns[on] == NOT_YET:
                return UNKNOWN
            at_ns = max(at_ns, end_ns[on] + lag_ns)
        return at_ns

    def _launched_ns(self, op: int, at_ns: int) -> int:
        """When ``op`` is launched and may start, at ``at_ns`` or later, or UNKNOWN."""
        launch, host = self.links.launch[op], self.host
        if launch < 0 or at_ns == UNKNOWN:
            return at_ns
        launched = host.start_of(launch)
        if launched != UNKNOWN:
            launched += self.links.launch_lag_ns[op]
            return launched if launched > at_ns else at_ns
        if host.blocked_by == ~launch and self._launch_held[launch] == op:
            # the request has to be made first, and that is when the host gets there
            self._ready[op] = host.reached[launch] + self.links.launch_lag_ns[op]
            return max(at_ns, host.reached[launch])
        self._waiting.setdefault(host.blocked_by, []).append(op)
        return UNKNOWN

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
        follower = links.follower[op]
        if follower >= 0 and self._may_start(follower, now):
            self.start(follower, now)
        if op in links.on_end:
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
        at_ns = self._ready.get(op, now)
        if at_ns > now:
            self._planned[op] = at_ns
            self.at(at_ns, STARTS, self._on_start, op)
        else:
            self.start(op, now)

    def block_thread(self, op: int, now: int, delay_ns: int) -> None:
        """The thread that launched ``op`` makes a clock request."""
        launch = self.links.launch[op]
        if launch >= 0 and self._launch_held.get(launch) != op:
            self.host.delay(self.links.host.thread[launch], now, delay_ns)
            for ops in self.links.ops_of_stream:
                at = bisect.bisect_left(ops, True, key=lambda later: self.start_ns[later] == NOT_YET)
                if at < len(ops) and self._planned[ops[at]] != NOT_YET:
                    self.consider(ops[at], now)

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
