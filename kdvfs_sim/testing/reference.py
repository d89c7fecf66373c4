"""A replay by stepping through every nanosecond: slow, and obvious enough to be believed.

It shares with the replay only the program. One device, the four protocols with the serial queue.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.core.switching import Boundary, SwitchDraws, SwitchProtocol, SwitchTable
from kdvfs_sim.replay.program import Program
from kdvfs_sim.testing.reference_device import effective, power_w


def known(time_ns: int | None) -> int:
    """A time that has come."""
    assert time_ns is not None
    return time_ns


@dataclass
class _Piece:
    """An operation in progress, or the part of it that passes before operation ``before`` may start."""

    op: int
    left: int
    ratio: float | None = None
    before: int = -1


@dataclass(frozen=True)
class _Change:
    issued: int
    stalls: int
    lands: int
    returns: int
    row: int
    extra: float


@dataclass(frozen=True)
class _Carry:
    row: int
    requested: int
    change: _Change | None = None
    returns: int = 0
    delays: tuple[tuple[int, int, int], ...] = ()


@dataclass
class Outcome:
    """Starts and ends by operation. ``dropped``: some requests were never made. ``settled``: see
    ``reference_replay``."""

    start_ns: list[int]
    end_ns: list[int]
    energy_j: float
    n_switches: int
    dropped: bool
    carry: _Carry
    settled: bool = True


def reference_replay(
    program: Program,
    *,
    costs: CostTable,
    switching: SwitchTable,
    protocol: SwitchProtocol,
    schedule: Schedule,
    boundary: Boundary,
    start: Clocks,
    draws: SwitchDraws | None = None,
) -> Outcome:
    """One iteration; under ``periodic`` the one that leaves things as it found them, or the eighth, which is
    then not ``settled``. Energy is NaN where some power is not known."""
    rows = [costs.index(r.clocks) for r in schedule.requests]
    first = rows[-1] if rows and boundary == "periodic" else costs.index(start)
    carry = _Carry(first, first)
    for _ in range(8):
        outcome = Iteration(program, costs, switching, protocol, schedule, carry, draws).run()
        if boundary == "one-shot" or outcome.carry == carry:
            return outcome
        carry = outcome.carry
    return replace(outcome, settled=False)


class Iteration:
    """One run through the program, from what the one before left (``carry``)."""

    def __init__(
        self,
        program: Program,
        costs: CostTable,
        switching: SwitchTable,
        protocol: SwitchProtocol,
        schedule: Schedule,
        carry: _Carry,
        draws: SwitchDraws | None,
    ) -> None:
        self.draws, self.numbers = draws, []
        self.p, self.costs, self.switching, self.protocol = program, costs, switching, protocol
        n, host = program.n_ops, program.host
        self.row, self.requested, self.change, self.returns = (
            carry.row,
            carry.requested,
            carry.change,
            carry.returns,
        )
        self.start: list[int | None] = [None] * n
        self.end: list[int | None] = [None] * n
        self.running: list[_Piece] = []
        self.passed: set[int] = set()
        self.h_reach: list[int | None] = [None] * len(host)
        self.h_start: list[int | None] = [None] * len(host)
        self.h_end: list[int | None] = [None] * len(host)
        self.h_delay = [0] * len(host)
        self.delays = list(carry.delays)
        self.floor: dict[int, int] = {}
        self.requests: list[tuple[int, int, int]] = []
        for number, r in enumerate(schedule.requests):
            op = next(
                i
                for i in range(n)
                if program.stream[i] == program.stream_index(r.device, r.stream)
                and program.position[i] == r.launch
            )
            row = costs.index(r.clocks)
            if row != (self.requests[-1][2] if self.requests else self.requested):
                self.requests.append((op, r.offset_ns, row))
                self.numbers.append(number)
        self.next = 0
        self.gated: set[int] = set()
        self.closed = False
        self.reopens: int | None = None
        self.energy = 0.0
        self.n_switches = 0
        self.done_until = -1  # a drained anchor has several requests: the next not before this
        self.held = self.find_held()

    def find_held(self) -> dict[int, int]:
        if not (self.protocol.drains and self.protocol.issuer == "launch_thread"):
            return {}
        held = {}
        for op, _, _ in self.requests:
            launch = int(self.p.launch[op])
            own = [i for i in range(self.p.n_ops) if self.p.launch[i] == launch]
            if launch >= 0 and own[0] == op and self.p.last_action[op] == launch:
                held[launch] = op
        return held

    def run(self) -> Outcome:
        t = min([0, *self.p.host.start_ns.tolist()])
        while True:
            while self.step(t):
                pass
            if all(e is not None for e in self.end):
                return self.outcome(t)
            self.spend(t)
            t += 1
            assert t < 100_000, "the reference waits for ever"

    # -- what happens at t; True if anything did ---------------------------------------------------

    def step(self, t: int) -> bool:
        if self.land(t) or self.finish(t):
            return True
        if all(e is not None for e in self.end):
            return False
        return self.host_acts(t) or (t >= 0 and self.starts(t)) or self.asks(t) or self.settle()

    def land(self, t: int) -> bool:
        if self.change is None or self.change.lands != t:
            return False
        self.row = self.change.row
        self.energy += self.change.extra
        self.change = None
        return True

    def finish(self, t: int) -> bool:
        done = [x for x in self.running if x.left == 0 and x.ratio is not None]
        for x in done:
            if x.before >= 0:
                self.passed.add(x.before)
            else:
                self.end[x.op] = t
        self.running = [x for x in self.running if x not in done]
        return bool(done)

    def host_acts(self, t: int) -> bool:
        host, acted = self.p.host, False
        for i in range(len(host)):
            if self.h_start[i] is None:
                before, own = int(host.prev_any[i]), int(host.prev_own[i])
                if (before >= 0 and self.h_end[before] is None) or (own >= 0 and self.h_end[own] is None):
                    continue
                at = int(host.start_ns[i]) if before < 0 else known(self.h_end[before]) + int(host.gap_ns[i])
                if own >= 0:
                    at = max(at, known(self.h_end[own]))
                at += self.h_delay[i]
                for delay in [d for d in self.delays if host.is_launch[i] and d[0] == host.thread[i]]:
                    if delay[1] < at:  # the first launch of the thread after that moment
                        self.delays.remove(delay)
                        self.h_delay[i] += delay[2]
                        at += delay[2]
                if i in self.held:
                    acted |= self.h_reach[i] is None and at <= t
                    self.h_reach[i] = at if at <= t else None
                    continue
                if at > t:
                    continue
                self.h_start[i] = at
                acted = True
            if self.h_end[i] is None:
                at = known(self.h_start[i]) + int(host.length_ns[i])
                if host.awaits[i] >= 0:
                    ended = self.end[host.awaits[i]]
                    if ended is None:
                        continue
                    at = max(at, ended + int(host.await_lag_ns[i]))
                # known as soon as it is determined, like the host's other times
                self.h_end[i] = at
                acted = True
        return acted

    def ready(self, op: int, t: int) -> bool:
        p = self.p
        if op in self.floor:  # its requests are done: it was ready when it was gated
            return True
        if p.previous[op] >= 0 and self.start[p.previous[op]] is None:
            return False
        if t < p.not_before_ns[op] or (p.overlap_ns[op] >= 0 and op not in self.passed):
            return False
        anchors = [(int(p.after[op]), int(p.after_lag_ns[op]))] if p.after[op] >= 0 else []
        anchors += [
            (int(on), int(lag))
            for o, on, lag in zip(p.wait_op, p.wait_on, p.wait_lag_ns, strict=True)
            if o == op
        ]
        if any(self.end[on] is None or t < known(self.end[on]) + lag for on, lag in anchors):
            return False
        launch = int(p.launch[op])
        if launch >= 0:
            if self.held.get(launch) == op:
                return self.h_reach[launch] is not None
            return self.h_start[launch] is not None and t >= self.h_start[launch] + p.launch_lag_ns[op]
        return True

    def starts(self, t: int) -> bool:
        if self.reopens == t:
            self.closed = False
            self.reopens = None
        for op in range(self.p.n_ops):
            if self.start[op] is not None or op in self.gated or not self.ready(op, t):
                continue
            mine = [k for k in range(self.next, len(self.requests)) if self.requests[k][0] == op]
            if self.protocol.drains and mine:
                self.gated.add(op)
                launch = int(self.p.launch[op])
                if self.held.get(launch) == op:
                    self.floor[op] = known(self.h_reach[launch]) + int(self.p.launch_lag_ns[op])
                return True
            if self.closed or t < self.floor.get(op, t):
                continue
            self.start[op] = t
            self.running.append(_Piece(op, int(self.p.duration_ns[op])))
            for later in range(self.p.n_ops):
                if self.p.previous[later] == op and self.p.overlap_ns[later] >= 0:
                    self.running.append(_Piece(op, int(self.p.overlap_ns[later]), before=later))
            return True
        return False

    def asks(self, t: int) -> bool:
        if self.next == len(self.requests):
            return False
        op, offset, row = self.requests[self.next]
        if not self.protocol.charged:
            if self.start[op] is None:
                return False
            self.row = self.requested = row
            self.next += 1
            self.n_switches += 1
            return True
        if self.change is not None or t < self.returns:
            return False
        if self.protocol.drains:
            if op not in self.gated or self.reopens is not None:
                return False
            self.closed = True
            if any(x.before < 0 for x in self.running):
                return False
        else:
            trigger = offset + (0 if self.protocol.anticipates else self.protocol.trigger_ns)
            if self.start[op] is None or t < known(self.start[op]) + trigger:
                return False
        self.ask(op, row, t)
        return True

    def ask(self, op: int, row: int, t: int) -> None:
        s, old = self.switching, self.requested
        call, takes = int(s.host_call_ns[old, row]), int(s.switching_ns[old, row])
        if self.draws is not None:
            i = self.numbers[self.next]
            takes = max(0, round(self.draws.factor[i] * takes) + int(self.draws.late_ns[i]))
        self.requested = row
        self.returns = t + call
        stalls = t + takes - min(takes, int(s.stall_ns[old, row]))
        extra = float(s.extra_energy_j[old, row])
        self.change = _Change(t, stalls, t + takes, t + call, row, extra)
        self.next += 1
        self.n_switches += 1
        done = t + max(call, takes)
        launch = int(self.p.launch[op])
        last = self.next == len(self.requests) or self.requests[self.next][0] != op
        if self.protocol.issuer == "launch_thread" and launch >= 0:
            if launch in self.held:
                if last:
                    del self.held[launch]
                    self.h_start[launch] = done
                    self.h_end[launch] = done + int(self.p.host.length_ns[launch])
            else:
                blocked = done - t if self.protocol.drains else call
                self.delays.append((int(self.p.host.thread[launch]), t, blocked))
        if self.protocol.drains and last:
            self.gated.discard(op)
            self.reopens = done + self.protocol.relaunch_ns

    def settle(self) -> bool:
        ops = [x.op for x in self.running if x.before < 0]
        kinds = sorted(int(self.p.kind[op]) for op in ops)
        changed = False
        for x in self.running:
            k = int(self.p.kind[x.op])
            now, recorded = (effective(self.costs, kinds, row) for row in (self.row, self.costs.recorded))
            d = self.costs.duration_ns
            ratio = 1.0 if now == recorded else float(d[k, now] / d[k, recorded])
            if x.ratio is None:
                x.left = round(x.left * ratio)
                changed |= x.left == 0
            elif x.ratio != ratio:
                x.left = round(x.left * (ratio / x.ratio))
                changed |= x.left == 0
            x.ratio = ratio
        return changed

    # -- from t to t + 1 ---------------------------------------------------------------------------

    def spend(self, t: int) -> None:
        stalled = self.change is not None and self.change.stalls <= t < self.change.lands
        if t >= 0:
            kinds = sorted(int(self.p.kind[x.op]) for x in self.running if x.before < 0)
            row = effective(self.costs, kinds, self.row)
            self.energy += power_w(self.costs, [] if stalled else kinds, row) * 1e-9
        if not stalled:
            for x in self.running:
                x.left -= 1

    def outcome(self, t: int) -> Outcome:
        c = self.change
        if c is not None:
            c = _Change(c.issued - t, c.stalls - t, c.lands - t, c.returns - t, c.row, c.extra)
        carry = _Carry(
            self.row,
            self.requested,
            c,
            max(0, self.returns - t),
            tuple((thread, at - t, by) for thread, at, by in self.delays),
        )
        dropped = self.next < len(self.requests)
        return Outcome(
            start_ns=[known(time) for time in self.start],
            end_ns=[known(time) for time in self.end],
            energy_j=self.energy,
            n_switches=self.n_switches,
            dropped=dropped,
            carry=carry,
        )
