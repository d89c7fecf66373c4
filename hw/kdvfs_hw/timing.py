"""Where times come from: the machine's monotonic clock, or a virtual one in unit tests."""

from __future__ import annotations

import time


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
