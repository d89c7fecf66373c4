"""Live: the schedule's requests are made while the workload runs, and its step times are the witness.

Steps are launched one ahead, so that the GPU never waits for the host; a controller thread waits for the
anchor of each request, and makes it. Under ``drain`` the launching thread itself empties the GPU,
asks, waits and goes on, as the protocol says.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np

from kdvfs_hw.measure.observer import Observation, Observer
from kdvfs_hw.readback import NEAR_MHZ
from kdvfs_hw.runs.plan import Arm, Binding, Plan
from kdvfs_hw.runs.record import Record
from kdvfs_hw.runs.trouble import Troubles
from kdvfs_hw.runs.verdict import (
    ENERGY_TOLERANCE,
    SWITCHING_TOLERANCE,
    TIME_TOLERANCE,
    Quantity,
    quantity,
)
from kdvfs_hw.timing import begin, join
from kdvfs_hw.workloads.base import Ticket, Workload
from kdvfs_sim.core.clocks import AUTO, AUTO_CLOCKS, Clocks
from kdvfs_sim.core.device import ClockControl, ObservedClocks
from kdvfs_sim.core.errors import DeviceError

Todo: TypeAlias = deque["tuple[Ticket, int, Clocks] | None"]  # anchor, offset_ns, clocks; None ends it
_POLL_NS: Final = 500_000
_IDLE_NS: Final = 200_000
_N_LAGS: Final = 64
_BLUR: Final = 0.3
_SHORTEST_NS: Final = 100_000_000
_LONGEST_NS: Final = 3_000_000_000
_PATIENCE: Final = 20  # times the expected latency: 10 times is a finding, not a failure
_SKIPPED: Final = 2  # steps at the start of a block: the clocks are still on their way from the block before
_AHEAD: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A request made live. ``latency_ns`` None: its clocks cannot be told from others, or were not seen.

    ``problem``: what makes the block it belongs to void.
    """

    old: Clocks
    new: Clocks
    host_call_ns: int
    latency_ns: int | None
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Block:
    """Steps of one arm in a row."""

    arm: str
    step_s: tuple[float, ...]
    seen: Observation
    changes: tuple[Change, ...]
    void: str = ""

    @property
    def time_s(self) -> float:
        return float(np.mean(self.step_s))

    @property
    def energy_j(self) -> float | None:
        return None if self.seen.power_w is None else self.seen.power_w * self.time_s


@dataclass
class Director:
    """Makes requests and waits for each to land before the next, as one change outstanding demands."""

    plan: Plan
    observer: Observer
    control: ClockControl
    last: Clocks | None = None
    landed: bool = False  # the last request was seen to be in force
    changes: list[Change] = field(default_factory=list)
    stopped: bool = False  # the run is ending: nothing is waited for any more

    def request(self, clocks: Clocks) -> None:
        if clocks == self.last:
            return
        problem = self._lost()
        old, self.last = self.last, clocks
        made = self.control.request_clocks(clocks)
        longest_ns = max(self.plan.switching_ns.values(), default=0)
        expected_ns = longest_ns if old is None else self.plan.switching_ns.get((old, clocks), longest_ns)
        landed_ns, missed = self._await(clocks, made.issued_ns, expected_ns)
        self.landed = landed_ns is not None
        if old is not None:
            self.changes.append(
                Change(
                    old=old,
                    new=clocks,
                    host_call_ns=made.returned_ns - made.issued_ns,
                    latency_ns=None if landed_ns is None else landed_ns - made.issued_ns,
                    problem=problem or (f"clocks {clocks} were accepted but not reached" if missed else ""),
                )
            )

    def _lost(self) -> str:
        """What became of the last request, if it was in force and no longer is."""
        if not self.landed or self.last is None:
            return ""
        seen = self.observer.device.observed_clocks()
        if seen.off_by_mhz(self.last) <= NEAR_MHZ or self._held_down(self.last, seen):
            return ""
        return f"clocks {self.last} were lost: read {seen}"

    def _held_down(self, clocks: Clocks, seen: ObservedClocks) -> bool:
        """Below a lock, by the power limit: a lock is an upper bound."""
        below = clocks.sm_mhz is not AUTO and seen.sm_mhz < clocks.sm_mhz
        return below and "sw_power_cap" in self.observer.device.throttle_reasons().reasons

    def _await(self, clocks: Clocks, issued_ns: int, expected_ns: int) -> tuple[int | None, bool]:
        """When the clocks were reached, in the middle between the last look that missed them and the first
        that saw them; None if those are too far apart to tell. And whether they never were."""
        device = self.observer.device
        telling = clocks.sm_mhz is not AUTO or clocks.mem_mhz is not AUTO
        longest_ns = min(_LONGEST_NS, max(_SHORTEST_NS, _PATIENCE * expected_ns))
        end_ns = issued_ns + (longest_ns if telling else expected_ns)
        missed_ns: int | None = None
        while device.time.now_ns() < end_ns and not self.stopped:
            self.observer.check()
            if not telling:
                device.time.sleep_ns(min(_POLL_NS, end_ns - device.time.now_ns()))
                continue
            seen = device.observed_clocks()
            if seen.off_by_mhz(clocks) <= NEAR_MHZ:
                if missed_ns is None:
                    # it was there already: nothing can be told, but it may still be on its way
                    device.time.sleep_ns(max(0, issued_ns + expected_ns - device.time.now_ns()))
                    return None, False
                blur_ns = seen.returned_ns - missed_ns
                sharp = blur_ns <= max(4 * _POLL_NS, _BLUR * (seen.returned_ns - issued_ns))
                return ((missed_ns + seen.returned_ns) // 2 if sharp else None), False
            missed_ns = seen.called_ns
            if device.time.now_ns() > issued_ns + expected_ns and self._held_down(clocks, seen):
                return None, False  # where the lock is cannot be seen
            device.time.sleep_ns(_POLL_NS)
        return None, telling


@contextmanager
def _controller(director: Director, workload: Workload) -> Iterator[Todo]:
    """A thread that takes (anchor, offset, clocks) in order, and makes each request at its time."""
    todo: Todo = deque()
    lags: deque[int] = deque(maxlen=_N_LAGS)
    clock = director.observer.device.time
    errors: list[BaseException] = []

    def run() -> None:
        try:
            while True:
                if not todo:  # no blocking queue: a blocked thread would stop virtual time
                    clock.sleep_ns(_IDLE_NS)
                    continue
                item = todo.popleft()
                if item is None:
                    return
                anchor, offset_ns, clocks = item
                anchor_ns = workload.wait(anchor)
                # the anchor may be long past: its time on this clock is the GPU's plus the least lag seen
                lags.append(clock.now_ns() - anchor_ns)
                clock.sleep_ns(max(0, anchor_ns + min(lags) + offset_ns - clock.now_ns()))
                director.request(clocks)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="kdvfs-controller", daemon=True)
    begin(thread, clock)
    try:
        yield todo
    except BaseException:
        director.stopped = True
        todo.clear()
        raise
    finally:
        todo.append(None)
        join(thread, clock)
    if errors:
        raise errors[0]


def run_block(
    plan: Plan, arm: Arm, workload: Workload, director: Director, *, seconds: float, binding: Binding
) -> Block:
    """Passes of the trace for at least ``seconds``, and until the energy counter has moved often enough."""
    observer = director.observer
    begun_ns = observer.device.time.now_ns()
    period = observer.period
    least_ns = max(seconds * 1e9, 0 if period is None else 8 * period.period_ns)
    n_before = len(director.changes)
    ends: list[tuple[int, int]] = []  # (host, gpu)

    def more() -> bool:
        if any(change.problem for change in director.changes[n_before:]):
            return len(ends) < _SKIPPED + 2
        if len(ends) <= _SKIPPED + 3:
            return True
        return observer.device.time.now_ns() - begun_ns < least_ns

    static = len(arm.requests) <= 1
    if static:
        # a schedule without requests stays at the start clocks
        director.request(arm.requests[0].clocks if arm.requests else AUTO_CLOCKS)
    if static or not plan.protocol.drains:
        with _controller(director, workload) as todo:
            queued: deque[Ticket] = deque()
            while more():
                while len(queued) < _AHEAD:
                    queued.append(_launch_pass(arm, workload, binding, None if static else todo))
                gpu_ns = workload.wait(queued.popleft())
                ends.append((observer.device.time.now_ns(), gpu_ns))
                director.control.beat()
                observer.check()
            for ticket in queued:
                workload.wait(ticket)
    else:
        while more():
            gpu_ns = _drained_pass(binding, arm, workload, director)
            ends.append((observer.device.time.now_ns(), gpu_ns))
            observer.check()
    used = ends[_SKIPPED:]
    seen = observer.between(used[0][0], used[-1][0])
    return Block(
        arm=arm.name,
        step_s=tuple(np.diff([gpu_ns for _, gpu_ns in used]) * 1e-9),
        seen=seen,
        changes=tuple(director.changes[n_before:]),
        void="; ".join([*seen.marks, *_problems(director.changes[n_before:])]),
    )


def _problems(changes: list[Change]) -> list[str]:
    found = [change.problem for change in changes if change.problem]
    return [f"{found[0]} ({len(found)} of {len(changes)} requests)"] if found else []


def _launch_pass(arm: Arm, workload: Workload, binding: Binding, todo: Todo | None) -> Ticket:
    """Queue a whole pass of the trace; hand the controller a ticket for each anchor."""
    if todo is None:
        return workload.launch(None, binding.n_per_pass)
    done, n_ops = 0, workload.n_ops
    for request in arm.requests:
        anchor = binding.anchors[request.launch]
        ticket = _launch_until(workload, done, anchor, n_ops)
        done = anchor
        todo.append((ticket, request.offset_ns, request.clocks))
    return _launch_until(workload, done, binding.anchors[-1], n_ops)


def _launch_until(workload: Workload, first: int, stop: int, n_ops: int) -> Ticket:
    """Operations ``first`` to ``stop`` of the pass, which may run through several steps; a mark after."""
    while first < stop:
        end = min(stop, (first // n_ops + 1) * n_ops)
        workload.segment(first % n_ops, (end - 1) % n_ops + 1)
        first = end
    return workload.launch(None, 0)


def _drained_pass(binding: Binding, arm: Arm, workload: Workload, director: Director) -> int:
    done, n_ops = 0, workload.n_ops
    for request in arm.requests:
        anchor = binding.anchors[request.launch]
        workload.wait(_launch_until(workload, done, anchor, n_ops))
        done = anchor
        director.request(request.clocks)
    return workload.wait(_launch_until(workload, done, binding.anchors[-1], n_ops))


def live_round(
    plan: Plan,
    workload: Workload,
    director: Director,
    record: Record,
    blocks: list[Block],
    *,
    seconds: float,
    binding: Binding,
    rng: random.Random,
    troubles: Troubles,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """One block of every arm, in random order."""
    for arm in rng.sample(plan.arms, len(plan.arms)):
        say(f"live: {arm.name}")
        block = run_block(plan, arm, workload, director, seconds=seconds, binding=binding)
        blocks.append(block)
        record.add(
            "live",
            arm=block.arm,
            time_s=block.time_s,
            energy_j=block.energy_j,
            power_w=block.seen.power_w,
            instant_w=block.seen.instant_w,
            sm_mhz=block.seen.sm_mhz,
            step_s=block.step_s,
            latencies_ms=[None if c.latency_ns is None else c.latency_ns * 1e-6 for c in block.changes],
            host_calls_ms=[c.host_call_ns * 1e-6 for c in block.changes],
            void=block.void,
        )
        troubles.note(block.void, block.seen.energy)


def live_quantities(plan: Plan, blocks: list[Block]) -> list[Quantity]:
    """Latency of the changes, then time and energy of each arm's step."""
    found = []
    changes = [change for block in blocks if not block.void for change in block.changes]
    pairs = [(c.latency_ns, plan.switching_ns.get((c.old, c.new))) for c in changes]
    seen = [(latency, expected) for latency, expected in pairs if latency is not None and expected]
    if seen:
        mean = float(np.mean([expected for _, expected in seen])) * 1e-6
        # each latency against its own pair's expectation, in units of their mean
        scaled = [latency / expected * mean for latency, expected in seen]
        found.append(quantity("switching", "latency", "ms", mean, scaled, SWITCHING_TOLERANCE))
    for arm in plan.arms:
        mine = [block for block in blocks if block.arm == arm.name and not block.void]
        void = [block.void for block in blocks if block.arm == arm.name and block.void]
        note = f"{len(void)} void blocks, the first: {void[0]}" if void else ""
        part = f"live {arm.name}"
        found += [
            quantity(part, "time", "s", arm.time_s, [b.time_s for b in mine], TIME_TOLERANCE, note),
            quantity(part, "energy", "J", arm.energy_j, [b.energy_j for b in mine], ENERGY_TOLERANCE, note),
        ]
    return found


def choose(plan: Plan, blocks: list[Block], *, slack: float) -> tuple[str, float, float] | None:
    """The arm with least energy within the time budget, chosen on the odd rounds and reported on the even.

    Its name, time and energy against AUTO, in per cent. None from fewer than two rounds.
    """
    rounds: dict[str, list[Block]] = {}
    for block in blocks:
        if not block.void and block.energy_j is not None:
            rounds.setdefault(block.arm, []).append(block)
    if set(rounds) != {arm.name for arm in plan.arms} or min(map(len, rounds.values())) < 2:
        return None

    def mean(arm: str, half: int) -> tuple[float, float]:
        chosen = rounds[arm][half::2]
        energies = [block.energy_j for block in chosen if block.energy_j is not None]
        return float(np.mean([block.time_s for block in chosen])), float(np.mean(energies))

    base = plan.arms[0].name
    budget_s = mean(base, 0)[0] * (1 + slack)
    fitting = [arm.name for arm in plan.arms if mean(arm.name, 0)[0] <= budget_s]
    if not fitting:
        raise DeviceError("no arm kept within the time budget, AUTO included")
    best = min(fitting, key=lambda name: mean(name, 0)[1])
    (time_s, energy_j), (base_s, base_j) = mean(best, 1), mean(base, 1)
    return best, 100 * (time_s / base_s - 1), 100 * (energy_j / base_j - 1)
