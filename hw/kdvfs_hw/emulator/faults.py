"""What can be scripted to go wrong with an emulated GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kdvfs_sim.core.errors import UsageError

# name: (meaning, meaning of its value, default value)
FAULTS: Final[dict[str, tuple[str, str, float]]] = {
    "no_permission": (
        "setters answer NO_PERMISSION",
        "1: to a process that looks entitled, as in a container",
        0,
    ),
    "no_lock": ("setters answer NOT_SUPPORTED, no clocks are listed", "", 0),
    "no_mem_lock": ("the memory lock answers NOT_SUPPORTED, the GPU is older than Ampere", "", 0),
    "mig": ("the GPU is divided into instances", "", 0),
    "no_energy": ("the energy counter is not supported", "", 0),
    "no_power": ("power readings are not supported", "", 0),
    "no_reasons": ("throttle reasons are not supported", "", 0),
    "lock_ignored": ("locks are accepted and change nothing", "", 0),
    "clipped": ("locks are accepted and held below a ceiling", "ceiling of the SM clock, MHz", 1005),
    "lock_lost": ("a lock vanishes some time after it landed", "seconds", 0.5),
    "reset_ignored": ("resets are accepted and change nothing", "", 0),
    "mem_moves_sm": ("a memory lock also lowers the SM clock", "MHz", 120),
    "frozen_counter": ("the energy counter stands still", "", 0),
    "backward_counter": ("the energy counter falls back at every other update", "J", 5),
    "counter_gain": ("energy and power read too high or too low", "factor", 1.05),
    "lost": ("the GPU has fallen off the bus", "", 0),
    "unknown_error": ("every call answers UNKNOWN", "", 0),
    "throttling": ("a thermal slowdown holds the SM clock down", "SM clock, MHz", 600),
    "foreign_process": ("another process computes on the GPU and slows ours", "its slowdown, factor", 1.5),
    "slower": ("every kernel takes longer than the model says", "factor", 1.05),
    "slow_switching": ("every clock change takes longer than the model says", "factor", 10),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One scripted fault, in force from ``from_ns`` until ``until_ns`` (None: for good)."""

    name: str
    value: float
    from_ns: int
    until_ns: int | None = None

    def active(self, t_ns: int) -> bool:
        return self.from_ns <= t_ns and (self.until_ns is None or t_ns < self.until_ns)


def parse_fault(text: str) -> tuple[str, float]:
    """``lock_ignored`` or ``clipped=1200`` to name and value. Raises UsageError listing the names."""
    name, has_value, value = text.partition("=")
    if name not in FAULTS:
        raise UsageError(f"emulated GPU: no fault {name!r}; there are {', '.join(FAULTS)}")
    try:
        return name, float(value) if has_value else FAULTS[name][2]
    except ValueError:
        raise UsageError(f"emulated GPU: fault {text!r}: {value!r} is not a number") from None
