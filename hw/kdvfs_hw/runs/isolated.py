"""Isolated: each kernel repeated at each clocks it is scheduled at, then summed by count (the paper's)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from kdvfs_hw.measure.loop import Reading, measure
from kdvfs_hw.measure.observer import Observation, Observer
from kdvfs_hw.readback import NEAR_MHZ
from kdvfs_hw.runs.plan import Arm, Binding, Plan
from kdvfs_hw.runs.record import Record
from kdvfs_hw.runs.trouble import Troubles
from kdvfs_hw.runs.verdict import ENERGY_TOLERANCE, TIME_TOLERANCE, Quantity, quantity
from kdvfs_hw.workloads.base import Workload
from kdvfs_sim.core.clocks import AUTO, Clocks
from kdvfs_sim.core.device import ClockControl, Device

Readings = dict[tuple[str, Clocks], list[Reading]]
_CAPPED: float = 0.01


def isolated_round(
    plan: Plan,
    binding: Binding,
    workload: Workload,
    observer: Observer,
    control: ClockControl,
    record: Record,
    readings: Readings,
    *,
    seconds: float,
    settle_s: float,
    rng: random.Random,
    troubles: Troubles,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """One reading of every cell, in random order."""
    cells = [(name, cell.clocks) for cell in plan.cells() for name in binding.parts[cell.part]]
    for i, (name, clocks) in enumerate(rng.sample(cells, len(cells))):
        if i % 10 == 0:
            say(f"isolated: {i} of {len(cells)} kernels and clocks")
        reading = read_at(clocks, workload, name, observer, control, seconds=seconds, settle_s=settle_s)
        readings.setdefault((name, clocks), []).append(reading)
        record.add("isolated", **reading.to_json())
        troubles.note(reading.void, reading.seen.energy)


def read_at(
    clocks: Clocks,
    workload: Workload,
    part: str,
    observer: Observer,
    control: ClockControl,
    *,
    seconds: float,
    settle_s: float,
) -> Reading:
    """Ask for clocks and read a part of the workload at them. A reading at other clocks is void."""
    control.request_clocks(clocks)
    reading = measure(workload, part, observer, seconds=seconds, clocks=clocks, settle_s=settle_s)
    return replace(reading, void=why_void(reading.seen, clocks))


def why_void(seen: Observation, clocks: Clocks) -> str:
    """What makes a reading unusable; '' if nothing does.

    A lock is an upper bound: the power limit may hold the clock below it, nothing else may.
    """
    if seen.marks:
        return "; ".join(seen.marks)
    if clocks.sm_mhz is not AUTO and seen.sm_range_mhz is not None:
        low, high = seen.sm_range_mhz
        too_low = low < clocks.sm_mhz - NEAR_MHZ and seen.capped < _CAPPED
        if high > clocks.sm_mhz + NEAR_MHZ or too_low:
            return f"SM clock not kept: asked for {clocks.sm_mhz} MHz, read {low} to {high}"
    wanted, read = clocks.mem_mhz, seen.mem_mhz
    if wanted is not AUTO and read is not None and abs(read - wanted) > NEAR_MHZ:
        return f"memory clock not kept: asked for {wanted} MHz, read {read:.0f}"
    return ""


def highest_sm_mhz(device: Device) -> int | None:
    """The highest SM clock that may be asked for; None if none may."""
    return max((c.sm_mhz for c in device.clock_table() if isinstance(c.sm_mhz, int)), default=None)


def held_below(readings: Iterable[Reading], highest_mhz: int | None) -> str:
    """A word on readings at AUTO that look like those of a locked clock; '' if they do not.

    A clock that stays below the GPU's highest, without a limit or a slowdown at work, may be locked by
    somebody else: the driver does not tell. It may also be all that this chip does: nothing is void by it.
    """
    seen = [each.seen for each in readings if each.clocks.sm_mhz is AUTO and not each.void]
    ranges = [s.sm_range_mhz for s in seen if s.sm_range_mhz is not None and s.capped < _CAPPED]
    if not ranges or highest_mhz is None or max(high for _, high in ranges) >= highest_mhz - NEAR_MHZ:
        return ""
    stayed_mhz = max(high for _, high in ranges)
    return (
        f"left to the driver, the SM clock stayed at {stayed_mhz} MHz, below the highest "
        f"({highest_mhz}), and no reason is given: is it locked by somebody else (nvidia-smi -rgc releases)?"
    )


def isolated_quantities(plan: Plan, binding: Binding, readings: Readings) -> list[Quantity]:
    """Kernels of each arm summed by count, as many sums as there are whole rounds of good readings."""
    found = []
    for arm in plan.arms:
        times, energies, note = _sums(arm, binding, readings)
        part = f"kernels of {arm.name}"
        found += [
            quantity(part, "time", "s", arm.kernel_time_s, times, TIME_TOLERANCE, note),
            quantity(part, "energy", "J", arm.kernel_energy_j, energies, ENERGY_TOLERANCE, note),
        ]
    return found


def _sums(arm: Arm, binding: Binding, readings: Readings) -> tuple[list[float], list[float], str]:
    """Times and energies of the arm's kernels, one for each whole round of good readings.

    A kernel that is several parts of the workload counts as their mean.
    """
    cells = [(cell.n, [(name, cell.clocks) for name in binding.parts[cell.part]]) for cell in arm.cells]
    cells = [(n, keys) for n, keys in cells if keys]  # a memory set goes with the kernel after it
    keys = [key for _, each in cells for key in each]
    good = {key: [r for r in readings.get(key, []) if not r.void] for key in keys}
    n_rounds = min((len(each) for each in good.values()), default=0)
    void = [r.void for key in keys for r in readings.get(key, []) if r.void]
    note = f"{len(void)} void readings, the first: {void[0]}" if void else ""
    times, energies = [], []
    for i in range(n_rounds):
        times.append(sum(n * float(np.mean([good[key][i].time_s for key in each])) for n, each in cells))
        joules = [(n, [good[key][i].energy_j for key in each]) for n, each in cells]
        known = [(n, [e for e in each if e is not None]) for n, each in joules]
        if any(len(a) != len(b) for (_, a), (_, b) in zip(joules, known, strict=True)):
            note = note or "the energy of a kernel is not known"
        else:
            energies.append(sum(n * float(np.mean(each)) for n, each in known))
    return times, energies, note
