"""Isolated: each kernel repeated at each clocks it is scheduled at, then summed by count (the paper's)."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from kdvfs_hw.measure.loop import Reading, measure
from kdvfs_hw.measure.observer import Observation, Observer
from kdvfs_hw.readback import NEAR_MHZ
from kdvfs_hw.runs.plan import Arm, Plan
from kdvfs_hw.runs.record import Record
from kdvfs_hw.runs.verdict import ENERGY_TOLERANCE, TIME_TOLERANCE, Quantity, quantity
from kdvfs_hw.workloads.base import Workload
from kdvfs_sim.core.clocks import AUTO, Clocks
from kdvfs_sim.core.device import ClockControl

Readings = dict[tuple[str, Clocks], list[Reading]]
_CAPPED: float = 0.01


def isolated_round(
    plan: Plan,
    workload: Workload,
    observer: Observer,
    control: ClockControl,
    record: Record,
    readings: Readings,
    *,
    seconds: float,
    settle_s: float,
    rng: random.Random,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """One reading of every cell, in random order. A reading at other clocks than asked for is void."""
    cells = list(plan.cells())
    for i, cell in enumerate(rng.sample(cells, len(cells))):
        if i % 10 == 0:
            say(f"isolated: {i} of {len(cells)} kernels and clocks")
        control.request_clocks(cell.clocks)
        reading = measure(
            workload, cell.part, observer, seconds=seconds, clocks=cell.clocks, settle_s=settle_s
        )
        reading = replace(reading, void=why_void(reading.seen, cell.clocks))
        readings.setdefault((cell.part, cell.clocks), []).append(reading)
        record.add("isolated", **reading.to_json())


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


def isolated_quantities(plan: Plan, readings: Readings) -> list[Quantity]:
    """Kernels of each arm summed by count, as many sums as there are whole rounds of good readings."""
    found = []
    for arm in plan.arms:
        times, energies, note = _sums(arm, readings)
        part = f"kernels of {arm.name}"
        found += [
            quantity(part, "time", "s", arm.kernel_time_s, times, TIME_TOLERANCE, note),
            quantity(part, "energy", "J", arm.kernel_energy_j, energies, ENERGY_TOLERANCE, note),
        ]
    return found


def _sums(arm: Arm, readings: Readings) -> tuple[list[float], list[float], str]:
    good: Mapping[tuple[str, Clocks], Sequence[Reading]] = {
        (cell.part, cell.clocks): [r for r in readings.get((cell.part, cell.clocks), []) if not r.void]
        for cell in arm.cells
    }
    n_rounds = min((len(each) for each in good.values()), default=0)
    void = [r.void for cell in arm.cells for r in readings.get((cell.part, cell.clocks), []) if r.void]
    note = f"{len(void)} void readings, the first: {void[0]}" if void else ""
    times, energies = [], []
    for i in range(n_rounds):
        chosen = [(cell.n, good[cell.part, cell.clocks][i]) for cell in arm.cells]
        times.append(sum(n * reading.time_s for n, reading in chosen))
        joules = [None if r.energy_j is None else n * r.energy_j for n, r in chosen]
        if None in joules:
            note = note or "the energy of a kernel is not known"
        else:
            energies.append(sum(joule for joule in joules if joule is not None))
    return times, energies, note
