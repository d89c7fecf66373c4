"""Clock sweeps: what somebody measured, in the long form, checked once and then trusted.

One row is one reading (or the mean of ``n`` launches) of one kernel at one pair of requested clocks. Rows
stay in the order in which they were measured: a cold start shows in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final

import polars as pl

from kdvfs_sim.core.clocks import AUTO, Clocks
from kdvfs_sim.core.csv_table import UNENDED, Lines, read_csv_table
from kdvfs_sim.core.errors import InputError
from kdvfs_sim.core.kinds import CATEGORIES
from kdvfs_sim.core.parquet import read_foreign
from kdvfs_sim.gpu.fit.finding import Finding
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
# Outside of these no unit mixed up explains a value: it is refused. What is odd inside is a finding.
_PLAUSIBLE: Final[Mapping[str, tuple[float, float, str]]] = {
    "time_s": (1e-9, 1e6, "s a launch"),
    "power_w": (1e-3, 1e6, "W"),
    "energy_j": (1e-12, 1e9, "J a launch"),
    "sm_mhz_actual": (1.0, 20_000.0, "MHz"),
    "power_limit_w": (1.0, 1e5, "W"),
    "temperature_c": (-50.0, 200.0, "degrees Celsius"),
    "n": (1.0, 1e15, "launches"),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Sweep:
    """Readings of kernels at requested clocks; ``rows`` has the columns of SWEEP_SCHEMA.

    Only ratios of the times of one kernel matter to a fit, so relative times do. ``energy_factor``: the
    typical ratio of the energy to power x time, where a file gave all three; else 1. ``findings``: what was
    noticed when it was read.
    """

    rows: pl.DataFrame
    source: str = ""
    energy_factor: float = 1.0
    findings: tuple[Finding, ...] = ()

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


def read_sweep(path: str | Path) -> Sweep:
    """Read CSV or Parquet in the long form (see ``sweep_from_rows``).

    Raises InputError, one line with file, row, column and value, for whatever cannot be used.
    """
    path = Path(path)
    kind = Path(path.name.removesuffix(".gz")).suffix
    if kind not in (".csv", ".parquet"):
        raise InputError(f"{path}: a sweep is a .csv, .csv.gz or .parquet file")
    if kind == ".csv":
        table, lines = read_csv_table(path)
        return sweep_from_rows(table, source=str(path), lines=lines)
    return sweep_from_rows(read_foreign(path), source=str(path))


def sweep_from_rows(table: pl.DataFrame, *, source: str = "", lines: Lines | None = None) -> Sweep:
    """A sweep from ``kernel, sm_mhz, mem_mhz``, ``time_s`` and ``power_w`` or ``energy_j``.

    Optional: ``n``, ``sm_mhz_actual``, ``power_limit_w``, ``temperature_c``, ``category`` (else from the
    kernel's name). A clock may be ``auto``. Time or power may be missing (empty or NaN) in a row or in all,
    not both; a finding says where. Other columns are dropped. ``lines``: those of the rows, for messages.
    Raises InputError naming row, column and value.
    """
    return _Table(table, source or "sweep", lines or Lines()).sweep(source)


class _Table:
    """Rows on their way to a sweep: each column is checked, and a value that cannot be is named."""

    def __init__(self, table: pl.DataFrame, where: str, lines: Lines) -> None:
        self.table, self.where, self.lines = table, where, lines

    def sweep(self, source: str) -> Sweep:
        listed = ", ".join(self.table.columns)
        for name in _REQUIRED:
            if name not in self.table.columns:
                raise InputError(f"{self.where}: has no column {name!r}; its columns are {listed}")
        if not {"time_s", "power_w"} & set(self.table.columns):
            raise InputError(f"{self.where}: has neither time_s nor power_w; its columns are {listed}")
        columns = {
            "kernel": self.table["kernel"].cast(pl.String),
            "sm_mhz": self.clocks("sm_mhz"),
            "mem_mhz": self.clocks("mem_mhz"),
            **{name: self.numbers(name) for name in _OPTIONAL},
            "n": self.counts(),
        }
        factor = 1.0
        if "energy_j" in self.table.columns:
            if "time_s" not in self.table.columns:
                raise InputError(f"{self.where}: has energy_j and no time_s; an energy needs its time")
            energy = self.numbers("energy_j")
            power = energy / columns["time_s"]
            if "power_w" in self.table.columns:
                factor = _factor(power / columns["power_w"])
            else:
                low, high, _ = _PLAUSIBLE["power_w"]
                self.refuse(
                    ((power < low) | (power > high)).fill_null(False),
                    energy,
                    f"over time_s is no power; {low:g} to {high:g} W is right",
                )
                columns["power_w"] = power
        columns["category"] = self.categories(columns["kernel"])
        rows = pl.DataFrame(columns).select(pl.col(name).cast(kind) for name, kind in SWEEP_SCHEMA.items())
        self.refuse(rows["kernel"].fill_null("").str.strip_chars() == "", self.table["kernel"], "is empty")
        empty = rows["time_s"].is_null() & rows["power_w"].is_null()
        if empty.any():
            where = self.lines.at(empty.arg_true()[0])
            raise InputError(f"{self.where}: {where} has neither a time nor a power")
        return Sweep(rows=rows, source=source, energy_factor=factor, findings=tuple(self.findings(rows)))

    def findings(self, rows: pl.DataFrame) -> Iterator[Finding]:
        """What is missing where others are there, and a file that may go on."""
        for name, what in (("time_s", "time"), ("power_w", "power")):
            missing = rows[name].is_null()
            if missing.any() and not missing.all():
                at = missing.arg_true()
                named = ", ".join(self.lines.at(row) for row in at[:5])
                more = f" and {len(at) - 5} more" if len(at) > 5 else ""
                yield Finding(
                    code="missing-values",
                    text=f"{len(at)} of {rows.height} readings have no {what} (empty or NaN): {named}{more}",
                    kernels=tuple(rows["kernel"].filter(missing).unique(maintain_order=True)),
                )
        if not self.lines.ended:
            yield Finding(code="no-final-line-break", text=UNENDED, kernels=(rows["kernel"][-1],))

    def clocks(self, name: str) -> pl.Series:
        """Whole MHz, null for AUTO."""
        column = self.table[name]
        text = column.cast(pl.String).str.strip_chars().str.to_lowercase()
        auto = text == "auto"
        numbers = text.set(auto.fill_null(False), None).cast(pl.Float64, strict=False)
        self.refuse(auto.not_().fill_null(True) & numbers.is_null(), column, "is neither whole MHz nor auto")
        low, high = _MHZ_RANGE
        inside = (numbers >= low) & (numbers <= high) & (numbers == numbers.round())
        outside = inside.not_() | numbers.is_nan()
        self.refuse(
            outside.fill_null(False),
            column,
            f"is no clock of {low} to {high} whole MHz (an offset? kHz?)",
        )
        return numbers.cast(pl.Int64)

    def numbers(self, name: str) -> pl.Series:
        """Plausible numbers, null where empty or NaN; all null without the column."""
        if name not in self.table.columns:
            return pl.Series(name, [None] * self.table.height, dtype=pl.Float64)
        column = self.table[name]
        numbers = column.cast(pl.Float64, strict=False)
        self.refuse(numbers.is_null() & column.is_not_null(), column, "is not a number")
        numbers = numbers.fill_nan(None)
        low, high, unit = _PLAUSIBLE[name]
        wrong = ((numbers < low) | (numbers > high)).fill_null(False)
        self.refuse(wrong, column, f"is not possible; {low:g} to {high:g} {unit} is right")
        return numbers

    def counts(self) -> pl.Series:
        if "n" not in self.table.columns:
            return pl.Series("n", [1] * self.table.height, dtype=pl.Int64)
        counts = self.numbers("n")
        self.refuse(
            counts.is_null() | (counts != counts.round()), self.table["n"], "is no number of launches"
        )
        return counts.cast(pl.Int64)

    def categories(self, kernels: pl.Series) -> pl.Series:
        if "category" not in self.table.columns:
            return kernels.map_elements(category_of, return_dtype=pl.String).rename("category")
        column = self.table["category"].cast(pl.String)
        wrong = column.is_in(list(CATEGORIES)).not_().fill_null(True)
        self.refuse(wrong, column, f"is none of {', '.join(CATEGORIES)}")
        return column

    def refuse(self, wrong: pl.Series, column: pl.Series, problem: str) -> None:
        """Raises InputError naming the first of the ``wrong``."""
        rows = wrong.arg_true()
        if rows.len():
            at, value = self.lines.at(rows[0]), column[rows[0]]
            raise InputError(f"{self.where}: {at}, column {column.name!r}: {value!r} {problem}")


def _factor(ratio: pl.Series) -> float:
    """The typical factor between two statements of one power."""
    middle = ratio.drop_nulls().median()
    return float(middle) if isinstance(middle, int | float) else 1.0
