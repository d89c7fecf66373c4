"""Which of many nested intervals a moment belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Int64s: TypeAlias = npt.NDArray[np.int64]


def innermost(start_ns: Sequence[int] | Int64s, end_ns: Sequence[int] | Int64s, moments_ns: Int64s) -> Int64s:
    """For each moment the interval [start, end) around it that started last, -1 if there is none.

    Of intervals that start together the one that ends first counts as the inner one, then the later row.
    Intervals may overlap without nesting. Time O((n + m) log n) for n intervals and m moments.
    """
    starts = np.asarray(start_ns, dtype=np.int64)
    ends = np.asarray(end_ns, dtype=np.int64)
    order = np.lexsort((np.arange(starts.size), -ends, starts))
    end_of: list[int] = ends.tolist()
    # ``owners[i]`` holds from ``edges[i]`` on. The stack has the open intervals, the inner ones on top; one
    # that ended while covered is dropped when it is uncovered.
    edges: list[int] = []
    owners: list[int] = []
    stack: list[int] = []

    def close_until(moment: int) -> None:
        while stack and end_of[stack[-1]] <= moment:
            end = end_of[stack.pop()]
            while stack and end_of[stack[-1]] <= end:
                stack.pop()
            edges.append(end)
            owners.append(stack[-1] if stack else -1)

    for row, start in zip(order.tolist(), starts[order].tolist(), strict=True):
        if end_of[row] <= start:
            continue
        close_until(start)
        stack.append(row)
        edges.append(start)
        owners.append(row)
    close_until(np.iinfo(np.int64).max)
    if not edges:
        return np.full(moments_ns.shape, -1, dtype=np.int64)
    at = np.searchsorted(np.asarray(edges), moments_ns, side="right") - 1
    found = np.asarray(owners, dtype=np.int64)[np.maximum(at, 0)]
    return np.where(at >= 0, found, -1)
