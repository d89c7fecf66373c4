"""A recording on one screen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import polars as pl

from kdvfs_sim.core.units import format_duration
from kdvfs_sim.trace.summary import summary
from kdvfs_sim.trace.table import PASSES, Trace

TOP_KERNELS = 12


def summary_json(trace: Trace) -> dict[str, Any]:
    """The totals that other tools rely on."""
    return asdict(summary(trace))


def summary_lines(trace: Trace) -> Iterator[str]:
    """The same for people."""
    s = summary(trace)
    yield f"{trace.source or 'trace'} ({s.format}), GPU {trace.device_name or 'not named'}"
    yield (
        f"{_count(s.n_kernels, 'kernel')} of {_count(s.n_names, 'name')} on "
        f"{_count(s.n_kernel_streams, 'stream')}, {_count(s.n_memcpy, 'copy', 'copies')}, "
        f"{_count(s.n_memset, 'memory set')}"
    )
    yield (
        f"with copies and memory sets: {_count(s.n_launches, 'operation')} of {_count(s.n_kinds, 'kind')} on "
        f"{_count(s.n_streams, 'stream')}"
    )
    share = s.busy_union_ns / s.kernel_span_ns if s.kernel_span_ns else 0.0
    yield (
        f"kernels span {format_duration(s.kernel_span_ns)}, busy {format_duration(s.busy_union_ns)} "
        f"({share:.1%}); all operations span {format_duration(s.op_span_ns)}"
    )
    if not s.complete:
        yield "kernels are known to be missing: totals are lower bounds"
    if trace.cross_stream_unknown:
        yield (
            f"{_count(s.n_streams, 'stream')} and no synchronization records: dependencies between streams "
            "are unknown (PyTorch's profiler records them with enable_cuda_sync_events)"
        )
    for label, counts in (("repaired", s.repairs), ("left out", s.quarantined)):
        for reason, count in counts.items():
            yield f"{label}: {count} x {reason}"


def inspect_json(trace: Trace) -> dict[str, Any]:
    """The totals, and time by category, pass, kernel name and length of kernel."""
    return {
        **summary_json(trace),
        "device_name": trace.device_name,
        "recorded_clocks": str(trace.recorded_clocks),
        "cross_stream_unknown": trace.cross_stream_unknown,
        "by_category": _by(trace, "category"),
        "by_pass": _by(trace, "pass"),
        "by_name": _by(trace, "name")[:TOP_KERNELS],
        "by_duration": _by(trace, "at_least"),
    }


def inspect_lines(trace: Trace) -> Iterator[str]:
    """The totals, then kernel time by category, pass and length, and the kernels that take most."""
    yield from summary_lines(trace)
    yield f"recorded at clocks {trace.recorded_clocks}"
    for title, column in (("category", "category"), ("pass", "pass"), ("kernel length", "at_least")):
        yield ""
        yield f"{'kernel time by ' + title:<34}{'launches':>9}{'time':>12}{'share':>8}"
        for row in _by(trace, column):
            yield _line(row, column)
    yield ""
    yield f"{'longest kernels':<34}{'launches':>9}{'time':>12}{'share':>8}"
    for row in _by(trace, "name")[:TOP_KERNELS]:
        yield _line(row, "name")


def _count(n: int, one: str, many: str = "") -> str:
    return f"{n} {one if n == 1 else many or one + 's'}"


def _line(row: dict[str, Any], column: str) -> str:
    name = str(row[column])
    name = name if len(name) <= 33 else name[:32] + "~"
    return f"{name:<34}{row['n']:>9}{format_duration(row['busy_ns']):>12}{row['share']:>8.1%}"


def _by(trace: Trace, column: str) -> list[dict[str, Any]]:
    kinds = pl.DataFrame(
        {
            "kind": pl.Series(range(len(trace.kinds)), dtype=pl.UInt32),
            "op_class": [k.op_class for k in trace.kinds],
            "name": [k.name for k in trace.kinds],
            "category": [k.category for k in trace.kinds],
        }
    )
    length = pl.col("duration_ns")
    pass_name = pl.col("pass").replace_strict(
        {-1: "unknown", **dict(enumerate(PASSES))}, return_dtype=pl.String
    )
    kernels = (
        trace.ops.join(kinds, on="kind")
        .filter(op_class="kernel")
        .with_columns(
            pass_name.alias("pass"),
            pl.when(length >= 10_000_000)
            .then(pl.lit("10 ms or longer"))
            .when(length >= 1_000_000)
            .then(pl.lit("1 to 10 ms"))
            .when(length >= 100_000)
            .then(pl.lit("100 us to 1 ms"))
            .when(length >= 10_000)
            .then(pl.lit("10 to 100 us"))
            .otherwise(pl.lit("under 10 us"))
            .alias("at_least"),
        )
    )
    total = max(int(kernels["duration_ns"].sum()), 1)
    return (
        kernels.group_by(column)
        .agg(pl.len().alias("n"), length.sum().alias("busy_ns"))
        .with_columns((pl.col("busy_ns") / total).alias("share"))
        .sort("busy_ns", column, descending=[True, False])
        .to_dicts()
    )
