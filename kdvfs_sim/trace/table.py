"""The trace: tables of GPU operations, host actions, event waits and annotated ranges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import polars as pl

from kdvfs_sim.core.clocks import AUTO_CLOCKS, Clocks
from kdvfs_sim.core.errors import TraceFormatError
from kdvfs_sim.core.kinds import KernelKind

PASSES: Final = ("forward", "backward", "optimizer")

OPS_SCHEMA: Final[Mapping[str, type[pl.DataType]]] = {
    "kind": pl.UInt32,  # row of Trace.kinds, which tells kernels from copies and memory sets
    "device": pl.Int32,
    "stream": pl.Int64,
    "start_ns": pl.Int64,
    "duration_ns": pl.Int64,
    "host": pl.Int64,  # row of Trace.host that launched it; null: no launch record
    "pass": pl.Int8,  # index into PASSES; -1: not inside such a range
    "iteration": pl.Int32,  # 0-based annotated iteration; -1: none
}
HOST_SCHEMA: Final[Mapping[str, type[pl.DataType]]] = {
    "thread": pl.Int64,
    "start_ns": pl.Int64,
    "duration_ns": pl.Int64,
    "action": pl.String,  # "launch" or "sync"
    "name": pl.String,  # the API call
    "awaits": pl.Int64,  # sync only: row of ops awaited, where the recording says; else null
}
WAITS_SCHEMA: Final[Mapping[str, type[pl.DataType]]] = {
    "op": pl.Int64,  # row of ops that may not start before ...
    "on": pl.Int64,  # ... this row of ops has ended (a recorded cross-stream event wait)
}
RANGES_SCHEMA: Final[Mapping[str, type[pl.DataType]]] = {
    "name": pl.String,
    "start_ns": pl.Int64,  # first start of the GPU operations launched inside the range
    "end_ns": pl.Int64,  # last end of them
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """A recording, as the tool that made it saw it. Schema checked once, then trusted.

    ``ops``: one row per GPU operation (OPS_SCHEMA), sorted by start, then device, stream and file
    order; 0 ns is the first start. ``host``: launches and synchronizations (HOST_SCHEMA), sorted
    by start; may be negative. ``waits``: WAITS_SCHEMA. ``ranges``: RANGES_SCHEMA.

    ``recorded_clocks``: (AUTO, AUTO) unless the file or the user says otherwise.
    ``complete``: False if kernels are known to be lost, so that totals are bounds.
    ``cross_stream_unknown``: several streams and no synchronization records.
    ``repairs``: what was changed to make the recording consistent, with counts.
    ``quarantined``: operations left out because their times are impossible, by reason.
    """

    ops: pl.DataFrame
    kinds: tuple[KernelKind, ...]
    host: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=dict(HOST_SCHEMA)))
    waits: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=dict(WAITS_SCHEMA)))
    ranges: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=dict(RANGES_SCHEMA)))
    device_names: Mapping[int, str] = field(default_factory=dict)
    recorded_clocks: Clocks = AUTO_CLOCKS
    format: str = "memory"
    source: str = ""
    origin_unix_ns: int | None = None
    complete: bool = True
    cross_stream_unknown: bool = False
    repairs: Mapping[str, int] = field(default_factory=dict)
    quarantined: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, table, schema in (
            ("ops", self.ops, OPS_SCHEMA),
            ("host", self.host, HOST_SCHEMA),
            ("waits", self.waits, WAITS_SCHEMA),
            ("ranges", self.ranges, RANGES_SCHEMA),
        ):
            if dict(table.schema) != dict(schema):
                raise TraceFormatError(self.source or "trace", f"{name} has columns {dict(table.schema)}")
        where = self.source or "trace"
        if self.ops.is_empty():
            raise TraceFormatError(where, "holds no GPU operation")
        starts = self.ops["start_ns"]
        if starts[0] != 0 or not starts.is_sorted():
            raise TraceFormatError(where, "ops are not sorted by start_ns from 0")
        negative = self.ops.with_row_index("row").filter(pl.col("duration_ns") < 0)
        if not negative.is_empty():
            row, value = negative["row"][0], negative["duration_ns"][0]
            raise TraceFormatError(
                f"{where}: row {row}", f"duration_ns is {value}; durations are whole nanoseconds, at least 0"
            )
        for table, column, limit in (
            (self.ops, "kind", len(self.kinds)),
            (self.ops, "host", self.host.height),
            (self.host, "awaits", self.ops.height),
            (self.waits, "op", self.ops.height),
            (self.waits, "on", self.ops.height),
        ):
            values = table[column].drop_nulls()
            if values.len() and not 0 <= int(values.min()) <= int(values.max()) < limit:  # type: ignore[arg-type]
                raise TraceFormatError(where, f"column {column!r} points outside its table of {limit} rows")

    @property
    def n_ops(self) -> int:
        return self.ops.height

    @property
    def devices(self) -> tuple[int, ...]:
        return tuple(sorted(self.ops["device"].unique().to_list()))

    @property
    def device_name(self) -> str:
        """Name of the GPU recorded, '' if the file does not say or names several."""
        names = {self.device_names.get(device, "") for device in self.devices}
        return names.pop() if len(names) == 1 else ""
