"""Our own trace format: one Parquet file.

The file is one long table whose column ``table`` says what a row is: ``ops``, ``kinds``, ``host``, ``waits``
or ``ranges``. A row has the columns of its table; the others are null and take almost no room. So one file
holds everything, every Parquet tool shows all of it (``filter(table == "ops")``), and no table hides in a
blob. What is said once about the whole recording stands as JSON in the file's metadata under the key
``kdvfs``, with the schema version and the version of kdvfs that wrote it. Unknown schema versions are
refused.

Reading gives back exactly what was written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import polars as pl

from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.core.errors import InputError, TraceFormatError
from kdvfs_sim.core.files import atomic_write, refuse_foreign
from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.core.version import __version__
from kdvfs_sim.trace.table import HOST_SCHEMA, OPS_SCHEMA, RANGES_SCHEMA, WAITS_SCHEMA, Trace

SCHEMA_VERSION: Final = 1
_KEY: Final = "kdvfs"
_MAGIC: Final = b"PAR1"
_KINDS_SCHEMA: Final[Mapping[str, Any]] = {
    "name": pl.String,
    "op_class": pl.String,
    "grid": pl.List(pl.Int64),
    "block": pl.List(pl.Int64),
    "category": pl.String,
    "flops": pl.Float64,
    "bytes": pl.Float64,
}
_SCHEMAS: Final[Mapping[str, Mapping[str, Any]]] = {
    "ops": OPS_SCHEMA,
    "kinds": _KINDS_SCHEMA,
    "host": HOST_SCHEMA,
    "waits": WAITS_SCHEMA,
    "ranges": RANGES_SCHEMA,
}
_DAMAGE: Final = (
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
    OSError,
    ValueError,
    KeyError,
    TypeError,
)


def write_parquet(trace: Trace, path: Path) -> None:
    """Write a trace, atomically. Raises InputError if the path cannot be written or holds another file."""
    check_target(path)
    kinds = pl.DataFrame(
        [{f.name: getattr(kind, f.name) for f in fields(kind)} for kind in trace.kinds],
        schema=dict(_KINDS_SCHEMA),
        orient="row",
    )
    tables = {
        "ops": trace.ops,
        "kinds": kinds,
        "host": trace.host,
        "waits": trace.waits,
        "ranges": trace.ranges,
    }
    long = pl.concat(
        [table.select(pl.lit(name).alias("table"), pl.all()) for name, table in tables.items()],
        how="diagonal",
    )
    with atomic_write(path) as file:
        long.write_parquet(file, metadata={_KEY: json.dumps(_header(trace))})


def read_parquet(path: Path) -> Trace:
    """Read back what ``write_parquet`` wrote. Raises TraceFormatError for anything else."""
    header = _read_header(path)
    if header is None:
        raise TraceFormatError(str(path), "a Parquet file, but not one written by kdvfs; use kdvfs import")
    version = header.get("schema")
    if version != SCHEMA_VERSION:
        raise TraceFormatError(
            str(path),
            f"trace schema {version!r} of kdvfs {header.get('version')}; "
            f"this is kdvfs {__version__}, which reads schema {SCHEMA_VERSION}",
        )
    try:
        long = pl.read_parquet(path)
        tables = {
            name: long.filter(table=name).select(
                pl.col(column).cast(dtype) for column, dtype in schema.items()
            )
            for name, schema in _SCHEMAS.items()
        }
        return Trace(
            ops=tables["ops"],
            kinds=tuple(_kind(row) for row in tables["kinds"].iter_rows(named=True)),
            host=tables["host"],
            waits=tables["waits"],
            ranges=tables["ranges"],
            **_fields(header),
        )
    except InputError:
        raise
    except _DAMAGE as error:
        raise TraceFormatError(str(path), f"damaged trace file ({_one_line(error)})") from None


def is_kdvfs_parquet(path: Path) -> bool:
    """Whether the file says that kdvfs wrote it."""
    try:
        return _read_header(path) is not None
    except TraceFormatError:
        return False


def check_target(path: Path) -> None:
    """Raise InputError if writing a trace to ``path`` would replace a file of another kind."""
    refuse_foreign(path, is_kdvfs_parquet, "a kdvfs trace")


class ParquetReader:
    """Reads our own Parquet files. A TraceReader."""

    format_name = "kdvfs"

    def can_read(self, path: Path, /) -> bool:
        with path.open("rb") as file:
            return file.read(4) == _MAGIC

    def read(self, path: Path, /) -> Trace:
        return read_parquet(path)


def _header(trace: Trace) -> dict[str, Any]:
    return {
        "schema": SCHEMA_VERSION,
        "version": __version__,
        "format": trace.format,
        "source": trace.source,
        "device_names": {str(device): name for device, name in trace.device_names.items()},
        "recorded_clocks": str(trace.recorded_clocks),
        "origin_unix_ns": trace.origin_unix_ns,
        "complete": trace.complete,
        "cross_stream_unknown": trace.cross_stream_unknown,
        "repairs": dict(trace.repairs),
        "quarantined": dict(trace.quarantined),
    }


def _fields(header: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in header.items() if key not in ("schema", "version")}
    kept["device_names"] = {int(device): name for device, name in header["device_names"].items()}
    kept["recorded_clocks"] = Clocks.parse(header["recorded_clocks"])
    return kept


def _kind(row: Mapping[str, Any]) -> KernelKind:
    grid, block = (None if row[key] is None else tuple(row[key]) for key in ("grid", "block"))
    return KernelKind(**{**row, "grid": grid, "block": block})


def _read_header(path: Path) -> dict[str, Any] | None:
    try:
        text = pl.read_parquet_metadata(path).get(_KEY)
        header = None if text is None else json.loads(text)
    except _DAMAGE as error:
        raise TraceFormatError(str(path), f"not a readable Parquet file ({_one_line(error)})") from None
    return header if isinstance(header, dict) else None


def _one_line(error: BaseException) -> str:
    return str(error).split("\n", 1)[0][:200]
