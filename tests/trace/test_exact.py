"""Decimal text to nanoseconds: the fast and the general path against decimal.Decimal."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Context, Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kdvfs_sim.trace.exact import to_ns

DECIMALS = st.one_of(
    st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**18), max_value=10**18).map(str),
    st.integers(-(10**17), 10**17).map(str),
    st.from_regex(r"-?[0-9]{1,16}\.[0-9]{1,9}", fullmatch=True),
    st.from_regex(r"-?[0-9]{1,3}(\.[0-9]{1,4})?[eE][+-]?[0-9]{1,2}", fullmatch=True),
)


def reference(text: str, shift: int) -> int | None:
    context = Context(prec=400)
    exact = context.multiply(Decimal(text), Decimal(10) ** shift)
    value = int(exact.to_integral_value(rounding=ROUND_HALF_EVEN, context=context))
    return value if -(2**63) <= value < 2**63 else None


@given(DECIMALS, st.sampled_from([0, 3, 6, 9]))
@example("1712195495505582.988", 3)
@example("0.0005", 3)
@example("0.0015", 3)
@example("0.00050000000000000000000001", 3)
@example("9223372036854775.807", 3)
@example("9223372036854775.808", 3)
@example("-9223372036854775.808", 3)
@example("1e15", 3)
@example("0000000000000000000000000012.5", 3)
def test_equals_decimal(text: str, shift: int) -> None:
    assert to_ns(text, shift) == reference(text, shift)


@pytest.mark.parametrize(
    "text", ["", "NaN", "inf", "-Infinity", "N/A", "null", "true", "1.2.3", "0x10", "1e999999999", "{}", "٣٤"]
)
def test_what_is_no_number_is_none(text: str) -> None:
    assert to_ns(text) is None or Decimal(text).is_finite()


def test_a_float_would_be_wrong_here() -> None:
    assert to_ns("1712195495505582.988") == 1712195495505582988
    assert int(float("1712195495505582.988") * 1000) != 1712195495505582988


@given(st.text(max_size=30))
def test_any_text_gives_a_64_bit_integer_or_none(text: str) -> None:
    value = to_ns(text)
    assert value is None or -(2**63) <= value < 2**63


def test_very_long_text() -> None:
    assert to_ns("1." + "9" * 10_000) == 2000
    assert to_ns("1" * 10_000) is None
