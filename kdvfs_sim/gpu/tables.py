"""Cost tables from measured or published numbers, and cost tables as files.

The long form has one row for each kernel and clock pair: ``kernel, sm_mhz, mem_mhz``, ``time_s`` (or
``duration_ns``) and ``power_w`` or ``energy_j``; a clock may be ``auto``, a missing pair is unknown.
Measured rows are their own effective clocks: what the cap did is already in the numbers.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from kdvfs_sim.core.clocks import AUTO, AUTO_CLOCKS, ClockMhz, Clocks
from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.core.csv_table import Lines, read_csv_table
from kdvfs_sim.core.errors import InputError
from kdvfs_sim.core.files import atomic_write, refuse_foreign
from kdvfs_sim.core.parquet import read_foreign, read_sealed, write_sealed
from kdvfs_sim.core.version import __version__

FORMAT: Final = "kdvfs-cost-table"
SCHEMA_VERSION: Final = 1
_METADATA_KEY: Final = "kdvfs"
_MAX_MHZ: Final = 20_000


def cost_table_from_rows(
    table: pl.DataFrame,
    *,
    recorded: Clocks = AUTO_CLOCKS,
    cap_w: float | None = None,
    assumed: tuple[str, ...] = (),
    source: str = "",
    where: str = "",
    lines: Lines | None = None,
) -> CostTable:
    """A cost table from the long form. Kernels and clocks keep the order of their first row.

    Optional columns: ``kind`` (number of the kernel kind, where names repeat), ``idle_power_w``
    and ``requestable`` (by clock pair), ``effective_sm_mhz`` and ``effective_mem_mhz``. Without an
    idle power, idle gaps have a null energy. ``where`` and ``lines`` are for messages: the file, if it
    is not ``source``, and the lines of the rows. Raises InputError naming row, column and value.
    """
    at = _Where(where or source or "cost table", lines or Lines())
    time, power = _time_column(table, at), _power_column(table, at)
    rows = table.height
    sm, mem = (_clock_column(table, name, at) for name in ("sm_mhz", "mem_mhz"))
    pairs = [Clocks(s, m) for s, m in zip(sm, mem, strict=True)]
    names = _column(table, "kernel", at).cast(pl.String).to_list()
    keys: list[Any] = _column(table, "kind", at).to_list() if "kind" in table.columns else names
    row_of_kind = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    row_of_pair = {pair: i for i, pair in enumerate(dict.fromkeys(pairs))}
    if recorded not in row_of_pair:
        known = ", ".join(str(pair) for pair in list(row_of_pair)[:4])
        raise InputError(f"{at}: has no row for the recorded clocks {recorded}; it begins with {known}")
    kinds = np.array([row_of_kind[key] for key in keys], dtype=np.int64)
    columns = np.array([row_of_pair[pair] for pair in pairs], dtype=np.int64)
    cells, counts = np.unique(kinds * len(row_of_pair) + columns, return_counts=True)
    if (counts > 1).any():
        kind, column = divmod(int(cells[counts > 1][0]), len(row_of_pair))
        twice = [i for i in range(rows) if kinds[i] == kind and columns[i] == column]
        raise InputError(
            f"{at.row(twice[1])} repeats {at.lines.at(twice[0])} ({names[twice[0]]} at "
            f"{pairs[twice[0]]}); one row for a kernel and a clock pair is right"
        )
    shape = (len(row_of_kind), len(row_of_pair))
    durations, powers = np.full(shape, np.nan), np.full(shape, np.nan)
    durations[kinds, columns], powers[kinds, columns] = time, power
    effective = np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape).copy()
    if "effective_sm_mhz" in table.columns:
        resolved = zip(
            *(_clock_column(table, f"effective_{name}", at) for name in ("sm_mhz", "mem_mhz")), strict=True
        )
        for i, (s, m) in enumerate(resolved):
            if Clocks(s, m) not in row_of_pair:
                raise InputError(f"{at.row(i)}: effective clocks {Clocks(s, m)} have no row of their own")
            effective[kinds[i], columns[i]] = row_of_pair[Clocks(s, m)]
    idle = np.full(shape[1], np.nan)
    if "idle_power_w" in table.columns:
        idle[columns] = _number_column(table, "idle_power_w", at)
    requestable = np.ones(shape[1], dtype=np.bool_)
    if "requestable" in table.columns:
        requestable[columns] = _truth_column(table, "requestable", at)
    return CostTable(
        kinds=tuple(names[keys.index(key)] for key in row_of_kind),
        clocks=tuple(row_of_pair),
        duration_ns=durations,
        power_w=powers,
        effective=effective,
        idle_power_w=idle,
        recorded=row_of_pair[recorded],
        requestable=requestable,
        cap_w=cap_w,
        assumed=assumed,
        source=source,
    )


def read_cost_table(path: str | Path, *, recorded: Clocks | None = None) -> CostTable:
    """Read Parquet or CSV: our own file, or a sweep in the long form.

    ``recorded``: clocks that the recording ran at; default: what the file says, else (AUTO, AUTO).
    Raises InputError, one line, for a missing, foreign or damaged file and an unknown version.
    """
    path = Path(path)
    head = _head(path)
    lines = Lines()
    try:
        if path.suffix == ".parquet":
            table = read_foreign(path)
        else:
            table, lines = read_csv_table(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"{path}: cannot be read as {path.suffix[1:]} ({_first_line(error)})") from None
    # said with every result that leans on the table
    taken = () if lines.ended else (f"the last line of {path.name}, which no line break ends, is whole",)
    if head is None:
        return cost_table_from_rows(
            table, recorded=recorded or AUTO_CLOCKS, assumed=taken, source=str(path), lines=lines
        )
    costs = cost_table_from_rows(
        table,
        recorded=recorded or _clocks_of_head(head.recorded, path),
        cap_w=head.cap_w,
        assumed=(*head.assumed, *taken),
        source=head.source,
        where=str(path),
        lines=lines,
    )
    if head.recorded_effective is None or recorded is not None:
        return costs
    reference = [_clocks_of_head(text, path) for text in head.recorded_effective]
    try:
        rows = np.array([costs.index(clocks) for clocks in reference], dtype=np.int32)
        return replace(costs, recorded_effective=rows)
    except InputError as error:
        raise _wrong_head(path, f"recorded_effective: {error}") from None


def write_cost_table(
    costs: CostTable, path: str | Path, *, fact_kind: npt.NDArray[np.str_] | None = None
) -> None:
    """Write Parquet or CSV, by the suffix, atomically; ``read_cost_table`` gives back the same numbers.

    ``fact_kind`` (n_kinds, n_clocks): where each cell comes from, for people who open the file. Raises
    InputError if the suffix is neither, or the file cannot be written or is of another kind.
    """
    path = Path(path)
    if path.suffix not in (".parquet", ".csv"):
        raise InputError(f"{path}: a cost table needs a name that ends in .parquet or .csv")
    refuse_foreign(path, _is_ours, "a cost table")
    n_kinds, n_clocks = costs.duration_ns.shape
    sm = np.array([_clock_text(pair.sm_mhz) for pair in costs.clocks])
    mem = np.array([_clock_text(pair.mem_mhz) for pair in costs.clocks])
    rows = costs.effective.ravel()
    table = pl.DataFrame(
        {
            "kind": np.repeat(np.arange(n_kinds), n_clocks),
            "kernel": np.repeat(np.array(costs.kinds, dtype=object), n_clocks),
            "sm_mhz": np.tile(sm, n_kinds),
            "mem_mhz": np.tile(mem, n_kinds),
            "duration_ns": costs.duration_ns.ravel(),
            "power_w": costs.power_w.ravel(),
            "effective_sm_mhz": sm[rows],
            "effective_mem_mhz": mem[rows],
            "idle_power_w": np.tile(costs.idle_power_w, n_kinds),
            "requestable": np.tile(costs.requestable, n_kinds),
        },
        schema_overrides={"kernel": pl.String},
    )
    if fact_kind is not None:
        table = table.with_columns(fact_kind=fact_kind.ravel())
    reference = costs.recorded_effective
    head = _Head(
        recorded=str(costs.clocks[costs.recorded]),
        recorded_effective=None if reference is None else [str(costs.clocks[r]) for r in reference],
        cap_w=costs.cap_w,
        assumed=list(costs.assumed),
        source=costs.source,
    )
    text = json.dumps(msgspec.to_builtins(head))
    with atomic_write(path) as file:
        if path.suffix == ".parquet":
            write_sealed(table, file, {_METADATA_KEY: text})
        else:
            file.write(f"# {text}\n".encode())
            table.write_csv(file, quote_style="non_numeric")


class _Format(msgspec.Struct):
    """What tells our files from any other table."""

    format: Literal["kdvfs-cost-table"]
    schema_version: Any = None


class _Head(msgspec.Struct, kw_only=True):
    """What a file of ours says beside its rows."""

    format: str = FORMAT
    schema_version: int = SCHEMA_VERSION
    kdvfs_version: str = __version__
    recorded: str
    recorded_effective: list[str] | None
    cap_w: Annotated[float, msgspec.Meta(gt=0)] | None
    assumed: list[str]
    source: str


def _head_text(path: Path) -> str | None:
    """The head of a file of ours; None for any other table."""
    if path.suffix not in (".parquet", ".csv"):
        raise InputError(f"{path}: a cost table is a .parquet or .csv file")
    try:
        if path.suffix == ".parquet":
            sealed = read_sealed(path)
            text = "" if sealed is None else sealed[0].get(_METADATA_KEY, "")
        else:
            with path.open("rb") as file:
                first = file.readline().decode(errors="replace")
            text = first[1:] if first.startswith("#") else ""
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    try:
        msgspec.json.decode(text, type=_Format)
    except msgspec.DecodeError:
        return None
    return text


def _head(path: Path) -> _Head | None:
    """What our own files say of themselves; None for any other table. Raises InputError for a wrong head."""
    text = _head_text(path)
    if text is None:
        return None
    version = msgspec.json.decode(text, type=_Format).schema_version
    if version != SCHEMA_VERSION:
        raise InputError(f"{path}: schema_version is {version!r}; this kdvfs reads {SCHEMA_VERSION}")
    try:
        return msgspec.json.decode(text, type=_Head)
    except msgspec.DecodeError as error:
        raise _wrong_head(path, str(error)) from None


def _clocks_of_head(text: str, path: Path) -> Clocks:
    try:
        return Clocks.parse(text)
    except InputError as error:
        raise _wrong_head(path, str(error)) from None


def _wrong_head(path: Path, what: str) -> InputError:
    return InputError(f"{path}: its head is wrong ({what}); write it again with write_cost_table")


def _is_ours(path: Path) -> bool:
    try:
        return _head_text(path) is not None
    except InputError:
        return False


@dataclass(frozen=True, slots=True)
class _Where:
    """The place that a message begins with, and where a row of it is."""

    text: str
    lines: Lines

    def __str__(self) -> str:
        return self.text

    def row(self, row: int) -> str:
        return f"{self.text}: {self.lines.at(int(row))}"


def _column(table: pl.DataFrame, name: str, where: _Where) -> pl.Series:
    if name not in table.columns:
        raise InputError(f"{where}: has no column {name!r}; its columns are {', '.join(table.columns)}")
    column = table[name]
    if column.dtype.is_nested():
        raise InputError(f"{where}: column {name!r} holds {column.dtype}; one value a row is right")
    if column.null_count():
        row = column.is_null().arg_true()[0]
        raise InputError(f"{where.row(row)}, column {name!r} is empty")
    return column


def _truth_column(table: pl.DataFrame, name: str, where: _Where) -> npt.NDArray[np.bool_]:
    known = {"true": True, "false": False, "1": True, "0": False}
    values = _column(table, name, where).to_list()
    truths = [known.get(str(value).strip().lower()) for value in values]
    if None in truths:
        row = truths.index(None)
        raise InputError(f"{where.row(row)}, column {name!r}: {values[row]!r} is neither true nor false")
    return np.array(truths, dtype=np.bool_)


def _number_column(table: pl.DataFrame, name: str, where: _Where) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Numbers, NaN where empty."""
    column = table[name]
    numbers = column.cast(pl.Float64, strict=False)
    wrong = (numbers.is_null() & column.is_not_null()).arg_true()
    if wrong.len():
        raise InputError(f"{where.row(wrong[0])}, column {name!r}: {column[wrong[0]]!r} is not a number")
    values = numbers.fill_null(math.nan).to_numpy()
    bad = np.flatnonzero(
        (values < 0) | np.isinf(values) | ((values == 0) & (name in ("time_s", "duration_ns")))
    )
    if bad.size:
        raise InputError(f"{where.row(bad[0])}, column {name!r}: {values[bad[0]]} is not possible")
    return values


def _time_column(table: pl.DataFrame, where: _Where) -> np.ndarray[Any, np.dtype[np.float64]]:
    if "duration_ns" in table.columns:
        return _number_column(table, "duration_ns", where)
    _need(table, "time_s", where)
    return _number_column(table, "time_s", where) * 1e9


def _power_column(table: pl.DataFrame, where: _Where) -> np.ndarray[Any, np.dtype[np.float64]]:
    if "power_w" in table.columns:
        return _number_column(table, "power_w", where)
    _need(table, "energy_j", where)
    return _number_column(table, "energy_j", where) / (_time_column(table, where) * 1e-9)


def _need(table: pl.DataFrame, name: str, where: _Where) -> None:
    if name not in table.columns:
        other = {"time_s": "time_s or duration_ns", "energy_j": "power_w or energy_j"}[name]
        raise InputError(f"{where}: has no column {other}; its columns are {', '.join(table.columns)}")


def _clock_column(table: pl.DataFrame, name: str, where: _Where) -> list[ClockMhz]:
    clocks: list[ClockMhz] = []
    for i, value in enumerate(_column(table, name, where).to_list()):
        text = str(value).strip().lower()
        if text == "auto":
            clocks.append(AUTO)
        elif text.isascii() and text.removesuffix(".0").isdigit() and 0 < int(float(text)) <= _MAX_MHZ:
            clocks.append(int(float(text)))
        else:
            raise InputError(f"{where.row(i)}, column {name!r}: {value!r} is neither whole MHz nor auto")
    return clocks


def _clock_text(mhz: ClockMhz) -> str:
    return "auto" if mhz is AUTO else str(mhz)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
