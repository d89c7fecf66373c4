"""One device in a replay: what runs on it, how fast, and when the next of it ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simpy.events import Event

from kdvfs_sim.replay.governor import Governed
from kdvfs_sim.replay.phases import ENDS, NEVER
from kdvfs_sim.replay.plan import Request
from kdvfs_sim.replay.states import STEADY
from kdvfs_sim.replay.switcher import DeviceCarry, Switcher

if TYPE_CHECKING:
    from kdvfs_sim.replay.engine import Engine


class Running:
    """An operation in progress; or, as a mark, the part of one that passes before ``op`` may start."""

    __slots__ = ("end_ns", "kind", "left_ns", "op", "ratio")

    def __init__(self, op: int, kind: int, work_ns: int) -> None:
        self.op = op
        self.kind = kind
        self.left_ns = work_ns
        self.ratio = 0.0  # until it is settled, left_ns is recorded time
        self.end_ns = NEVER

    def rescale(self, ratio: float, now: int, was_frozen: bool, frozen: bool) -> None:
        """Go on at another speed: the arithmetic of docs/explanation/replay.md, shared with fast.py."""
        old = self.ratio
        left = self.left_ns if was_frozen or old == 0.0 else self.end_ns - now
        if old == 0.0:
            if ratio != 1.0:
                left = round(left * ratio)
        elif ratio != old:
            left = round(left * (ratio / old))
        self.ratio = ratio
        self.left_ns = left
        self.end_ns = NEVER if frozen and left else now + left


class Device:
    """``log_ns``, ``log_state`` and ``log_ops`` are what happened: a State (its number) from a time on,
    and the operations running in it, state after state."""

    def __init__(self, engine: Engine, index: int, carry: DeviceCarry, requests: Sequence[Request]) -> None:
        self.engine = engine
        self.index = index
        self.running: list[Running] = []
        self.marks: list[Running] = []
        self.dirty = False
        self.log_ns: list[int] = []
        self.log_state: list[int] = []
        self.log_ops: list[int] = []
        self.switcher = Switcher(self, carry, requests)
        self._governed = Governed(engine.governor, self, carry.row) if engine.governor else None
        self._frozen = False
        self._due: Event | None = None
        self._due_ns = NEVER
        self.touch()

    def touch(self) -> None:
        """Settle this device when nothing else is due in this nanosecond."""
        if not self.dirty:
            self.dirty = True
            self.engine.dirty.append(self)

    def settle(self, now: int) -> None:
        """Find the state that holds from now on, and with it the end of everything that runs."""
        self.dirty = False
        engine, running, switcher = self.engine, self.running, self.switcher
        if len(running) == 1:
            kinds: tuple[int, ...] = engine.links.alone[running[0].op]
        else:
            kinds = tuple([r.kind for r in running])
        governed = STEADY
        if self._governed is not None:
            governed = self._governed.settle(kinds, switcher.row, now)
        frozen = bool(switcher.in_flight) and switcher.stalls(now)
        state = engine.states[switcher.requested, switcher.row, governed, frozen, kinds]
        self.log_ns.append(now)
        self.log_state.append(state.number)
        was_frozen, self._frozen = self._frozen, frozen
        for r, ratio in zip(running, state.ratios, strict=True):
            self.log_ops.append(r.op)
            if r.ratio != ratio or frozen or was_frozen:
                r.rescale(ratio, now, was_frozen, frozen)
        if self.marks:
            ratio_of = {r.op: r.ratio for r in running}
            for mark in self.marks:
                mark.rescale(ratio_of[engine.links.previous[mark.op]], now, was_frozen, frozen)
        self._expect_next_end()

    def _expect_next_end(self) -> None:
        """Keep one event in SimPy's queue: the earliest end. Others are found when it has come."""
        next_ns = NEVER
        for r in self.running:
            if r.end_ns < next_ns:
                next_ns = r.end_ns
        for r in self.marks:
            if r.end_ns < next_ns:
                next_ns = r.end_ns
        if next_ns != self._due_ns:
            self._due_ns = next_ns
            self._due = None if next_ns == NEVER else self.engine.at(next_ns, ENDS, self._on_end)

    def _on_end(self, event: Event) -> None:
        if event is not self._due:
            return  # speeds have changed since: what is next ends at another time
        engine, now = self.engine, self._due_ns
        self._due, self._due_ns = None, NEVER
        ended, passed = self.running, self.marks
        if len(ended) == 1 and not passed:
            self.running = []
        else:
            ended = [r for r in self.running if r.end_ns == now]
            passed = [r for r in self.marks if r.end_ns == now]
            self.running = [r for r in self.running if r.end_ns != now]
            self.marks = [r for r in self.marks if r.end_ns != now]
        if ended:
            self.touch()
            self.switcher.some_ended(now)
        else:
            self._expect_next_end()
        for r in passed:
            engine.passed(r.op, now)
        for r in ended:
            engine.ended(r.op, now)
        engine.finish(now)
