"""One device in a replay: what runs on it, how fast, and when the next of it ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from kdvfs_sim.replay.governor import Governed
from kdvfs_sim.replay.phases import ENDS, NEVER
from kdvfs_sim.replay.plan import Request
from kdvfs_sim.replay.states import STEADY, Mode
from kdvfs_sim.replay.switcher import DeviceCarry, Switcher

if TYPE_CHECKING:
    from kdvfs_sim.replay.engine import Due, Engine


NOTHING: Final[tuple[int, ...]] = ()


class Device:
    """``running``: operations in progress. ``marks``: operations whose predecessor still has a part to
    make before they may start; that part passes like an operation of its own, in slot ``n_ops + op``.

    ``log_ns``, ``log_state`` and ``log_ops`` are what happened: a state (its number in States) from a time
    on, and the operations running in it, state after state.
    """

    __slots__ = (
        "_alone",
        "_due",
        "_due_ns",
        "_end_callbacks",
        "_frozen",
        "_governed",
        "_log_op",
        "_log_state",
        "_log_time",
        "_mode",
        "_n_ops",
        "closed",
        "engine",
        "index",
        "log_ns",
        "log_ops",
        "log_state",
        "marks",
        "running",
        "switcher",
        "touched",
    )

    def __init__(self, engine: Engine, index: int, carry: DeviceCarry, requests: Sequence[Request]) -> None:
        self.engine = engine
        self.index = index
        self.running: list[int] = []
        self.marks: list[int] = []
        self.touched = True  # to be settled when nothing else is due in this nanosecond
        self.closed = False  # being drained: nothing starts
        self.log_ns: list[int] = []
        self.log_state: list[int] = []
        self.log_ops: list[int] = []
        self._log_time = self.log_ns.append
        self._log_state = self.log_state.append
        self._log_op = self.log_ops.append
        self._alone = engine.links.alone
        self._n_ops = len(engine.links.kind)
        self._mode: Mode | None = None
        self._frozen = False
        self._end_callbacks = [self._on_end]
        self._due: Due | None = None
        self._due_ns = NEVER
        self._governed = Governed(engine.governor, self, carry.row) if engine.governor else None
        self.switcher = Switcher(self, carry, requests)
        self.clocks_changed()

    def clocks_changed(self) -> None:
        """Its clocks, requested or in force, or a stall are not what they were."""
        self._mode = None
        self.touched = True

    def settle(self, now: int) -> None:
        """Find the state that holds from now on, and with it the end of everything that runs."""
        self.touched = False
        running, mode = self.running, self._mode
        if mode is None or len(running) > 1 or self.marks:
            self._settle_any(now)
            return
        self._log_time(now)
        if not running:
            self._log_state(mode[NOTHING][0])
            return
        op, engine = running[0], self.engine
        number, ratios = mode[self._alone[op]]
        self._log_state(number)
        self._log_op(op)
        if engine.ratio[op] == ratios[0]:
            end_ns = engine.ends_at[op]
        else:
            end_ns = engine.rescale(op, ratios[0], now, False, False)
        if end_ns != self._due_ns:
            self._due_ns = end_ns
            self._due = engine.schedule(now, end_ns, ENDS, self._end_callbacks)

    def _settle_any(self, now: int) -> None:
        """The same without anything taken for granted."""
        engine, running = self.engine, self.running
        kinds = tuple([engine.links.kind[op] for op in running])
        mode, frozen, was_frozen = self._mode, False, False
        if mode is None:
            was_frozen = self._frozen
            mode = self._find_mode(kinds, now)
            frozen = self._frozen
        number, ratios = mode[kinds]
        self._log_time(now)
        self._log_state(number)
        self.log_ops += running
        next_ns = NEVER
        for op, ratio in zip(running, ratios, strict=True):
            end_ns = engine.ends_at[op]
            if engine.ratio[op] != ratio or frozen or was_frozen:
                end_ns = engine.rescale(op, ratio, now, was_frozen, frozen)
            next_ns = min(next_ns, end_ns)
        for op in self.marks:
            ratio = engine.ratio[engine.links.previous[op]]
            next_ns = min(next_ns, engine.rescale(self._n_ops + op, ratio, now, was_frozen, frozen))
        if next_ns != self._due_ns:
            self._expect(next_ns, now)

    def _expect(self, next_ns: int, now: int) -> None:
        """Keep one event in SimPy's queue, the earliest end: the others' turn comes after it."""
        self._due_ns = next_ns
        engine = self.engine
        self._due = None if next_ns == NEVER else engine.schedule(now, next_ns, ENDS, self._end_callbacks)

    def _find_mode(self, kinds: tuple[int, ...], now: int) -> Mode:
        switcher = self.switcher
        self._frozen = switcher.stalls(now)
        if self._governed is not None:
            governed = self._governed.settle(kinds, switcher.row, now, self._frozen)
            return self.engine.states.mode(switcher.requested, switcher.row, governed, self._frozen)
        mode = self.engine.states.mode(switcher.requested, switcher.row, STEADY, self._frozen)
        if not self._frozen:
            self._mode = mode
        return mode

    def _on_end(self, due: Due) -> None:
        engine, now, running = self.engine, due.at_ns, self.running
        if due is self._due:  # else speeds have changed since: what is next ends at another time
            self._due, self._due_ns = None, NEVER
            alone = len(running) == 1 and not self.marks
            ended = [running.pop()] if alone else self._pass_marks_and_end(now)
            if ended:
                self.touched = True
                for op in ended:
                    engine.ended(op, now)
                if self.closed:
                    self.switcher.some_ended(now)
        if engine.next_time() > now:
            engine.settle(now)

    def _pass_marks_and_end(self, now: int) -> list[int]:
        ends_at, n = self.engine.ends_at, self._n_ops
        ended = [op for op in self.running if ends_at[op] == now]
        passed = [op for op in self.marks if ends_at[n + op] == now]
        self.running = [op for op in self.running if ends_at[op] != now]
        self.marks = [op for op in self.marks if ends_at[n + op] != now]
        if not ended:
            rest = [*self.running, *(n + op for op in self.marks)]
            self._expect(min(ends_at[slot] for slot in rest), now)
        for op in passed:
            self.engine.passed(op, now)
        return ended
