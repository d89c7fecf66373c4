"""The host while a program is replayed, evaluated only as far as a stream asks.

Nothing of it is an event: a stream that asks for its next launch is told when that is, or what it still
depends on. A request made on a launch thread moves the launches after it; what was foretold beyond that
moment is then forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kdvfs_sim.replay.links import HostLinks
from kdvfs_sim.replay.phases import NEVER
from kdvfs_sim.replay.program import LONG_AGO

UNKNOWN: Final = LONG_AGO - 1  # a time that no dependency can give


class LiveHost:
    """Starts and ends of host actions, as far as they are known.

    ``op_ends`` is the replay's own list of ends of operations (-1: not ended). The launches in ``held``
    are not made until ``release``. ``reached``: when the host stands before one of them.
    ``blocked_by``: after an UNKNOWN answer, the operation that has to end first, or ``~action`` for a
    launch held.
    ``roots``: ends of synchronizations that have returned, with the root of nothing at [-1] and NO_ROOT
    at [-2]; all UNKNOWN once something is held or delayed, because HostLinks.root then tells nothing.
    """

    def __init__(self, links: HostLinks, op_ends: list[int], held: Iterable[int]) -> None:
        self._held = set(held)
        self.starts = [UNKNOWN] * len(links.thread)
        self.reached: dict[int, int] = {}
        self._disturbed = bool(self._held)
        self.blocked_by = 0
        self._pending: dict[int, list[tuple[int, int]]] = {}
        self._earliest = NEVER  # no pending delay concerns an action that starts by then
        self.ends = [UNKNOWN] * len(links.thread)
        self.roots = [UNKNOWN] * len(links.thread) + [UNKNOWN, UNKNOWN if self._held else 0]
        self._links = links
        self._op_ends = op_ends
        self._delays: dict[int, int] = {}
        self._foretold: list[int] = []

    def start_of(self, action: int) -> int:
        """When ``action`` starts, or UNKNOWN; ``blocked_by`` then says why."""
        links, starts, ends = self._links, self.starts, self.ends
        behind: list[int] = []  # actions that can be told when i has been
        i = action
        while starts[action] == UNKNOWN:
            before, own = links.prev_any[i], links.prev_own[i]
            if before >= 0 and ends[before] == UNKNOWN and self._end_of(before) == UNKNOWN:
                missing = before
            elif own >= 0 and ends[own] == UNKNOWN and self._end_of(own) == UNKNOWN:
                missing = own
            else:
                at = links.start_ns[i] if before < 0 else ends[before] + links.gap_ns[i]
                if own >= 0 and ends[own] > at:
                    at = ends[own]
                if at > self._earliest or i in self._delays:
                    at = self._delayed(i, at)
                if i in self._held:
                    self.reached[i] = at
                    self.blocked_by = ~i
                    if i == action:
                        return UNKNOWN
                else:
                    self._foretold.append(i)
                    starts[i] = at
                    if links.awaits[i] < 0:
                        ends[i] = at + links.length_ns[i]
                        if not self._disturbed:
                            self.roots[i] = ends[i]
                if behind:
                    i = behind.pop()
                continue
            if starts[missing] != UNKNOWN or missing in self.reached:
                return UNKNOWN
            behind.append(i)
            i = missing
        return starts[action]

    def _end_of(self, action: int) -> int:
        """When an action ends whose end is not noted yet, or UNKNOWN."""
        start = self.starts[action]
        if start == UNKNOWN:
            self.blocked_by = ~action
            return UNKNOWN
        op = self._links.awaits[action]
        ended = self._op_ends[op]
        if ended < 0:
            self.blocked_by = op
            return UNKNOWN
        end = max(start + self._links.length_ns[action], ended + self._links.await_lag_ns[action])
        self.ends[action] = end
        if not self._disturbed:
            self.roots[action] = end
        return end

    def release(self, action: int, at_ns: int) -> None:
        """Let the launch held at ``action`` be made at ``at_ns``."""
        self._held.discard(action)
        self.reached.pop(action, None)
        self.starts[action] = at_ns
        self.ends[action] = at_ns + self._links.length_ns[action]

    def delay(self, thread: int, moment_ns: int, delay_ns: int) -> None:
        """Move the first launch of ``thread`` after a moment, and so all that follows it. What was foretold
        for later than the moment is void: streams waiting for a launch have to ask again."""
        links, void = self._links, [i for i in self._foretold if self.starts[i] > moment_ns]
        void += [i for i, at_ns in self.reached.items() if at_ns > moment_ns]
        moved = [i for i in void if links.is_launch[i] and links.thread[i] == thread]
        if moved:
            self._delays[min(moved)] = self._delays.get(min(moved), 0) + delay_ns
        else:
            self._pending.setdefault(thread, []).append((moment_ns, delay_ns))
            self._find_earliest()
        for i in void:
            self.starts[i] = self.ends[i] = UNKNOWN
            self.reached.pop(i, None)
        self._foretold = []
        self._disturbed = True
        self.roots[:] = [UNKNOWN] * len(self.roots)

    def _delayed(self, action: int, at_ns: int) -> int:
        """When an action starts that would start at a time if nobody had made requests."""
        links = self._links
        at_ns += self._delays.get(action, 0)
        pending = self._pending.get(links.thread[action]) if links.is_launch[action] else None
        while pending and pending[0][0] < at_ns:
            delay_ns = pending.pop(0)[1]
            self._delays[action] = self._delays.get(action, 0) + delay_ns
            at_ns += delay_ns
        if pending == []:
            del self._pending[links.thread[action]]
            self._find_earliest()
        return at_ns

    def _find_earliest(self) -> None:
        self._earliest = min((pending[0][0] for pending in self._pending.values()), default=NEVER)

    @property
    def late(self) -> list[tuple[int, int, int]]:
        """(thread, moment, delay) of requests that no later launch has met."""
        return [(thread, *p) for thread, pending in self._pending.items() for p in pending]
