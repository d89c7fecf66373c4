"""Decimal text to whole nanoseconds, with no float on the way.

A float64 holds an epoch time in microseconds to a quarter of a microsecond only: reading
``1712195495505582.988`` through one moves a kernel and creates overlaps that never happened.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

_INT64_DIGITS = 19


def to_ns(text: str, shift: int = 3) -> int | None:
    """The number ``text`` times ``10**shift``, as an exact integer; sub-nanosecond digits round half to even.

    ``shift`` is 3 for microseconds, 6 for milliseconds, 9 for seconds. Any decimal notation with or without
    an exponent. None if the text is not a finite number or does not fit in 64 bits.
    """
    whole, _, fraction = text.partition(".")
    if len(fraction) <= shift and len(whole) <= 15 and text.isascii():
        digits = fraction.ljust(shift, "0")
        if digits.isdigit() and whole.isdigit():
            return int(whole + digits)
    return _slow_to_ns(text, shift)


def _slow_to_ns(text: str, shift: int) -> int | None:
    try:
        sign, digits, exponent = Decimal(text).as_tuple()
    except InvalidOperation:
        return None
    if not isinstance(exponent, int):  # NaN, Infinity
        return None
    mantissa = int("".join(map(str, digits)) or "0")
    exponent += shift
    if mantissa == 0 or len(digits) + exponent < 0:
        return 0
    if len(digits) + exponent > _INT64_DIGITS:
        return None
    if exponent >= 0:
        value = mantissa * 10**exponent
    else:
        value, rest = divmod(mantissa, unit := 10**-exponent)
        if 2 * rest > unit or (2 * rest == unit and value % 2):
            value += 1
    value = -value if sign else value
    return value if -(2**63) <= value < 2**63 else None
