"""Where times come from: the machine's monotonic clock, or a virtual one in unit tests."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from kdvfs_sim.core.device import TimeSource


class WallTime:
    """The machine's monotonic clock: the same for every process, unmoved by clock corrections."""

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def sleep_ns(self, duration_ns: int, /) -> None:
        if duration_ns > 0:
            time.sleep(duration_ns / 1e9)


def boot_id() -> str:
    """Which start of the machine this is: monotonic times and clock locks mean nothing across two."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


class ThreadedVirtualTime:
    """Virtual time that several threads of one test share: it passes when all of them sleep.

    A thread belongs to it from its first call, or from ``begin``, until it ends. Deterministic, whatever
    the machine is busy with; a thread that blocks on anything but ``sleep_ns`` stops the clock for all.
    """

    def __init__(self, start_ns: int = 1_000_000_000) -> None:
        self._now_ns = start_ns
        self._lock = threading.Lock()
        self._bells: dict[int, threading.Condition] = {}  # of all threads known
        self._wakes: dict[int, int] = {}  # of those asleep

    def now_ns(self) -> int:
        with self._lock:
            self._enter()
            return self._now_ns

    def sleep_ns(self, duration_ns: int, /) -> None:
        with self._lock:
            me = self._enter()
            self._wakes[me] = self._now_ns + max(1, duration_ns)
            while (first := self._next()) != me:
                if first is not None:
                    self._bells[first].notify()
                self._bells[me].wait(0.05)  # a thread that ends tells nobody
            self._now_ns = max(self._now_ns, self._wakes.pop(me))

    def adopt(self, ident: int) -> None:
        """Wait for this thread from now on, also before its first call."""
        with self._lock:
            self._bells.setdefault(ident, threading.Condition(self._lock))

    def _enter(self) -> int:
        me = threading.get_ident()
        self._bells.setdefault(me, threading.Condition(self._lock))
        return me

    def _next(self) -> int | None:
        """Whose turn it is; None while somebody is awake."""
        if len(self._wakes) < len(self._bells):
            alive = {thread.ident for thread in threading.enumerate()}
            self._bells = {i: bell for i, bell in self._bells.items() if i in alive}
        if len(self._wakes) < len(self._bells):
            return None
        return min(self._wakes, key=lambda i: (self._wakes[i], i))


def begin(thread: threading.Thread, clock: TimeSource) -> None:
    """Start a thread that lives on ``clock``: virtual time must not run on before it has woken up."""
    thread.start()
    if isinstance(clock, ThreadedVirtualTime) and thread.ident is not None:
        clock.adopt(thread.ident)


def join(thread: threading.Thread, clock: TimeSource) -> None:
    """Wait for a thread's end, on ``clock``: a blocked thread would stop virtual time."""
    while thread.is_alive():
        clock.sleep_ns(1_000_000)
