"""What a field may hold, checked when its noun is made: one line with field, value and what is right."""

from __future__ import annotations

import math
import operator
from contextlib import suppress
from typing import Any, get_args

from kdvfs_sim.core.errors import InputError


def one_of(what: str, value: object, literal: Any) -> None:
    """Raises InputError unless ``value`` is one that the Literal type names: Python itself does not look."""
    known = get_args(literal)
    if value not in known:
        raise InputError(f"{what} is {value!r}; right is one of: {', '.join(known)}")


def whole(what: str, value: object, least: int | None = None) -> int:
    """``value`` as an int, also where it is numpy's, which JSON refuses. Raises InputError for others."""
    number: int | None = None
    if not isinstance(value, bool):
        with suppress(TypeError):
            number = operator.index(value)  # type: ignore[arg-type]
    if number is None:
        raise InputError(f"{what} is {value!r}; a whole number is right")
    if least is not None and number < least:
        raise InputError(f"{what} is {number}; at least {least} is right")
    return number


def finite(what: str, value: object, least: float = 0.0) -> None:
    """Raises InputError unless ``value`` is a number from ``least`` on, neither NaN nor infinite."""
    try:
        right = not isinstance(value, str | bytes) and least <= float(value) < math.inf  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        right = False
    if not right:
        raise InputError(f"{what} is {value!r}; a finite number of at least {least:g} is right")
