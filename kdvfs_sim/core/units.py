"""Text to numbers, for options and files, and numbers to text, for messages."""

from __future__ import annotations

from kdvfs_sim.core.errors import UsageError

MAX_PERCENT = 10_000
_NS_PER = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


def plain(text: str) -> str:
    """The text of a number, unless only Python would read it: ``1_000``, or the digits of other scripts.

    Raises ValueError for those.
    """
    if not text.isascii() or "_" in text:
        raise ValueError(text)
    return text


def parse_percent(text: str, option: str = "--slack") -> float:
    """``0.6%``, ``0.6`` or ``0.6 %`` to 0.6 (per cent). Raises UsageError naming the option."""
    try:
        value = float(plain(text.strip().removesuffix("%").strip()))
    except ValueError:
        raise UsageError(f"{option} {text!r} is not a percentage; write for example 0.6%") from None
    if not 0 <= value <= MAX_PERCENT:
        raise UsageError(f"{option} {text!r}: write a percentage from 0 to {MAX_PERCENT}")
    return value


def format_duration(duration_ns: float) -> str:
    """Nanoseconds with the unit that keeps three digits readable."""
    for unit in ("s", "ms", "us"):
        if abs(duration_ns) >= _NS_PER[unit]:
            return f"{duration_ns / _NS_PER[unit]:.4g} {unit}"
    return f"{duration_ns:.0f} ns"
