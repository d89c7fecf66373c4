"""The totals of a trace against counting by hand."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given

from kdvfs_sim.testing.strategies import recordings
from kdvfs_sim.trace.summary import summary
from kdvfs_sim.trace.table import Trace


@given(recordings())
def test_equals_counting(trace: Trace) -> None:
    rows = [(trace.kinds[op["kind"]], op) for op in trace.ops.iter_rows(named=True)]
    kernels = [(kind, op) for kind, op in rows if kind.op_class == "kernel"]
    found = summary(trace)
    assert found.n_launches == len(rows)
    assert found.n_kernels == len(kernels)
    assert found.n_memcpy == sum(kind.op_class == "memcpy" for kind, _ in rows)
    assert found.n_memset == sum(kind.op_class == "memset" for kind, _ in rows)
    assert found.n_names == len({kind.name for kind, _ in kernels})
    assert found.n_streams == len({(op["device"], op["stream"]) for _, op in rows})
    assert found.n_kernel_streams == len({(op["device"], op["stream"]) for _, op in kernels})
    assert found.busy_ns == sum(op["duration_ns"] for _, op in kernels)
    assert found.op_span_ns == span(op for _, op in rows)
    assert found.kernel_span_ns == span(op for _, op in kernels)
    assert found.busy_union_ns == union(op for _, op in kernels)
    assert found.n_kinds == len(trace.kinds)
    assert (found.format, found.complete) == (trace.format, trace.complete)


def span(ops: object) -> int:
    edges = [(op["start_ns"], op["start_ns"] + op["duration_ns"]) for op in ops]  # type: ignore[attr-defined]
    return max(end for _, end in edges) - min(start for start, _ in edges) if edges else 0


def union(ops: object) -> int:
    """Length of all elementary intervals between two edges that some operation covers."""
    pairs = [(op["start_ns"], op["start_ns"] + op["duration_ns"]) for op in ops]  # type: ignore[attr-defined]
    edges = sorted({edge for pair in pairs for edge in pair})
    return sum(
        right - left
        for left, right in pairwise(edges)
        if any(start <= left and right <= end for start, end in pairs)
    )
