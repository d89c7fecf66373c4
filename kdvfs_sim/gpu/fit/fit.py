"""A sweep, fitted in one call: what is wrong with it, its forms of time and power, the shared curves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.core.errors import InputError
from kdvfs_sim.gpu.facts import GpuFacts
from kdvfs_sim.gpu.fit.crossval import calibrated
from kdvfs_sim.gpu.fit.diagnoses import diagnose
from kdvfs_sim.gpu.fit.few import SharedModel, fit_shared, with_clocks
from kdvfs_sim.gpu.fit.finding import Finding
from kdvfs_sim.gpu.fit.latency_fit import LatencyFit, fit_latency
from kdvfs_sim.gpu.fit.power_fit import PowerFit, fit_power
from kdvfs_sim.gpu.fit.readings import Readings, merge_repeats
from kdvfs_sim.gpu.fit.sweep import Sweep

# Clocks to plan for: between half and all of the top clock; below, static power wins on every GPU swept.
PLAN_FROM: Final = 0.5
PLAN_CLOCKS: Final = 24


@dataclass(frozen=True, kw_only=True, eq=False)
class SweepFit:
    """``latency`` is None unless every kernel has a time; ``power`` is of those kernels that have one."""

    sweep: Sweep
    findings: tuple[Finding, ...]
    readings: Readings
    latency: LatencyFit | None
    power: PowerFit | None

    def has(self, code: str) -> bool:
        return any(finding.code == code for finding in self.findings)

    @cached_property
    def shared(self) -> SharedModel:
        """Curves of all kernels at the clocks of the sweep."""
        return fit_shared(self.readings)

    @cached_property
    def calibrated(self) -> SharedModel:
        """The same with intervals as wide as its errors on readings left out ask for."""
        return calibrated(self.shared)

    def planned(self, clocks: Iterable[Clocks]) -> SharedModel:
        """The curves at more clocks; the baseline stays the highest clocks of the sweep."""
        readings = with_clocks(self.readings, clocks)
        if readings is self.readings:
            return self.shared
        baseline = readings.clocks.index(self.readings.clocks[self.readings.baseline])
        return fit_shared(readings, baseline=baseline)


def fit_sweep(sweep: Sweep) -> SweepFit:
    """Diagnose, merge repeats, fit. Repeats in two groups are merged by their lower one, others by the
    median. Without times the power form loses the terms that need them.

    Raises InputError as ``merge_repeats``, ``fit_latency`` and ``fit_power`` do, and where no reading is at
    numeric clocks.
    """
    findings = diagnose(sweep)
    bimodal = any(finding.code == "bimodal" for finding in findings)
    readings = merge_repeats(sweep, "lower_mode" if bimodal else "median")
    timed, powered = ~np.isnan(readings.time_s), ~np.isnan(readings.power_w)
    with_power = [int(row) for row in np.flatnonzero(powered.any(axis=1))]
    form = "a+bV2f+eV2/t" if timed[powered].all() else "a+bV2f"
    return SweepFit(
        sweep=sweep,
        findings=findings,
        readings=readings,
        latency=fit_latency(readings, "p4+c") if timed.any(axis=1).all() else None,
        power=fit_power(readings.only(with_power), form) if with_power else None,
    )


def check_gpu(gpu: GpuFacts, readings: Readings) -> None:
    """Raises InputError where a sweep was measured at clocks that this GPU does not have.

    SM clocks between those listed are taken: a driver takes them, for the nearest.
    """
    where = f"{readings.source or 'sweep'}: measured at"
    another = "another GPU, or another name of the clock"
    listed = {float(memory.mhz): gpu.sm_clocks(memory) for memory in gpu.memory}
    for mem_mhz in readings.memory_states:
        if mem_mhz not in listed:
            names = ", ".join(f"{mhz:.0f}" for mhz in sorted(listed))
            raise InputError(f"{where} memory clock {mem_mhz:.0f} MHz; {gpu.name} lists {names}: {another}")
        low, high = min(listed[mem_mhz]), max(listed[mem_mhz])
        for sm_mhz in readings.sm_mhz[readings.mem_mhz == mem_mhz]:
            if not low <= sm_mhz <= high:
                raise InputError(
                    f"{where} SM clock {sm_mhz:.0f} MHz; {gpu.name} lists {low} to {high}: {another}"
                )


def planning_clocks(gpu: GpuFacts, measured: Iterable[Clocks] = ()) -> tuple[Clocks, ...]:
    """Clocks of a GPU worth a plan: PLAN_CLOCKS SM clocks from PLAN_FROM of the top, at each memory clock
    that can be locked, those measured already among them.
    """
    chosen = dict.fromkeys(measured)
    for memory in gpu.requestable_memory():
        sm = [mhz for mhz in gpu.sm_clocks(memory) if PLAN_FROM * gpu.ceiling_mhz <= mhz <= gpu.ceiling_mhz]
        every = -(-len(sm) // PLAN_CLOCKS)
        chosen.update((Clocks(mhz, memory.mhz), None) for mhz in sm[::-1][::every])
    return tuple(chosen)
