"""Which of many nested intervals a moment belongs to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def innermost(
    start_ns: Sequence[int] | npt.NDArray[np.int64],
    end_ns: Sequence[int] | npt.NDArray[np.int64],
    moments_ns: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """For each moment the interval [start, end) around it that started last, -1 if there is none.

    Of intervals that start together the one that ends first counts as the inner one, then the later row.
    Intervals may overlap without nesting. Time O((n + m) log n) for n intervals and m moments.
    """
    starts = np.asarray(start_ns, dtype=np.int64)
    ends = np.asarray(end_ns, dtype=np.int64)
    order = np.lexsort((np.arange(starts.size), -ends, starts))
    # ``owners[i]`` holds from ``edges[i]`` on. The stack has the open intervals, the inner ones on top; one
    # that ended while covered is dropped when it is uncovered.
    edges: list[int] = []
    owners: list[int] = []
    stack: list[int] = []

    def close_until(moment: int) -> None:
        while stack and ends[stack[-1]] <= moment:
            end = int(ends[stack.pop()])
            while stack and ends[stack[-1]] <= end:
                stack.pop()
            edges.append(end)
            owners.append(stack[-1] if stack else -1)

    for row in order:
        if starts[row] == ends[row]:
            continue
        close_until(int(starts[row]))
        stack.append(int(row))
        edges.append(int(starts[row]))
        owners.append(int(row))
    close_until(np.iinfo(np.int64).max)
    if not edges:
        return np.full(moments_ns.shape, -1, dtype=np.int64)
    at = np.searchsorted(np.asarray(edges), moments_ns, side="right") - 1
    found = np.asarray(owners, dtype=np.int64)[np.maximum(at, 0)]
    return np.where(at >= 0, found, -1)
