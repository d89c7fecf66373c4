"""The innermost interval around a moment, against a search through all of them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kdvfs_sim.trace.intervals import innermost

INTERVALS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)), max_size=8)


def slow(intervals: list[tuple[int, int]], moment: int) -> int:
    around = [
        (start, -(start + length), row)
        for row, (start, length) in enumerate(intervals)
        if start <= moment < start + length
    ]
    return max(around)[2] if around else -1


@given(INTERVALS)
def test_equals_a_search(intervals: list[tuple[int, int]]) -> None:
    starts = [start for start, _ in intervals]
    ends = [start + length for start, length in intervals]
    moments = np.arange(-2, 22)
    found = innermost(starts, ends, moments)
    assert found.tolist() == [slow(intervals, moment) for moment in moments.tolist()]
