"""Our own trace format: one Parquet file.

The file is one long table whose column ``table`` says what a row is: ``ops``, ``kinds``, ``host``, ``waits``
or ``ranges``. A row has the columns of its table; the others are null and take almost no room. So one file
holds everything, every Parquet tool shows all of it (``filter(table == "ops")``), and no table hides in a
blob. What is said once about the whole recording stands as JSON in the file's metadata under the key
``kdvfs``, with the schema version and the version of kdvfs that wrote it (``schema`` and ``version``: these
two tell a trace from a cost table, whose metadata has the same key). Unknown schema versions are refused.

Reading gives back exactly what was written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.core.errors import InputError, TraceFormatError
from kdvfs_sim.core.files import atomic_write, refuse_foreign
from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.core.parquet import read_sealed, write_sealed
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
    msgspec.DecodeError,
    OSError,
    ValueError,
    TypeError,
)


def write_parquet(trace: Trace, path: str | Path) -> None:
    """Write a trace, atomically. Raises InputError if the path cannot be written or holds another file."""
    path = Path(path)
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
        write_sealed(long, file, {_KEY: msgspec.json.encode(_header(trace)).decode()})


def read_parquet(path: str | Path) -> Trace:
    """Read back what ``write_parquet`` wrote. Raises TraceFormatError for anything else."""
    path = Path(path)
    ours = _header_and_content(path)
    if ours is None:
        raise TraceFormatError(str(path), "a Parquet file, but not a trace written by kdvfs")
    text, content = ours
    try:
        found = msgspec.json.decode(text, type=_Version)
        if found.schema != SCHEMA_VERSION:
            raise TraceFormatError(
                str(path),
                f"trace schema {found.schema!r} of kdvfs {found.version}; "
                f"this is kdvfs {__version__}, which reads schema {SCHEMA_VERSION}",
            )
        header = msgspec.json.decode(text, type=_Header)
        long = pl.read_parquet(content)
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
            device_names=header.device_names,
            recorded_clocks=Clocks.parse(header.recorded_clocks),
            format=header.format,
            source=header.source,
            origin_unix_ns=header.origin_unix_ns,
            complete=header.complete,
            cross_stream_unknown=header.cross_stream_unknown,
            repairs=header.repairs,
            quarantined=header.quarantined,
        )
    except InputError:
        raise
    except _DAMAGE as error:
        raise TraceFormatError(str(path), f"damaged trace file ({_one_line(error)})") from None


def is_kdvfs_parquet(path: Path) -> bool:
    """Whether the file says that it is a trace written by kdvfs; our other tables are none."""
    try:
        return _header_and_content(path) is not None
    except TraceFormatError:
        return False


def check_target(path: Path) -> None:
    """Raise InputError for a name that promises another format, or a file of another kind."""
    refuse_foreign(path, is_kdvfs_parquet, "a kdvfs trace")
    if path.suffix not in ("", ".parquet"):
        raise InputError(f"{path}: a kdvfs trace is a Parquet file; a name that ends in .parquet is right")


class ParquetReader:
    """Reads our own Parquet files. A TraceReader."""

    format_name = "kdvfs"

    def can_read(self, path: Path, /) -> bool:
        with path.open("rb") as file:
            return file.read(4) == _MAGIC

    def read(self, path: Path, /) -> Trace:
        return read_parquet(path)


class _Header(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What is said once about a recording. ``schema`` and ``version`` stand first: they tell whether the rest
    can be understood."""

    schema: int
    version: str
    format: str
    source: str
    device_names: dict[int, str]
    recorded_clocks: str
    origin_unix_ns: int | None
    complete: bool
    cross_stream_unknown: bool
    repairs: dict[str, int]
    quarantined: dict[str, int]


class _Version(msgspec.Struct):
    schema: Any
    version: Any


def _header(trace: Trace) -> _Header:
    return _Header(
        schema=SCHEMA_VERSION,
        version=__version__,
        format=trace.format,
        source=trace.source,
        device_names=dict(trace.device_names),
        recorded_clocks=str(trace.recorded_clocks),
        origin_unix_ns=trace.origin_unix_ns,
        complete=trace.complete,
        cross_stream_unknown=trace.cross_stream_unknown,
        repairs=dict(trace.repairs),
        quarantined=dict(trace.quarantined),
    )


def _kind(row: Mapping[str, Any]) -> KernelKind:
    grid, block = (None if row[key] is None else tuple(row[key]) for key in ("grid", "block"))
    return KernelKind(**{**row, "grid": grid, "block": block})


def _header_and_content(path: Path) -> tuple[str, bytes] | None:
    try:
        sealed = read_sealed(path)
    except InputError as error:
        raise TraceFormatError(str(path), str(error).removeprefix(f"{path}: ")) from None
    text = None if sealed is None else sealed[0].get(_KEY)
    if sealed is None or text is None:
        return None
    try:
        msgspec.json.decode(text, type=_Version)
    except (msgspec.DecodeError, RecursionError):
        return None
    return text, sealed[1]


def _one_line(error: BaseException) -> str:
    return str(error).split("\n", 1)[0][:200]
