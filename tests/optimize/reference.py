"""Slow and obvious: a chain replayed event by event.

Written from docs/explanation/replay.md without the optimizers' code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from kdvfs_sim.core.chain import Chain
from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.core.problem import Metrics
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.core.switching import Boundary, SwitchProtocol, SwitchTable


@dataclass(frozen=True)
class Pending:
    """A change in flight, times from the start of the iteration."""

    target: int
    stops_ns: int
    lands_ns: int
    extra_j: float


@dataclass(frozen=True)
class Carry:
    clock: int
    requested: int
    pending: Pending | None = None
    free_ns: int = 0


@dataclass(frozen=True)
class Asked:
    """A request as it was made, times from the start of the iteration.

    ``ready_ns``: since when no change was outstanding and no call running. ``waited``: made later
    than planned, because one was.
    """

    clock: int
    issued_ns: int
    stops_ns: int
    ready_ns: int
    waited: bool


@dataclass(frozen=True)
class Log:
    """What happened in the last iteration replayed: launch starts and requests."""

    starts_ns: tuple[int, ...]
    asked: tuple[Asked, ...]


@dataclass(frozen=True, kw_only=True)
class SlowEvaluator:
    chain: Chain
    costs: CostTable
    switching: SwitchTable
    protocol: SwitchProtocol
    boundary: Boundary
    start: int

    def evaluate(self, schedule: Schedule) -> Metrics:
        return self.run(schedule)[0]

    def run(self, schedule: Schedule) -> tuple[Metrics, Log]:
        requests = [(r.launch, r.offset_ns, self.costs.index(r.clocks)) for r in schedule.requests]
        if self.boundary == "one-shot":
            metrics, log, _ = self._iteration(requests, Carry(self.start, self.start))
            return metrics, log
        first = requests[-1][2]
        carry = Carry(first, first)
        for _ in range(8):
            metrics, log, after = self._iteration(requests, carry)
            if after == carry:
                return metrics, log
            carry = after
        return replace(metrics, flags=("periodic_not_settled",)), log

    def _iteration(self, requests: list[tuple[int, int, int]], carry: Carry) -> tuple[Metrics, Log, Carry]:
        chain, switching, protocol = self.chain, self.switching, self.protocol
        ratio, power_w, idle_w = self.costs.ratio, self.costs.request_power_w, self.costs.idle_power_w
        n = len(chain)
        queue = list(requests)
        clock, requested, pending, free_ns = carry.clock, carry.requested, carry.pending, carry.free_ns
        now, energy_j, n_switches, switching_ns = 0, 0.0, 0, 0
        started: dict[int, int] = {}
        asked: list[Asked] = []
        ready_ns = carry.free_ns if pending is None else max(carry.free_ns, pending.lands_ns)
        running: int | None = None
        remaining, frozen = 0, False
        frozen = pending is not None and pending.stops_ns < 0
        upcoming, next_start = 0, 0

        def power() -> float:
            if running is None:
                return float(idle_w[clock])
            if frozen:
                return float(idle_w[self.costs.effective[chain.kind[running], clock]])
            return float(power_w[chain.kind[running], clock])

        def advance(to: int) -> None:
            nonlocal now, energy_j, remaining
            if to > now:
                energy_j += power() * (to - now) * 1e-9
                if running is not None and not frozen:
                    remaining -= to - now
                now = to

        def pending_request() -> tuple[int, int] | None:
            """Issue time and target of the head of the queue, if its anchor has started."""
            if pending is not None or not queue or queue[0][0] not in started:
                return None
            trigger_ns = 0 if protocol.anticipates else protocol.trigger_ns
            return max(started[queue[0][0]] + queue[0][1] + trigger_ns, free_ns), queue[0][2]

        def note(target: int) -> None:
            """Remember a request about to be made now, from the clocks requested until now."""
            nonlocal ready_ns
            lands = now + int(switching.switching_ns[requested, target])
            stops = lands - int(switching.stall_ns[requested, target])
            planned = (
                started[queue[0][0]] + queue[0][1] + (0 if protocol.anticipates else protocol.trigger_ns)
            )
            asked.append(Asked(target, now, stops, ready_ns, now > planned))
            ready_ns = max(lands, now + int(switching.host_call_ns[requested, target]))

        def apply(target: int) -> None:
            nonlocal clock, remaining
            if running is not None:
                k = chain.kind[running]
                remaining = int(np.rint(remaining * (ratio[k, target] / ratio[k, clock])))
            clock = target

        while upcoming < n or running is not None:
            # Drain, and free: requests anchored at the launch about to start.
            if running is None and (protocol.drains or not protocol.charged):
                while queue and queue[0][0] == upcoming:
                    target = queue.pop(0)[2]
                    if target == requested:
                        continue
                    n_switches += 1
                    requested = target
                    advance(next_start)
                    if not protocol.charged:
                        clock = target
                        continue
                    call = int(switching.host_call_ns[clock, target])
                    lands = int(switching.switching_ns[clock, target])
                    opened = now + max(call, lands) + protocol.relaunch_ns
                    energy_j += float(switching.extra_energy_j[clock, target])
                    advance(now + lands)
                    clock = target
                    advance(opened)
                    next_start = opened

            times = []  # (time, rank within a nanosecond, what)
            if pending is not None:
                if not frozen and pending.stops_ns < pending.lands_ns:
                    times.append((max(pending.stops_ns, now), 0, "stop"))
                times.append((pending.lands_ns, 1, "land"))
            if running is not None and (remaining == 0 or not frozen):
                times.append((now + remaining, 2, "end"))
            if running is None and upcoming < n:
                times.append((next_start, 3, "start"))
            head = pending_request()
            if head is not None:
                times.append((max(head[0], now), 4, "request"))
            time, _, what = min(times)
            advance(time)
            if what == "stop":
                frozen = True
            elif what == "land":
                assert pending is not None
                frozen = False
                apply(pending.target)
                energy_j += pending.extra_j
                pending = None
            elif what == "end":
                running = None
                if upcoming < n:
                    next_start = now + int(chain.lag_ns[upcoming])
            elif what == "start":
                started[upcoming] = now
                running, upcoming = upcoming, upcoming + 1
                head = pending_request()
                due = head is not None and head[0] == now and protocol.charged and not protocol.drains
                if due and switching.switching_ns[clock, head[1]] == 0 and head[1] != requested:
                    # A change of zero latency applies inside the start it belongs to.
                    note(head[1])
                    queue.pop(0)
                    n_switches += 1
                    energy_j += float(switching.extra_energy_j[clock, head[1]])
                    free_ns = now + int(switching.host_call_ns[clock, head[1]])
                    requested = clock = head[1]
                k = chain.kind[running]
                remaining = int(np.rint(chain.duration_ns[running] * ratio[k, clock]))
            else:
                assert head is not None
                target = head[1]
                if target != requested:
                    note(target)
                queue.pop(0)
                if target != requested:
                    n_switches += 1
                    lands = now + int(switching.switching_ns[clock, target])
                    stall = int(switching.stall_ns[clock, target])
                    extra = float(switching.extra_energy_j[clock, target])
                    pending = Pending(target, lands - stall, lands, extra)
                    free_ns = max(lands, now + int(switching.host_call_ns[clock, target]))
                    switching_ns += lands - now
                    requested = target
        if pending is not None:
            pending = Pending(pending.target, pending.stops_ns - now, pending.lands_ns - now, pending.extra_j)
        metrics = Metrics(
            time_s=now / 1e9, energy_j=energy_j, n_switches=n_switches, switching_s=switching_ns / 1e9
        )
        log = Log(tuple(started[i] for i in range(n)), tuple(asked))
        return metrics, log, Carry(clock, requested, pending, max(free_ns - now, 0))
