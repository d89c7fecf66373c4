"""Whether a process named in a record is alive, and what it does, from /proc."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

_STOPPED: Final = "tT"
_ENDED: Final = "ZX"


def state_of(pid: int, *, since_unix_s: float | None = None) -> str:
    """``running``, ``stopped`` or ``has ended``; ``not to be seen from here`` where there is no /proc.

    ``since_unix_s``: when it was known to live; a process that started later is another one.
    """
    if not Path("/proc/self/stat").exists():
        return "not to be seen from here"
    letter = _field(pid, 0)
    if letter is None or letter in _ENDED or (since_unix_s is not None and _started_after(pid, since_unix_s)):
        return "has ended"
    return "stopped" if letter in _STOPPED else "running"


def _field(pid: int, i: int) -> str | None:
    """Field ``i`` after the name in /proc/PID/stat (proc(5)): 0 is the state, 19 the start in clock ticks."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[i]
    except (OSError, IndexError):
        return None


def _started_after(pid: int, unix_s: float) -> bool:
    ticks = _field(pid, 19)
    if ticks is None:
        return False
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(ticks) / os.sysconf("SC_CLK_TCK")
    return time.time() - age_s > unix_s + 5
