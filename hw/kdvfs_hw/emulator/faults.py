"""What can be scripted to go wrong with an emulated GPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kdvfs_sim.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class FaultKind:
    """What a fault does. ``value``: what its number means ('': it takes none), from ``least`` to ``most``."""

    meaning: str
    value: str = ""
    default: float = 0
    least: float = 0
    most: float = 0


# Bounds: beyond them a GPU would compute nothing at all, or no test would live to see the end.
FAULTS: Final[dict[str, FaultKind]] = {
    "no_permission": FaultKind(
        "setters answer NO_PERMISSION", "1: to a process that looks entitled, as in a container", 0, 0, 1
    ),
    "no_lock": FaultKind("setters answer NOT_SUPPORTED, no clocks are listed"),
    "no_mem_lock": FaultKind("the memory lock answers NOT_SUPPORTED, the GPU is older than Ampere"),
    "mig": FaultKind("the GPU is divided into instances"),
    "no_energy": FaultKind("the energy counter is not supported"),
    "no_power": FaultKind("power readings are not supported"),
    "no_reasons": FaultKind("throttle reasons are not supported"),
    "no_persistence": FaultKind("persistence mode is off"),
    "lock_ignored": FaultKind("locks are accepted and change nothing"),
    "clipped": FaultKind("locks are accepted and held below a ceiling", "SM clock, MHz", 1005, 1, 100_000),
    "lock_lost": FaultKind("a lock vanishes some time after it landed", "seconds", 0.5, 0, 86_400),
    "reset_ignored": FaultKind("resets are accepted and change nothing"),
    "mem_moves_sm": FaultKind("a memory lock also lowers the SM clock", "MHz", 120, 1, 100_000),
    "frozen_counter": FaultKind("the energy counter stands still"),
    "backward_counter": FaultKind(
        "the energy counter falls back at every other update", "J", 5, 0.001, 1_000_000
    ),
    "counter_gain": FaultKind("energy and power read too high or too low", "factor", 1.05, 0.001, 1000),
    "lost": FaultKind("the GPU has fallen off the bus"),
    "unknown_error": FaultKind("every call answers UNKNOWN"),
    "throttling": FaultKind("a thermal slowdown holds the SM clock down", "SM clock, MHz", 600, 1, 100_000),
    "foreign_process": FaultKind(
        "another process computes on the GPU and slows ours", "its slowdown, factor", 1.5, 1, 1000
    ),
    "slower": FaultKind("every kernel takes longer than the model says", "factor", 1.05, 0.01, 1000),
    "power_limit": FaultKind("somebody has lowered the power limit", "W", 500, 1, 100_000),
    "slow_switching": FaultKind(
        "every clock change takes longer than the model says", "factor", 10, 0.001, 10_000
    ),
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
    """``lock_ignored`` or ``clipped=1200`` to name and value. Raises UsageError, saying what is right."""
    name, has_value, value = text.partition("=")
    if name not in FAULTS:
        raise UsageError(f"emulated GPU: no fault {name!r}; there are {', '.join(FAULTS)}")
    if not has_value:
        return name, FAULTS[name].default
    try:
        return name, check_value(name, float(value))
    except ValueError:
        raise UsageError(f"emulated GPU: fault {text!r}: {value!r} is not a number") from None


def check_value(name: str, value: float) -> float:
    """``value`` if this fault may have it. Raises UsageError saying what would be right."""
    kind = FAULTS[name]
    if not kind.value:
        raise UsageError(f"emulated GPU: fault {name!r} takes no value; write just {name}")
    if not kind.least <= value <= kind.most:  # not a number fails this too
        raise UsageError(
            f"emulated GPU: fault '{name}={value:g}': {kind.least:g} to {kind.most:g} is right ({kind.value})"
        )
    return value


def parse_faults(texts: Iterable[str]) -> dict[str, float]:
    """Several faults, each once. Raises UsageError as ``parse_fault`` does, and for a fault named twice."""
    found: dict[str, float] = {}
    for text in texts:
        name, value = parse_fault(text)
        if name in found:
            raise UsageError(f"emulated GPU: fault {name!r} is named twice; name it once")
        found[name] = value
    return found
