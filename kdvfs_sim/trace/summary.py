"""What a recording holds, in a dozen numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from kdvfs_sim.trace.table import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSummary:
    """Totals of a trace. Spans run from the first start to the last end; 0 where there is no kernel.

    ``n_launches`` counts GPU operations: kernels, copies and memory sets. ``n_names`` counts names of
    kernels, ``n_kinds`` kinds of any operation, ``n_streams`` pairs of device and stream that run any, and
    ``n_kernel_streams`` those that run kernels. ``busy_ns`` sums the durations
    of kernels, ``busy_union_ns`` is the time during which at least one kernel runs, on any device.
    """

    format: str
    n_kernels: int
    n_memcpy: int
    n_memset: int
    n_launches: int
    n_kinds: int
    n_names: int
    n_kernel_streams: int
    n_streams: int
    kernel_span_ns: int
    op_span_ns: int
    busy_ns: int
    busy_union_ns: int
    complete: bool
    repairs: Mapping[str, int]
    quarantined: Mapping[str, int]


def summary(trace: Trace) -> TraceSummary:
    """Count and add up."""
    kinds = pl.DataFrame(
        {"op_class": [k.op_class for k in trace.kinds], "name": [k.name for k in trace.kinds]},
        schema={"op_class": pl.String, "name": pl.String},
    ).with_row_index("kind")
    ops = trace.ops.join(kinds, on="kind", maintain_order="left").with_columns(
        end_ns=pl.col("start_ns") + pl.col("duration_ns")
    )
    kernels = ops.filter(op_class="kernel")
    n = dict(ops.group_by("op_class").len().iter_rows())
    return TraceSummary(
        format=trace.format,
        n_kernels=n.get("kernel", 0),
        n_memcpy=n.get("memcpy", 0),
        n_memset=n.get("memset", 0),
        n_launches=ops.height,
        n_kinds=len(trace.kinds),
        n_names=kernels["name"].n_unique(),
        n_kernel_streams=kernels.select("device", "stream").n_unique(),
        n_streams=ops.select("device", "stream").n_unique(),
        kernel_span_ns=_span_ns(kernels),
        op_span_ns=_span_ns(ops),
        busy_ns=int(kernels["duration_ns"].sum()),
        busy_union_ns=_union_ns(kernels),
        complete=trace.complete,
        repairs=dict(trace.repairs),
        quarantined=dict(trace.quarantined),
    )


def _span_ns(ops: pl.DataFrame) -> int:
    if ops.is_empty():
        return 0
    return int(ops["end_ns"].max()) - int(ops["start_ns"].min())  # type: ignore[arg-type]


def _union_ns(ops: pl.DataFrame) -> int:
    """Total length of the union of [start, end), for rows sorted by start: what each row adds beyond the
    latest end so far."""
    covered_to = pl.col("end_ns").cum_max().shift(1)
    added = pl.col("end_ns") - pl.max_horizontal("start_ns", covered_to)
    return int(ops.select(added.clip(lower_bound=0).sum()).item())
