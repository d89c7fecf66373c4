"""What is wrong with a sweep before anything is fitted to it.

Each finding has a code. None of them stops a fit: they say which readings to distrust. They lean on this: at
a lower clock a kernel is no faster, and slower by no more than the clock is lower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import combinations
from typing import Final

import numpy as np
import polars as pl

from kdvfs_sim.gpu.fit.finding import Finding
from kdvfs_sim.gpu.fit.readings import Bools, Floats, Readings, merge_repeats, modes
from kdvfs_sim.gpu.fit.sweep import Sweep

# Time x clock off by more than this, or an actual clock this far below the requested one, is no noise.
NOT_REACHED: Final = 0.03
# Local -dlog t / dlog f of a compute-bound kernel is 1; below this the clock is not what it waits for.
_COMPUTE_BOUND: Final = 0.9
# Powers this alike at three clocks or more, over this span of clock, do not follow the clock any more.
_PLATEAU: Final = 0.015
_PLATEAU_SPAN: Final = 0.03
# Clocks this far apart have powers that differ by more than this, where power rises with the clock at all.
_APART: Final = 0.1
_SAME_POWER: Final = 0.002
_POWER_RISES: Final = 0.3
_COLD: Final = 0.1
_SEAM: Final = 0.01
_SEAM_CLOCKS: Final = 12
_SEAM_OVER_USUAL: Final = 8.0
_POWER_RANGE_W: Final = (2.0, 3000.0)
# Nothing in the physics makes a kernel that much slower from one clock to the next.
_LEAP: Final = 30.0


def diagnose(sweep: Sweep) -> tuple[Finding, ...]:
    """All findings, by code. A sweep with several power limits at one clock pair is judged limit by limit."""
    findings = [*sweep.findings, *_units(sweep)]
    limits = _limits(sweep)
    if limits:
        names = ", ".join(f"{limit:g}" for limit in limits)
        text = f"one clock pair was measured under several power limits ({names} W); choose one to fit"
        findings.append(Finding(code="several-limits", text=text, kernels=sweep.kernels))
    for part in [sweep.where_rows(pl.col("power_limit_w") == limit) for limit in limits] or [sweep]:
        findings += [*_cold_start(part), *_bimodal(part)]
        if part.has_numeric:
            readings = merge_repeats(part)
            for check in _CHECKS:
                findings += check(readings)
    return tuple(sorted(dict.fromkeys(findings), key=lambda finding: finding.code))


def _limits(sweep: Sweep) -> list[float]:
    """The power limits, if any clock pair of a kernel was measured under several of them."""
    by_cell = sweep.rows.group_by("kernel", "sm_mhz", "mem_mhz").agg(pl.col("power_limit_w").n_unique())
    several = by_cell.filter(pl.col("power_limit_w") > 1).height > 0
    return sorted(sweep.rows["power_limit_w"].drop_nulls().unique()) if several else []


def _units(sweep: Sweep) -> Iterator[Finding]:
    if not 0.5 < sweep.energy_factor < 2.0:
        text = f"energy_j is {sweep.energy_factor:.4g} times power_w x time_s: mJ, W h, or ms somewhere"
        yield Finding(code="unit-mix-up", text=text, kernels=sweep.kernels)
    power = sweep.rows["power_w"].drop_nulls()
    low, high = _POWER_RANGE_W
    if len(power) and not low <= (middle := float(np.median(power.to_numpy()))) <= high:
        text = f"the median power is {middle:.4g} W; no GPU draws that: mW, mJ, W h, or ms somewhere"
        yield Finding(code="unit-mix-up", text=text, kernels=sweep.kernels)
    for name in ("time_s", "power_w"):
        spread = sweep.rows.group_by("kernel", maintain_order=True).agg(
            pl.col(name).min().alias("low"), pl.col(name).max().alias("high")
        )
        mixed = spread.filter(pl.col("high") > pl.col("low") * _LEAP)
        if mixed.height:
            kernel, least, most = mixed.row(0)
            text = f"{name} of {kernel} runs from {least:.4g} to {most:.4g}: two units in one column"
            yield Finding(code="unit-mix-up", text=text, kernels=tuple(mixed["kernel"]))


def _cold_start(sweep: Sweep) -> Iterator[Finding]:
    """The first reading of a kernel against others at the same clocks, and at lower ones, taken later."""
    cold = []
    worst = 0.0
    for (kernel,), rows in sweep.rows.filter(pl.col("time_s").is_not_null()).group_by(
        "kernel", maintain_order=True
    ):
        first, later = rows.row(0, named=True), rows[1:]
        no_faster = later.filter(
            pl.col("sm_mhz").le(first["sm_mhz"]) & pl.col("mem_mhz").le(first["mem_mhz"])
            if None not in (first["sm_mhz"], first["mem_mhz"])
            else pl.col("sm_mhz").is_null() & pl.col("mem_mhz").is_null()
        )
        if no_faster.height < 2:
            continue
        excess = first["time_s"] / float(np.quantile(no_faster["time_s"].to_numpy(), 0.25)) - 1.0
        if excess > _COLD:
            cold.append(str(kernel))
            worst = max(worst, excess)
    if cold:
        text = (
            f"the first reading is up to {100 * worst:.0f} % slower than later ones at the same or lower "
            "clocks: warm up first, and read the baseline again at the end"
        )
        yield Finding(code="cold-start", text=text, kernels=tuple(cold))


def _bimodal(sweep: Sweep) -> Iterator[Finding]:
    """Repeats in two groups in at least a tenth of a kernel's clock pairs."""
    known = sweep.rows.filter(pl.col("time_s").is_not_null())
    found, worst = [], 0.0
    for (kernel,), rows in known.group_by("kernel", maintain_order=True):
        groups = [part["time_s"].to_numpy() for _, part in rows.group_by("sm_mhz", "mem_mhz")]
        groups = [times for times in groups if times.size > 2]
        split = [times for times in groups if not modes(times).all()]
        if groups and len(split) >= max(2.0, 0.1 * len(groups)):
            found.append(str(kernel))
            worst = max(worst, *(float(times.max() / times.min()) - 1.0 for times in split))
    if found:
        text = f"repeats fall into two groups, up to {100 * worst:.0f} % apart: merge them by lower_mode"
        yield Finding(code="bimodal", text=text, kernels=tuple(found))


def _not_reached(readings: Readings) -> Iterator[Finding]:
    short = readings.sm_mhz_actual < (1.0 - NOT_REACHED) * readings.sm_mhz
    if short.any():
        rows = np.flatnonzero(short.any(axis=1))
        row, column = np.argwhere(short)[-1]
        text = (
            f"{int(short.sum())} readings ran below the clock requested, such as "
            f"{readings.sm_mhz_actual[row, column]:.0f} MHz at {readings.sm_mhz[column]:.0f}"
        )
        yield Finding(code="clock-not-reached", text=text, kernels=_named(readings, rows))
    else:
        yield from _time_times_clock(readings)
        yield from _same_power(readings)


def _time_times_clock(readings: Readings) -> Iterator[Finding]:
    """At the bottom nothing may be slower than the clock says; at the top compute-bound kernels keep pace."""
    low: dict[int, float] = {}
    high: dict[int, float] = {}
    excess_low = excess_high = 0.0
    n_bound = 0
    for row, sm, time in _lines(readings, readings.time_s):
        product = time * sm
        above = np.minimum.accumulate(product[::-1])[::-1]  # least over this clock and all higher
        n_bad = int(np.argmax(np.append(product <= (1.0 + NOT_REACHED) * above, True)))
        if n_bad:
            low[row] = max(low.get(row, 0.0), float(sm[n_bad - 1]))
            excess_low = max(excess_low, float((product / above)[:n_bad].max()) - 1.0)
        third = max(sm.size // 3, 1)
        elasticity = -np.log(time[2 * third - 1] / time[0]) / np.log(sm[2 * third - 1] / sm[0])
        if sm.size >= 6 and _COMPUTE_BOUND <= elasticity <= 1.0 + NOT_REACHED:
            n_bound += 1
            middle = float(np.median(product[third : 2 * third]))
            over = np.flatnonzero(product > (1.0 + NOT_REACHED) * middle)
            if product[-1] > (1.0 + NOT_REACHED) * middle and over.size > 1:
                high[row] = min(high.get(row, np.inf), float(sm[over[0]]))
                excess_high = max(excess_high, float(product[-1]) / middle - 1.0)
    if low:
        text = (
            f"time x clock rises by up to {100 * excess_low:.0f} % towards the bottom: requests up to "
            f"{max(low.values()):.0f} MHz gave less than that"
        )
        yield Finding(code="clock-not-reached", text=text, kernels=_named(readings, low))
    if high and 2 * len(high) > n_bound:
        text = (
            f"time x clock of compute-bound kernels rises by up to {100 * excess_high:.0f} % from "
            f"{min(high.values()):.0f} MHz up: a power cap holds them, or memory binds"
        )
        yield Finding(code="clock-not-reached", text=text, kernels=_named(readings, high))


def _same_power(readings: Readings) -> Iterator[Finding]:
    """Requests in the lower half of the clocks at which all kernels draw what they draw at the next one."""
    pairs = []
    for mem_mhz in readings.memory_states:
        columns = np.flatnonzero(readings.mem_mhz == mem_mhz)
        columns = columns[~np.isnan(readings.power_w[:, columns]).any(axis=0)]
        if columns.size < 6:
            continue
        sm, log = readings.sm_mhz[columns], np.log(readings.power_w[:, columns])
        step = np.median(np.abs(np.diff(log, axis=1)), axis=0)
        rises = float(np.median(log[:, -1] - log[:, 0])) > _POWER_RISES * np.log(sm[-1] / sm[0])
        apart = np.diff(np.log(sm)) > _APART
        same = np.flatnonzero((step < _SAME_POWER) & apart & (np.arange(sm.size - 1) < sm.size // 2))
        pairs += [f"{sm[i]:.0f} and {sm[i + 1]:.0f} MHz" for i in same if rises]
    if pairs:
        text = f"power is the same at {'; '.join(dict.fromkeys(pairs))}: one of the two was not reached"
        yield Finding(code="clock-not-reached", text=text, kernels=readings.kernels)


def _plateau(readings: Readings) -> Iterator[Finding]:
    """Power that no longer follows the clock at the top, and the same power in all kernels that do so."""
    flat: dict[int, tuple[float, float]] = {}
    for row, sm, power in _lines(readings, readings.power_w):
        top = np.median(power[-3:])
        n = int(np.argmin(np.append((np.abs(power / top - 1.0) <= _PLATEAU)[::-1], False)))
        if 3 <= n < sm.size - 2 and sm[-1] / sm[-n] - 1.0 >= _PLATEAU_SPAN and power[-n - 2] < power[-n]:
            flat[row] = (float(top), float(sm[-n]))
    watts = np.array([w for w, _ in flat.values()])
    if watts.size:
        limit = float(np.median(watts))
        same = {row: mhz for row, (w, mhz) in flat.items() if abs(w / limit - 1.0) <= 2 * _PLATEAU}
        if len(same) >= 2 or readings.n_kernels == 1:
            text = f"power stays at {limit:.0f} W from {min(same.values()):.0f} MHz up: a power cap"
            yield Finding(code="cap-plateau", text=text, kernels=_named(readings, same))


def _duplicates(readings: Readings) -> Iterator[Finding]:
    """Kernels whose times, or powers, agree to the last digit at every clock they share, in groups."""
    groups: dict[tuple[int, ...], list[str]] = {}
    for name, values in (("time", readings.time_s), ("power", readings.power_w)):
        first_of: dict[int, int] = {}
        for a, b in combinations(range(readings.n_kernels), 2):
            shared = ~np.isnan(values[a]) & ~np.isnan(values[b])
            if b not in first_of and shared.sum() >= 3 and (values[a, shared] == values[b, shared]).all():
                first_of[b] = first_of.get(a, a)
        for first in dict.fromkeys(first_of.values()):
            members = (first, *(row for row, of in first_of.items() if of == first))
            groups.setdefault(members, []).append(name)
    for members, names in groups.items():
        text = (
            f"{len(members)} kernels, such as {readings.kernels[members[0]]}, have the same "
            f"{' and '.join(names)} at every clock: copies, or a merge gone wrong"
        )
        yield Finding(code="duplicate-series", text=text, kernels=_named(readings, members))


def _seams(readings: Readings) -> Iterator[Finding]:
    """Steps of time that several kernels make between two clocks and the steps beside do not announce."""
    found: list[tuple[float, str]] = []
    concerned: Bools = np.zeros(readings.n_kernels, dtype=np.bool_)
    for mem_mhz in readings.memory_states:
        columns = np.flatnonzero(readings.mem_mhz == mem_mhz)
        columns = columns[~np.isnan(readings.time_s[:, columns]).any(axis=0)]
        if columns.size < _SEAM_CLOCKS:
            continue
        sm = readings.sm_mhz[columns]
        run = np.diff(np.log(sm))
        slope = np.diff(np.log(readings.time_s[:, columns]), axis=1) / run
        step = (slope[:, 1:-1] - 0.5 * (slope[:, :-2] + slope[:, 2:])) * run[1:-1]
        # between clocks unlike far apart a curve bends by itself
        alike = np.maximum(run[:-2], run[2:]) / np.minimum(run[:-2], run[2:])
        step[:, np.maximum(alike, run[1:-1] / np.minimum(run[:-2], run[2:])) > 2.0] = 0.0
        usual = np.median(np.abs(step), axis=1, keepdims=True)
        large = np.abs(step) > np.maximum(_SEAM, _SEAM_OVER_USUAL * usual)
        # a step makes its neighbours look like half a step the other way
        beside = np.pad(np.abs(step), ((0, 0), (1, 1)))
        large &= np.abs(step) >= np.maximum(beside[:, :-2], beside[:, 2:])
        for i in np.flatnonzero(4 * large.sum(axis=0) >= readings.n_kernels):
            size = float(np.median(step[large[:, i], i]))
            pair = f"{sm[i + 1]:.0f} and {sm[i + 2]:.0f} MHz"
            found.append((size, f"{100 * float(np.expm1(size)):+.1f} % between {pair}"))
            concerned |= large[:, i]
    if found:
        largest = "; ".join(text for _, text in sorted(found, key=lambda item: -abs(item[0]))[:3])
        text = f"time steps by {largest}: parts of the sweep were measured under other conditions"
        yield Finding(code="seam", text=text, kernels=_named(readings, np.flatnonzero(concerned)))


_CHECKS: Final[tuple[Callable[[Readings], Iterator[Finding]], ...]] = (
    _not_reached,
    _plateau,
    _duplicates,
    _seams,
)


def _lines(readings: Readings, values: Floats) -> Iterator[tuple[int, Floats, Floats]]:
    """Kernel, ascending SM clocks and values, for every kernel and memory clock with three or more."""
    for row in range(readings.n_kernels):
        for mem_mhz in readings.memory_states:
            known: Bools = (readings.mem_mhz == mem_mhz) & ~np.isnan(values[row])
            if known.sum() >= 3:
                yield row, readings.sm_mhz[known], values[row, known]


def _named(readings: Readings, rows: Iterable[int]) -> tuple[str, ...]:
    return tuple(readings.kernels[row] for row in sorted(rows))
