"""Clock sweeps: what somebody measured, in the long form, checked once and then trusted.

One row is one reading (or the mean of ``n`` launches) of one kernel at one pair of requested clocks. Rows
stay in the order in which they were measured: a cold start shows in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final

import polars as pl

from kdvfs_sim.core.clocks import AUTO, Clocks
from kdvfs_sim.core.errors import InputError
from kdvfs_sim.core.kinds import CATEGORIES
from kdvfs_sim.core.parquet import read_foreign
from kdvfs_sim.trace.categories import category_of

# Null means AUTO for a requested clock (nobody asked for one) and unknown everywhere else.
SWEEP_SCHEMA: Final[Mapping[str, type[pl.DataType]]] = {
    "kernel": pl.String,
    "sm_mhz": pl.Int64,  # as requested
    "mem_mhz": pl.Int64,
    "time_s": pl.Float64,
    "power_w": pl.Float64,  # device power while the kernel runs
    "n": pl.Int64,  # launches that the row averages
    "sm_mhz_actual": pl.Float64,  # as read while it ran
    "power_limit_w": pl.Float64,
    "temperature_c": pl.Float64,
    "category": pl.String,
}
_REQUIRED: Final = ("kernel", "sm_mhz", "mem_mhz")
_OPTIONAL: Final = ("time_s", "power_w", "sm_mhz_actual", "power_limit_w", "temperature_c")
_MHZ_RANGE: Final = (50, 20_000)


@dataclass(frozen=True, kw_only=True, eq=False)
class Sweep:
    """Readings of kernels at requested clocks; ``rows`` has the columns of SWEEP_SCHEMA.

    Only ratios of the times of one kernel matter to a fit, so relative times do. ``energy_factor``: the
    typical ratio of the energy to power x time, where a file gave all three; else 1.
    """

    rows: pl.DataFrame
    source: str = ""
    energy_factor: float = 1.0

    def __post_init__(self) -> None:
        if dict(self.rows.schema) != dict(SWEEP_SCHEMA):
            raise InputError(f"{self.where}: columns are {dict(self.rows.schema)}; SWEEP_SCHEMA is right")
        if self.rows.is_empty():
            raise InputError(f"{self.where}: holds no reading")

    @property
    def where(self) -> str:
        return self.source or "sweep"

    @cached_property
    def kernels(self) -> tuple[str, ...]:
        """In the order of their first reading."""
        return tuple(self.rows["kernel"].unique(maintain_order=True))

    @cached_property
    def categories(self) -> tuple[str, ...]:
        """One for each of ``kernels``."""
        first = self.rows.unique("kernel", keep="first", maintain_order=True)
        return tuple(first["category"])

    @cached_property
    def clocks(self) -> tuple[Clocks, ...]:
        """The requested pairs, by memory clock and then SM clock, AUTO last."""
        pairs = self.rows.select("sm_mhz", "mem_mhz").unique().rows()
        clocks = (Clocks(AUTO if sm is None else sm, AUTO if mem is None else mem) for sm, mem in pairs)
        return tuple(sorted(clocks, key=lambda pair: pair.sort_key))

    @property
    def has_time(self) -> bool:
        return self.rows["time_s"].null_count() < self.rows.height

    @property
    def has_power(self) -> bool:
        return self.rows["power_w"].null_count() < self.rows.height

    @property
    def has_numeric(self) -> bool:
        """Whether any reading is at a numeric clock pair."""
        return bool((self.rows["sm_mhz"].is_not_null() & self.rows["mem_mhz"].is_not_null()).any())

    def where_rows(self, *conditions: pl.Expr) -> Sweep:
        """The rows that meet all conditions. Raises InputError if none does."""
        rows = self.rows.filter(*conditions)
        if rows.is_empty():
            raise InputError(f"{self.where}: no reading is left of {self.rows.height} after the selection")
        return replace(self, rows=rows)

    def numeric(self) -> Sweep:
        """Without the readings at AUTO, which belong to no clock a model can be asked for.

        Raises InputError if there are no others.
        """
        if not self.has_numeric:
            raise InputError(f"{self.where}: every reading is at AUTO; a fit needs some at clocks in MHz")
        return self.where_rows(pl.col("sm_mhz").is_not_null(), pl.col("mem_mhz").is_not_null())


def read_sweep(path: Path) -> Sweep:
    """Read CSV or Parquet in the long form (see ``sweep_from_rows``).

    Raises InputError, one line with file, row, column and value, for whatever cannot be used.
    """
    if path.suffix not in (".csv", ".parquet"):
        raise InputError(f"{path}: a sweep is a .csv or .parquet file")
    try:
        if path.suffix == ".parquet":
            table = read_foreign(path)
        else:
            table = pl.read_csv(path, comment_prefix="#", infer_schema_length=None)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except pl.exceptions.PolarsError as error:
        first_line = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"{path}: cannot be read as {path.suffix[1:]} ({first_line})") from None
    return sweep_from_rows(table, source=str(path))


def sweep_from_rows(table: pl.DataFrame, *, source: str = "") -> Sweep:
    """A sweep from ``kernel, sm_mhz, mem_mhz``, ``time_s`` and ``power_w`` or ``energy_j``.

    Optional: ``n``, ``sm_mhz_actual``, ``power_limit_w``, ``temperature_c``, ``category`` (else from the
    kernel's name). A clock may be ``auto``. Time or power may be missing in a row or in all, not both. Other
    columns are dropped. Raises InputError naming row, column and value.
    """
    where = source or "sweep"
    for name in _REQUIRED:
        if name not in table.columns:
            raise InputError(f"{where}: has no column {name!r}; its columns are {', '.join(table.columns)}")
    if not {"time_s", "power_w"} & set(table.columns):
        raise InputError(
            f"{where}: has neither time_s nor power_w; its columns are {', '.join(table.columns)}"
        )
    columns = {
        "kernel": table["kernel"].cast(pl.String),
        "sm_mhz": _clocks(table["sm_mhz"], where),
        "mem_mhz": _clocks(table["mem_mhz"], where),
    }
    for name in _OPTIONAL:
        columns[name] = _numbers(table, name, where)
    columns["n"] = _counts(table, where)
    factor = 1.0
    if "energy_j" in table.columns:
        energy, time = _numbers(table, "energy_j", where), columns["time_s"]
        if "time_s" not in table.columns:
            raise InputError(f"{where}: has energy_j and no time_s; an energy needs its time")
        power = energy / time
        if "power_w" in table.columns:
            factor = _factor(power / columns["power_w"])
        else:
            columns["power_w"] = power
    columns["category"] = _categories(table, columns["kernel"], where)
    rows = pl.DataFrame(columns).select(pl.col(name).cast(kind) for name, kind in SWEEP_SCHEMA.items())
    _refuse(
        rows["kernel"].fill_null("").str.strip_chars() == "", table["kernel"], "kernel", "is empty", where
    )
    empty = rows["time_s"].is_null() & rows["power_w"].is_null()
    if empty.any():
        raise InputError(f"{where}: row {empty.arg_true()[0]} has neither a time nor a power")
    return Sweep(rows=rows, source=source, energy_factor=factor)


def _clocks(column: pl.Series, where: str) -> pl.Series:
    """Whole MHz, null for AUTO."""
    text = column.cast(pl.String).str.strip_chars().str.to_lowercase()
    auto = text == "auto"
    numbers = text.set(auto.fill_null(False), None).cast(pl.Float64, strict=False)
    wrong = auto.not_().fill_null(True) & numbers.is_null()
    _refuse(wrong, column, column.name, "is neither whole MHz nor auto", where)
    low, high = _MHZ_RANGE
    outside = ((numbers < low) | (numbers > high) | (numbers != numbers.round())).fill_null(False)
    _refuse(
        outside, column, column.name, f"is no clock of {low} to {high} whole MHz (an offset? kHz?)", where
    )
    return numbers.cast(pl.Int64)


def _numbers(table: pl.DataFrame, name: str, where: str) -> pl.Series:
    """Positive numbers, null where empty or NaN; all null without the column."""
    if name not in table.columns:
        return pl.Series(name, [None] * table.height, dtype=pl.Float64)
    column = table[name]
    numbers = column.cast(pl.Float64, strict=False)
    _refuse(numbers.is_null() & column.is_not_null(), column, name, "is not a number", where)
    numbers = numbers.fill_nan(None)
    wrong = ((numbers <= 0) | numbers.is_infinite()).fill_null(False)
    _refuse(wrong, column, name, "is not possible; a finite number above 0 is right", where)
    return numbers


def _counts(table: pl.DataFrame, where: str) -> pl.Series:
    if "n" not in table.columns:
        return pl.Series("n", [1] * table.height, dtype=pl.Int64)
    counts = _numbers(table, "n", where)
    wrong = counts.is_null() | (counts != counts.round())
    _refuse(wrong, table["n"], "n", "is no number of launches", where)
    return counts.cast(pl.Int64)


def _categories(table: pl.DataFrame, kernels: pl.Series, where: str) -> pl.Series:
    if "category" not in table.columns:
        return kernels.map_elements(category_of, return_dtype=pl.String).rename("category")
    column = table["category"].cast(pl.String)
    wrong = column.is_in(list(CATEGORIES)).not_().fill_null(True)
    _refuse(wrong, column, "category", f"is none of {', '.join(CATEGORIES)}", where)
    return column


def _factor(ratio: pl.Series) -> float:
    """The typical factor between two statements of one power."""
    middle = ratio.drop_nulls().median()
    return float(middle) if isinstance(middle, int | float) else 1.0


def _refuse(wrong: pl.Series, column: pl.Series, name: str, problem: str, where: str) -> None:
    rows = wrong.arg_true()
    if rows.len():
        raise InputError(f"{where}: row {rows[0]}, column {name!r}: {column[rows[0]]!r} {problem}")
