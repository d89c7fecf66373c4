"""From the rows of a reader, in any order and on the recording's own clock, to a Trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl

from kdvfs_sim.core.errors import TraceFormatError
from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.trace.table import HOST_SCHEMA, OPS_SCHEMA, RANGES_SCHEMA, WAITS_SCHEMA, Trace

MAX_SPAN_NS: Final = 10**17  # three years; sums of such times still fit 64 bits
_OPS_DEFAULTS = {"host": None, "pass": -1, "iteration": -1}


def assemble(
    *,
    source: str,
    kinds: Sequence[KernelKind],
    ops: Mapping[str, Any],
    host: Mapping[str, Any] | None = None,
    waits: Mapping[str, Any] | None = None,
    ranges: Mapping[str, Any] | None = None,
    zero_unix_ns: int | None = None,
    **fields: Any,
) -> Trace:
    """Sort, start at 0 ns, and renumber what refers to rows.

    ``ops``, ``host``, ``waits`` and ``ranges`` map the columns of their schemas to equally long sequences;
    ``host`` of ops, ``awaits`` of host and both columns of waits count rows as given here. Columns of ops
    that are missing are null or -1. ``zero_unix_ns`` is the Unix time of the recording's 0 ns, where known.
    Other ``fields`` go to Trace as they are. Raises TraceFormatError if there is no operation, and
    for a recording longer than MAX_SPAN_NS.
    """
    ops_table = _table(_OPS_DEFAULTS | dict(ops), OPS_SCHEMA)
    host_table = _table(host or {}, HOST_SCHEMA)
    if ops_table.is_empty():
        raise TraceFormatError(source, "holds no GPU operation")
    ops_table, op_row = _sort(ops_table, "start_ns", "device", "stream")
    host_table, host_row = _sort(host_table, "start_ns")
    waits_table = _table(waits or {}, WAITS_SCHEMA)
    origin_ns = int(ops_table["start_ns"][0])
    ends = ops_table.select(pl.col("start_ns").cast(pl.Float64) + pl.col("duration_ns")).to_series()
    span_ns = float(ends.max()) - origin_ns  # type: ignore[arg-type]
    if span_ns > MAX_SPAN_NS:
        raise TraceFormatError(
            source,
            f"spans {span_ns * 1e-9:.3g} s; at most {MAX_SPAN_NS * 1e-9:.3g} s is right (another unit?)",
        )
    return Trace(
        source=source,
        kinds=tuple(kinds),
        ops=ops_table.with_columns(
            pl.col("start_ns") - origin_ns, host_row.gather(ops_table["host"]).alias("host")
        ),
        host=host_table.with_columns(
            pl.col("start_ns") - origin_ns, op_row.gather(host_table["awaits"]).alias("awaits")
        ),
        waits=pl.DataFrame(
            {"op": op_row.gather(waits_table["op"]), "on": op_row.gather(waits_table["on"])}
        ).sort("op", "on"),
        ranges=_table(ranges or {}, RANGES_SCHEMA)
        .with_columns(pl.col("start_ns", "end_ns") - origin_ns)
        .sort("start_ns", "end_ns", "name"),
        origin_unix_ns=None if zero_unix_ns is None else zero_unix_ns + origin_ns,
        **fields,
    )


def _table(columns: Mapping[str, Any], schema: Mapping[str, type[pl.DataType]]) -> pl.DataFrame:
    return pl.DataFrame(columns, schema=dict(schema))


def _sort(table: pl.DataFrame, *by: str) -> tuple[pl.DataFrame, pl.Series]:
    """The sorted table (ties keep their order) and, for each row as given, where it went."""
    order = table.select(pl.arg_sort_by(*by, maintain_order=True)).to_series()
    return table[order], order.arg_sort().cast(pl.Int64)
