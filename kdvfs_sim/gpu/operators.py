"""Readings of single operators, looped until settled, to the numbers of a GPU's entry.

What each reading gives is an operating point: the SM clock and the power at which such kernels run under
AUTO. For matrix products the power beyond idle follows the FLOP rate: ``e V(f)^2 F / t`` with one energy per
FLOP, which is why the better a product fills the tensor units, the lower is the clock it can sustain.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import polars as pl

from kdvfs_sim.core.csv_table import Lines, read_csv_table
from kdvfs_sim.core.errors import InputError
from kdvfs_sim.core.kinds import CATEGORIES, Category
from kdvfs_sim.core.parquet import read_foreign
from kdvfs_sim.gpu.facts import Fact, GpuFacts
from kdvfs_sim.gpu.power import Floats, GpuPower, gpu_power

_COLUMNS: Final = ("operator", "category", "time_s", "sm_mhz", "power_w")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorReading:
    """One operator, repeated without a pause at AUTO: time a call, mean SM clock, mean power.

    ``kernel``: pattern of the name of the kernel it runs, where known; ``flops`` per call.
    ``capped``: the power limit held it back, as the driver reports.
    """

    name: str
    category: Category
    time_s: float
    sm_mhz: float
    power_w: float
    kernel: str = ""
    flops: float | None = None
    capped: bool = False

    def __post_init__(self) -> None:
        if min(self.time_s, self.sm_mhz, self.power_w) <= 0 or self.category not in CATEGORIES:
            raise InputError(
                f"operator {self.name}: category {self.category!r}, {self.time_s} s, {self.sm_mhz} MHz, "
                f"{self.power_w} W; a known category and numbers above 0 are right"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """By how much the other readings miss one operator's own.

    ``power_pct``: at its own clock. ``clock_pct``: the clock at which it meets the others' power, from
    its number of cycles; None for an operator without FLOPs.
    """

    name: str
    tensor: bool
    power_pct: float
    clock_pct: float | None


def read_operators(path: Path) -> tuple[OperatorReading, ...]:
    """CSV or Parquet with columns operator, category, time_s, sm_mhz, power_w (and kernel, flops, capped).

    Raises InputError for a missing or unreadable file, a missing column, and values that are none.
    """
    lines = Lines()
    try:
        if path.suffix == ".parquet":
            table = read_foreign(path)
        else:
            table, lines = read_csv_table(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{path}: cannot be read ({str(error).splitlines()[0]})") from None
    missing = [name for name in _COLUMNS if name not in table.columns]
    if missing:
        raise InputError(f"{path}: has no column {missing[0]!r}; {', '.join(_COLUMNS)} are needed")
    readings = []
    for number, row in enumerate(table.iter_rows(named=True)):
        try:
            readings.append(
                OperatorReading(
                    name=str(row["operator"]),
                    category=cast(Category, row["category"]),
                    time_s=_positive(row, "time_s"),
                    sm_mhz=_positive(row, "sm_mhz"),
                    power_w=_positive(row, "power_w"),
                    kernel=row.get("kernel") or "",
                    flops=row.get("flops"),
                    capped=bool(row.get("capped")),
                )
            )
        except InputError as error:
            raise InputError(f"{path}: {lines.at(number)}, {error}") from None
    return tuple(readings)


def _positive(row: Mapping[str, Any], name: str) -> float:
    """Raises InputError for what is no finite number above 0."""
    try:
        value = float(row[name])
    except (TypeError, ValueError):
        value = math.nan
    if not (0 < value < math.inf):
        raise InputError(f"column {name!r}: {row[name]!r} is not possible; a finite number above 0 is right")
    return value


def fit_operators(gpu: GpuFacts, readings: Sequence[OperatorReading], *, source: str) -> GpuFacts:
    """The entry with operating points as read: by category the median and the range, by kernel where named.

    Whatever the limit holds back draws the same power: the median of all such readings. A kernel's
    shares of time and power are its category's. Raises InputError without a reading.
    """
    if not readings:
        raise InputError("no operator readings: nothing to fit")
    groups: dict[str, list[OperatorReading]] = defaultdict(list)
    for reading in readings:
        groups[f"category.{reading.category}"].append(reading)
        if reading.kernel:
            groups[f"kernel.{reading.kernel}"].append(reading)
    held = [reading.power_w for reading in readings if reading.capped]
    held_w = float(np.median(held)) if held else math.nan
    facts: dict[str, Fact] = {}
    for path, members in groups.items():
        names = ", ".join(member.name for member in members)
        powers = [held_w if member.capped else member.power_w for member in members]
        for name, values in (("sm_mhz", [member.sm_mhz for member in members]), ("power_w", powers)):
            value = float(np.median(values))
            read = [getattr(member, name) for member in members]
            facts[f"{path}.{name}"] = Fact(
                value=value,
                low=min(value, *read),
                high=max(value, *read),
                source=source,
                kind="measured",
                note=names,
            )
        if path.startswith("kernel."):
            for name in ("compute_share", "fixed_share", "work_share"):
                shared = gpu.get(f"category.{members[0].category}.{name}")
                if shared is not None:
                    facts[f"{path}.{name}"] = shared
    return gpu.with_facts(facts)


def leave_one_out(gpu: GpuFacts, readings: Sequence[OperatorReading]) -> tuple[LeftOut, ...]:
    """How well the others predict each reading: the honest error of an operator that was not read.

    Matrix products by their common energy per FLOP, other operators by the median power of the others.
    Raises InputError with fewer than two readings of either sort.
    """
    shared = gpu_power(gpu)
    products = [reading for reading in readings if reading.flops is not None]
    others = [reading for reading in readings if reading.flops is None]
    n_products, n_others = len(products), len(others)
    if min(n_products, n_others) < 2:
        raise InputError(
            f"leaving one out needs 2 readings with FLOPs and 2 without; got {n_products} and {n_others}"
        )
    result = []
    for reading in readings:
        rest = [other for other in (others if reading.flops is None else products) if other is not reading]
        sustained_w = float(np.median([other.power_w for other in rest]))
        if reading.flops is None:
            predicted_w, clock_pct = sustained_w, None
        else:
            per_flop_j = float(np.median([_energy_per_flop(shared, other) for other in rest]))
            at = np.array([reading.sm_mhz])
            predicted_w = float(_product_w(gpu, shared, reading, per_flop_j, at)[0])
            clock = _sustained_mhz(gpu, shared, reading, per_flop_j, sustained_w)
            clock_pct = 100.0 * (clock / reading.sm_mhz - 1.0)
        result.append(
            LeftOut(
                name=reading.name,
                tensor=reading.flops is not None,
                power_pct=100.0 * (predicted_w / reading.power_w - 1.0),
                clock_pct=clock_pct,
            )
        )
    return tuple(result)


def _energy_per_flop(shared: GpuPower, reading: OperatorReading) -> float:
    """J per FLOP at the flat voltage."""
    assert reading.flops is not None
    idle_w = float(shared.idle_w(reading.sm_mhz, shared.memory_mhz))
    squared = float(shared.voltage(reading.sm_mhz)) ** 2
    return (reading.power_w - idle_w) * reading.time_s / (squared * reading.flops)


def _product_w(
    gpu: GpuFacts, shared: GpuPower, reading: OperatorReading, energy_per_flop: float, sm_mhz: Floats
) -> Floats:
    """Power at SM clocks, the number of cycles being what was read."""
    assert reading.flops is not None
    time_s = reading.time_s * reading.sm_mhz / sm_mhz
    rate = energy_per_flop * reading.flops / time_s
    watts: Floats = shared.idle_w(sm_mhz, gpu.default_memory_mhz) + shared.voltage(sm_mhz) ** 2 * rate
    return watts


def _sustained_mhz(
    gpu: GpuFacts, shared: GpuPower, reading: OperatorReading, energy_per_flop: float, power_w: float
) -> float:
    """The highest clock, not only a listed one, at which a product draws at most ``power_w``."""
    sm_mhz = np.linspace(gpu.sm.values_mhz[0], gpu.auto_ceiling_mhz, 4 * len(gpu.sm.values_mhz))
    allowed = _product_w(gpu, shared, reading, energy_per_flop, sm_mhz) <= power_w
    return float(sm_mhz[allowed].max()) if allowed.any() else float(sm_mhz[0])
