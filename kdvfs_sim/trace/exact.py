"""Decimal text to whole nanoseconds, with no float on the way.

A float64 holds an epoch time in microseconds to a quarter of a microsecond only: reading
``1712195495505582.988`` through one moves a kernel and creates overlaps that never happened.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Final

from kdvfs_sim.core.units import plain

_INT64_DIGITS: Final = 19


def to_ns(text: str, shift: int = 3) -> int | None:
    """The number ``text`` times ``10**shift``, exactly; what remains below 1 ns rounds half to even.

    ``shift`` is 3 for microseconds, 6 for milliseconds, 9 for seconds. Any decimal notation, with or without
    an exponent. None if the text is not a finite number or the result does not fit in 64 bits.
    """
    whole, _, fraction = text.partition(".")
    if len(fraction) <= shift and len(whole) <= _INT64_DIGITS and text.isascii():
        digits = fraction.ljust(shift, "0")
        if whole.isdigit() and digits.isdigit():
            return _fits(int(whole + digits))
    return _any_decimal_to_ns(text, shift)


def _any_decimal_to_ns(text: str, shift: int) -> int | None:
    try:
        sign, digits, exponent = Decimal(plain(text)).as_tuple()
    except (InvalidOperation, ValueError):
        return None
    if not isinstance(exponent, int):  # NaN, Infinity
        return None
    if not any(digits):
        return 0
    n_whole = len(digits) + exponent + shift
    if n_whole > _INT64_DIGITS:
        return None
    if n_whole < 0:
        return 0
    padded = digits + (0,) * (n_whole - len(digits))
    value = int("".join(map(str, padded[:n_whole])) or "0")
    below = padded[n_whole:]
    if below and (below[0] > 5 or (below[0] == 5 and (any(below[1:]) or value % 2))):
        value += 1
    return _fits(-value if sign else value)


def _fits(value: int) -> int | None:
    return value if -(2**63) <= value < 2**63 else None
