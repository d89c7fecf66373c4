"""Sweep: a list of kernels and clocks, read one by one; what ``kdvfs fit`` learns from."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from kdvfs_hw.measure.loop import Reading
from kdvfs_hw.measure.observer import Observer
from kdvfs_hw.runs.isolated import Readings, read_at
from kdvfs_hw.runs.record import COSTS, Record, part_json
from kdvfs_hw.runs.trouble import HopelessError, Troubles
from kdvfs_hw.runs.validate import COST_COLUMNS, cost_rows
from kdvfs_hw.workloads.base import Workload
from kdvfs_sim.core.clocks import AUTO_CLOCKS, Clocks
from kdvfs_sim.core.csv_table import read_csv_table
from kdvfs_sim.core.device import ClockControl, Device
from kdvfs_sim.core.errors import InputError

_COLUMNS = ("kernel", "sm_mhz", "mem_mhz")


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The clocks with least energy of one kernel, chosen on the odd repeats, and what the even ones say."""

    part: str
    clocks: Clocks
    time_pct: float
    energy_pct: float


def read_points(path: Path) -> tuple[tuple[str, Clocks], ...]:
    """A CSV with columns kernel, sm_mhz, mem_mhz (a clock may be ``auto``), which ``fit --suggest`` names.

    Raises InputError naming row and column.
    """
    table, lines = read_csv_table(path)
    missing = [name for name in _COLUMNS if name not in table.columns]
    if missing:
        raise InputError(f"{path}: has no column {missing[0]!r}; {', '.join(_COLUMNS)} are needed")
    if table.is_empty():
        raise InputError(f"{path}: names no point")
    points = []
    for number, row in enumerate(table.select(pl.col(_COLUMNS).cast(pl.String)).iter_rows(named=True)):
        where = f"{path}: {lines.at(number)}"
        if not row["kernel"]:
            raise InputError(f"{where}: names no kernel; * is every one")
        try:
            clocks = Clocks.parse(f"sm={row['sm_mhz'] or 'auto'},mem={row['mem_mhz'] or 'auto'}")
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        points.append((row["kernel"], clocks))
    return tuple(dict.fromkeys(points))


def check_points(
    points: Sequence[tuple[str, Clocks]], workload: Workload, device: Device
) -> tuple[tuple[str, Clocks], ...]:
    """The points, ``*`` meaning every kernel, each kernel at AUTO besides. Raises InputError for a kernel
    that the workload has not, UnsupportedClocksError for clocks that the GPU has not."""
    table, names = device.clock_table(), [part.name for part in workload.parts]
    by_kernel: dict[str, list[str]] = {}
    for part in workload.parts:
        by_kernel.setdefault(part.kind.name, []).append(part.name)
    found: dict[tuple[str, Clocks], None] = {}
    for kernel, clocks in points:
        table.index(clocks)
        meant = names if kernel == "*" else [kernel] if kernel in names else by_kernel.get(kernel, [])
        if not meant:
            raise InputError(
                f"workload {workload.name}: has no kernel {kernel!r}; it has {', '.join(names[:5])}"
            )
        for name in meant:
            found[name, AUTO_CLOCKS] = None
            found[name, clocks] = None
    return tuple(found)


def sweep(
    points: Sequence[tuple[str, Clocks]],
    workload: Workload,
    observer: Observer,
    control: ClockControl,
    record: Record,
    *,
    repeats: int,
    seconds: float,
    settle_s: float = 0.25,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> Readings:
    """Read every point ``repeats`` times, in another random order each time.

    Raises DeviceError, with the reasons, if every reading is void, or as soon as reading after reading has
    the same trouble; what was read until then is written.
    """
    rng = random.Random(seed)
    readings: Readings = {}
    for part in workload.parts:
        record.add("part", **part_json(part))
    troubles = Troubles(say)
    try:
        for i_repeat in range(repeats):
            for i, (name, clocks) in enumerate(rng.sample(points, len(points))):
                if i % 10 == 0:
                    say(f"repeat {i_repeat + 1} of {repeats}: {i} of {len(points)} points")
                reading = read_at(
                    clocks, workload, name, observer, control, seconds=seconds, settle_s=settle_s
                )
                readings.setdefault((name, clocks), []).append(reading)
                record.add("sweep", **reading.to_json())
                troubles.note(reading.void, reading.seen.energy)
    except HopelessError as error:
        troubles.stopped = str(error)
        raise
    finally:
        record.add("troubles", **troubles.to_json())
        record.table(COSTS, COST_COLUMNS, cost_rows(readings))
    troubles.refuse_all_void(observer.device.uuid)
    return readings


def best_clocks(readings: Readings) -> Iterator[Best]:
    """For each kernel: chosen on one half of the repeats, reported on the other, against AUTO."""
    for part in dict.fromkeys(part for part, _ in readings):
        halves: dict[Clocks, tuple[list[Reading], list[Reading]]] = {}
        for (name, clocks), each in readings.items():
            good = [reading for reading in each if not reading.void and reading.energy_j is not None]
            if name == part and len(good) > 1:
                halves[clocks] = (good[::2], good[1::2])
        if AUTO_CLOCKS not in halves:
            continue
        best = min(halves, key=lambda clocks: _energy(halves[clocks][0]))
        report, base = halves[best][1], halves[AUTO_CLOCKS][1]
        yield Best(
            part=part,
            clocks=best,
            time_pct=100 * (_time(report) / _time(base) - 1),
            energy_pct=100 * (_energy(report) / _energy(base) - 1),
        )


def _energy(readings: Sequence[Reading]) -> float:
    return float(np.mean([reading.energy_j for reading in readings if reading.energy_j is not None]))


def _time(readings: Sequence[Reading]) -> float:
    return float(np.mean([reading.time_s for reading in readings]))
