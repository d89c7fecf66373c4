"""The emulated GPU over time: a fold of its journal, advanced from event to event.

The state at an instant is a pure function of the records before it: no field is read from outside,
and the same records folded again give the same state, bit for bit. Between events power and speed
are constant; an event is a landing, a governor step, the end of a kernel, or the edge of a fault.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from kdvfs_hw.emulator.behaviour import Behaviour, Domain, Operating
from kdvfs_hw.emulator.faults import Fault
from kdvfs_hw.emulator.history import Breakpoint, History
from kdvfs_sim.core.clocks import AUTO, ClockMhz, Clocks
from kdvfs_sim.core.governor import DynamicGovernor

_KEPT_NS: Final = 2_000_000_000  # sensors look back about 1 s
_KEPT_ENDS: Final = 4096
_DONE: Final = 1e-9  # launches left by rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Thermal:
    """Chip temperature: it settles at ``ambient_c`` plus ``c_per_w`` times power, exponentially."""

    ambient_c: float = 27.0
    c_per_w: float = 0.055
    tau_s: float = 15.0


@dataclass(frozen=True, slots=True)
class Landing:
    """A request on its way: at ``land_ns`` the domain's lock becomes ``value`` (AUTO: released)."""

    land_ns: int
    domain: Domain
    value: ClockMhz
    stall_ns: int = 0
    extra_energy_j: float = 0.0
    by_fault: bool = False


@dataclass(frozen=True, slots=True)
class Work:
    """Launches of one kernel kind, in the GPU's queue. ``token`` '': nobody waits for them."""

    token: str
    kind: str
    n_left: float
    pid: int


class State:
    """One emulated GPU at ``t_ns``. ``apply`` takes the next record, ``advance`` lets time pass."""

    def __init__(
        self,
        behaviour: Behaviour,
        *,
        t_ns: int,
        governor: DynamicGovernor | None = None,
        thermal: Thermal | None = None,
        energy_j: float = 0.0,
    ) -> None:
        self.behaviour = behaviour
        self.governor = governor
        self.thermal = thermal or Thermal()
        self.t_ns = t_ns
        self.in_force: dict[Domain, ClockMhz] = {"sm": AUTO, "mem": AUTO}
        self.accepted: dict[Domain, ClockMhz] = {"sm": AUTO, "mem": AUTO}
        self.pending: list[Landing] = []
        self.queue: list[Work] = []
        self.ended: dict[str, int] = {}
        self.faults: list[Fault] = []
        self.moves: list[tuple[int, int]] = []
        self.n_events = 0  # how much this object, or what it is a copy of, had to go through
        self._steady: dict[tuple[str | None, ClockMhz, ClockMhz], Operating] = {}  # shared by all copies
        self.energy_j = energy_j
        self.operating: Operating = behaviour.steady(None, Clocks(AUTO, AUTO))
        self.capped = False
        self.goal_sm_mhz = self.operating.sm_mhz
        self.temperature_c = self.thermal.ambient_c + self.thermal.c_per_w * self.operating.power_w
        self.history = History(Breakpoint(t_ns, energy_j, self.operating.power_w))

    def fork(self) -> State:
        """A copy that can be advanced without touching this one."""
        other = copy.copy(self)
        other.in_force, other.accepted = dict(self.in_force), dict(self.accepted)
        other.pending, other.queue, other.faults = list(self.pending), list(self.queue), list(self.faults)
        other.moves, other.history, other.ended = list(self.moves), self.history.fork(), dict(self.ended)
        return other

    @property
    def locks(self) -> Clocks:
        """What the driver has accepted and not yet released, landed or on its way."""
        return Clocks(self.accepted["sm"], self.accepted["mem"])

    def fault(self, name: str) -> Fault | None:
        """The fault of this name in force now."""
        if not self.faults:
            return None
        return next((f for f in reversed(self.faults) if f.name == name and f.active(self.t_ns)), None)

    def energy_at(self, t_ns: int) -> float:
        """Energy used up to ``t_ns``, which may lie a little before the first breakpoint, J."""
        return self.history.energy_at(t_ns)

    def apply(self, record: Mapping[str, Any]) -> None:
        """Take the next record of the journal. Times never go back: a late record counts from now."""
        self.advance(max(self.t_ns, int(record["t"])))
        match record["do"]:
            case "set":
                self._request(record["domain"], int(record["mhz"]))
            case "reset":
                self._request(record["domain"], AUTO)
            case "launch":
                self._launch(record["works"] * record["times"], record["token"], record["pid"])
            case "drop":
                self._end([work for work in self.queue if work.pid == record["pid"]])
                self.queue = [work for work in self.queue if work.pid != record["pid"]]
            case "fault":
                start = self.t_ns + round(record["after_s"] * 1e9)
                length_s = record["for_s"]
                until = None if length_s is None else start + round(length_s * 1e9)
                self.faults.append(Fault(record["name"], float(record["value"]), start, until))
            case "heal":
                self.faults = [
                    replace(f, until_ns=self.t_ns) if f.name == record["name"] and f.active(self.t_ns) else f
                    for f in self.faults
                    if f.name != record["name"] or f.from_ns <= self.t_ns
                ]
        self.advance(self.t_ns)

    def advance(self, t_ns: int) -> None:
        """Let time pass until ``t_ns``, through every event on the way."""
        while True:
            self._settle()
            event_ns = min(self._next_event_ns(), t_ns)
            self._pass(event_ns)
            if not self._happen() and event_ns >= t_ns:
                self._settle()
                return

    def advance_events(self, t_ns: int) -> None:
        """Through every event until ``t_ns``, and no further: ``advance`` then gives what it would have."""
        while True:
            self._settle()
            event_ns = self._next_event_ns()
            if event_ns > t_ns:
                return
            self._pass(event_ns)
            self._happen()

    def time_left_ns(self, token: str) -> float | None:
        """How long until queued work has ended, if clocks stay as they are and nothing stalls; None if it
        is not queued. No event is gone through for it: whoever waits looks again."""
        left_ns = 0.0
        sm, mem = self.in_force["sm"], self.in_force["mem"]
        for work in self.queue:
            left_ns += work.n_left * self._at_rest(work.kind, sm, mem).duration_ns
            if work.token == token:
                return left_ns
        return None

    def _at_rest(self, kind: str | None, sm: ClockMhz, mem: ClockMhz) -> Operating:
        load = (kind, sm, mem)
        found = self._steady.get(load)
        if found is None:
            found = self._steady[load] = self.behaviour.steady(kind, Clocks(sm, mem))
        return found

    def _launch(self, works: Sequence[tuple[int, float]], token: str, pid: int) -> None:
        """``works``: kinds, by their place in the table of loads, and how often each is launched."""
        kinds = self.behaviour.kinds
        self.queue += [Work("", kinds[kind], float(n), pid) for kind, n in works]
        self.queue[-1] = replace(self.queue[-1], token=token)

    def _request(self, domain: Domain, value: ClockMhz) -> None:
        if self.fault("lock_ignored" if isinstance(value, int) else "reset_ignored"):
            return
        cost = self.behaviour.switch(domain, self.accepted[domain], value)
        slow = self.fault("slow_switching")
        switching_ns = round(cost.switching_ns * (slow.value if slow else 1.0))
        earlier = [p.land_ns for p in self.pending if p.domain == domain and not p.by_fault]
        land_ns = max([self.t_ns + switching_ns, *earlier])
        self.accepted[domain] = value
        self._expect(Landing(land_ns, domain, value, min(cost.stall_ns, switching_ns), cost.extra_energy_j))

    def _expect(self, landing: Landing) -> None:
        self.pending.append(landing)
        self.pending.sort(key=lambda each: each.land_ns)

    def _next_event_ns(self) -> float:
        times: list[float] = [landing.land_ns for landing in self.pending[:1]]
        times += [t for landing in self.pending if (t := landing.land_ns - landing.stall_ns) > self.t_ns]
        times += [t for t, _ in self.moves[:1]]
        times += [t for f in self.faults for t in (f.from_ns, f.until_ns) if t is not None and t > self.t_ns]
        if self.queue and not self._stalled:
            times.append(self.t_ns + math.ceil(self.queue[0].n_left * self.operating.duration_ns))
        return min(times, default=math.inf)

    @property
    def _stalled(self) -> bool:
        return any(
            landing.land_ns - landing.stall_ns <= self.t_ns < landing.land_ns for landing in self.pending
        )

    def _pass(self, t_ns: float) -> None:
        elapsed_ns = int(t_ns) - self.t_ns
        if elapsed_ns <= 0:
            return
        if self.queue and not self._stalled:
            head = self.queue[0]
            self.queue[0] = replace(head, n_left=head.n_left - elapsed_ns / self.operating.duration_ns)
        power_w = self.history.last.power_w
        self.energy_j += power_w * elapsed_ns * 1e-9
        settled_c = self.thermal.ambient_c + self.thermal.c_per_w * power_w
        decay = math.exp(-elapsed_ns * 1e-9 / self.thermal.tau_s)
        self.temperature_c = settled_c + (self.temperature_c - settled_c) * decay
        self.t_ns = int(t_ns)

    def _happen(self) -> bool:
        """Everything due by now; whether anything was."""
        landed = [landing for landing in self.pending if landing.land_ns <= self.t_ns]
        self.pending = self.pending[len(landed) :]
        for landing in landed:
            self.in_force[landing.domain] = landing.value
            self.energy_j += landing.extra_energy_j
            lost = self.fault("lock_lost")
            if lost and isinstance(landing.value, int):
                lost_ns = self.t_ns + round(lost.value * 1e9)
                self._expect(Landing(lost_ns, landing.domain, AUTO, by_fault=True))
        for domain, value in {
            landing.domain: landing.value for landing in landed
        }.items():  # the last of each
            if not isinstance(value, int) and all(p.domain != domain for p in self.pending):
                self.accepted[domain] = AUTO
        moved = [sm_mhz for t, sm_mhz in self.moves if t <= self.t_ns]
        self.moves = self.moves[len(moved) :]
        if moved:
            self.operating = replace(self.operating, sm_mhz=moved[-1])
        ended = [work for work in self.queue[:1] if work.n_left <= _DONE]
        if ended:
            del self.queue[0]
            self._end(ended)
        self.n_events += 1
        return bool(landed or moved or ended)

    def _end(self, works: list[Work]) -> None:
        for work in works:
            if work.token:
                self.ended[work.token] = self.t_ns
        while len(self.ended) > _KEPT_ENDS:
            del self.ended[next(iter(self.ended))]

    def _settle(self) -> None:
        """Clocks, speed and power that follow from load, locks and faults as they are now."""
        kind = self.queue[0].kind if self.queue else None
        steady = self._at_rest(kind, self.in_force["sm"], self.in_force["mem"])
        within_mhz = self._within_limit(kind, steady)
        self.capped = steady.capped or within_mhz < steady.sm_mhz
        goal_sm_mhz = self._held_down(within_mhz)
        if self.governor is None:
            sm_mhz = goal_sm_mhz
        else:
            sm_mhz = self.operating.sm_mhz
            if goal_sm_mhz != self.goal_sm_mhz:
                self.moves = _plan(self.governor, self.t_ns, sm_mhz, goal_sm_mhz)
        self.goal_sm_mhz = goal_sm_mhz
        at_rest = sm_mhz == steady.sm_mhz
        operating = steady if at_rest else self.behaviour.at(kind, sm_mhz, steady.mem_mhz)
        for name in ("slower", "foreign_process"):
            fault = self.fault(name)
            if fault:
                operating = replace(operating, duration_ns=operating.duration_ns * fault.value)
        self.operating = operating
        power_w = (
            self.behaviour.at(None, sm_mhz, steady.mem_mhz).power_w if self._stalled else operating.power_w
        )
        if power_w != self.history.last.power_w or self.energy_j != self.energy_at(self.t_ns):
            self.history.append(Breakpoint(self.t_ns, self.energy_j, power_w))
            self.history.forget(self.t_ns - _KEPT_NS)

    def _within_limit(self, kind: str | None, steady: Operating) -> int:
        limit = self.fault("power_limit")
        if limit is None or steady.power_w <= limit.value:
            return steady.sm_mhz
        lower = [mhz for mhz in self.behaviour.sm_mhz if mhz < steady.sm_mhz]
        fitting = [m for m in lower if self.behaviour.at(kind, m, steady.mem_mhz).power_w <= limit.value]
        return max(fitting, default=min(lower, default=steady.sm_mhz))

    def _held_down(self, sm_mhz: int) -> int:
        clipped, moved, hot = self.fault("clipped"), self.fault("mem_moves_sm"), self.fault("throttling")
        if clipped and isinstance(self.in_force["sm"], int):
            sm_mhz = min(sm_mhz, round(clipped.value))
        if moved and isinstance(self.in_force["mem"], int):
            sm_mhz -= round(moved.value)
        if hot:
            sm_mhz = min(sm_mhz, round(hot.value))
        return max(sm_mhz, self.behaviour.sm_mhz[0]) if self.behaviour.sm_mhz else sm_mhz


def _plan(governor: DynamicGovernor, t_ns: int, now_mhz: int, goal_mhz: int) -> list[tuple[int, int]]:
    """The governor's steps from one SM clock to another: (time, clock)."""
    falls = goal_mhz < now_mhz
    low_mhz = goal_mhz - governor.overshoot * (now_mhz - goal_mhz) if falls else float(goal_mhz)
    legs: list[tuple[float, float, int]] = [
        (now_mhz, low_mhz, governor.fall_ns if falls else governor.rise_ns)
    ]
    if low_mhz != goal_mhz:
        legs.append((low_mhz, goal_mhz, governor.rise_ns))
    moves, start_ns = [], t_ns + governor.sense_ns
    for begin, end, length_ns in legs:
        for i in range(1, governor.steps + 1):
            share = i / governor.steps
            moves.append((start_ns + round(length_ns * share), round(begin + (end - begin) * share)))
        start_ns += length_ns
    return moves
