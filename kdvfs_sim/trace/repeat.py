"""A recording of one iteration as several in a row."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from kdvfs_sim.core.errors import InputError
from kdvfs_sim.trace.table import Trace


def repeated(trace: Trace, n: int) -> Trace:
    """The same iteration ``n`` times, each when the one before it has ended: for schedules whose period is
    ``n`` iterations.

    GPU operations and their gaps only: host actions are left out, because nothing recorded says how far
    ahead of the next iteration the host would be. Raises InputError for ``n`` below 1.
    """
    if n < 1:
        raise InputError(f"{n} iterations: at least 1 is right")
    if n == 1:
        return trace
    ops = trace.ops.with_columns(pl.lit(None, dtype=pl.Int64).alias("host"))
    period_ns = int((ops["start_ns"] + ops["duration_ns"]).max())  # type: ignore[arg-type]
    return replace(
        trace,
        ops=pl.concat([ops.with_columns(pl.col("start_ns") + i * period_ns) for i in range(n)]),
        host=trace.host.clear(),
        waits=pl.concat([trace.waits + i * trace.n_ops for i in range(n)]),
        ranges=pl.concat(
            [trace.ranges.with_columns(pl.col("start_ns", "end_ns") + i * period_ns) for i in range(n)]
        ),
    )
