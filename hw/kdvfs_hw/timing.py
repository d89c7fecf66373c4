"""Where times come from: the machine's monotonic clock, or a virtual one in unit tests."""

from __future__ import annotations

import threading
import time

from kdvfs_sim.core.device import TimeSource


class WallTime:
    """The machine's monotonic clock: the same for every process, unmoved by clock corrections."""

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def sleep_ns(self, duration_ns: int, /) -> None:
        if duration_ns > 0:
            time.sleep(duration_ns / 1e9)


class VirtualTime:
    """Time that passes only when somebody sleeps. For unit tests; other processes cannot share it."""

    def __init__(self, start_ns: int = 1_000_000_000) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        return self._now_ns

    def sleep_ns(self, duration_ns: int, /) -> None:
        self._now_ns += max(0, duration_ns)


class ThreadedVirtualTime:
    """Virtual time that several threads of one test share: it passes when all of them sleep.

    A thread belongs to it from its first call until it ends. Deterministic, whatever the machine is
    busy with; a thread that blocks on anything but ``sleep_ns`` stops the clock for all.
    """

    def __init__(self, start_ns: int = 1_000_000_000) -> None:
        self._now_ns = start_ns
        self._turn = threading.Condition()
        self._known: set[int] = set()
        self._wakes: dict[int, int] = {}

    def now_ns(self) -> int:
        with self._turn:
            self._known.add(threading.get_ident())
            return self._now_ns

    def sleep_ns(self, duration_ns: int, /) -> None:
        me = threading.get_ident()
        with self._turn:
            self._known.add(me)
            self._wakes[me] = self._now_ns + max(1, duration_ns)
            self._turn.notify_all()
            while not self._is_next(me):
                self._turn.wait(0.02)  # a thread that ended meanwhile tells nobody
            self._now_ns = max(self._now_ns, self._wakes.pop(me))
            self._turn.notify_all()

    def _is_next(self, me: int) -> bool:
        if len(self._wakes) < len(self._known):
            self._known &= {thread.ident or 0 for thread in threading.enumerate()}
        return self._known == set(self._wakes) and min((wake, i) for i, wake in self._wakes.items())[1] == me


def join(thread: threading.Thread, clock: TimeSource) -> None:
    """Wait for a thread's end, on ``clock``: a blocked thread would stop virtual time."""
    while thread.is_alive():
        clock.sleep_ns(1_000_000)
