"""A power cap that holds on the average: one SM clock for a whole sequence of short kernels.

A governor is slower than kernels of a fraction of a millisecond. In a training step of 10 ms on an H200 all
matrix products run at 1550 to 1590 MHz, whatever clock each of them sustains when it is looped, and kernels
that alone would run at 1980 MHz run no faster: the step has one clock, at which its mean power meets the cap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from kdvfs_sim.core.errors import InputError
from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.gpu.facts import GpuFacts
from kdvfs_sim.gpu.latency import Floats
from kdvfs_sim.gpu.model import analytic_model, default_limit_w, memory_clock
from kdvfs_sim.gpu.operators import LeftOut
from kdvfs_sim.gpu.points import uses_tensor_units

# two-sided 90 % of a normal distribution
_NINETY_PERCENT: Final = 1.645


@dataclass(frozen=True, slots=True, kw_only=True)
class AveragedStep:
    """``power_range_w``: 90 %, from readings left out one by one; errors within a sort are common."""

    sm_mhz: int
    time_s: float
    power_w: float
    power_range_w: tuple[float, float]

    @property
    def energy_j(self) -> float:
        return self.time_s * self.power_w


def averaged_step(
    gpu: GpuFacts,
    kinds: Sequence[KernelKind],
    *,
    duration_ns: npt.ArrayLike,
    looped: npt.ArrayLike,
    gap_ns: float,
    errors: Sequence[LeftOut],
    limit_w: float | None = None,
) -> AveragedStep:
    """A step of launches (n,) one after another, some of whose durations were read on their own.

    ``looped`` (n,): durations at the clock that the kernel sustains alone, to be brought to the
    step's clock; the others were taken within such a step and stay. ``gap_ns``: idle time in all.
    ``errors``: what the readings' own cross-validation says. ``limit_w``: another limit than the
    default, under which the durations were read. Raises InputError if the entry has no power limit,
    or says nothing of the power of a kind.
    """
    cap_w = default_limit_w(gpu) if limit_w is None else limit_w
    if cap_w is None:
        raise InputError(f"gpu {gpu.slug}: power.limit_w is unknown; an average needs one to meet")
    durations = np.asarray(duration_ns, dtype=np.float64)
    alone = np.asarray(looped, dtype=np.bool_)
    model = analytic_model(gpu, kinds, durations)
    memory = memory_clock(gpu, gpu.default_memory_mhz)
    sm_mhz = np.array(gpu.sm_clocks(memory))
    scaled, power = model.at(memory)
    if np.isnan(power).any():
        unknown = kinds[int(np.isnan(power).any(axis=1).argmax())].name
        raise InputError(f"gpu {gpu.slug}: no power is known for {unknown[:60]!r}")
    times: Floats = np.where(alone[:, None], scaled, durations[:, None])
    total = times.sum(axis=0) + gap_ns
    mean_w = ((times * power).sum(axis=0) + gap_ns * model.power.gpu.idle_w(sm_mhz, memory.mhz)) / total
    allowed = np.flatnonzero(mean_w <= cap_w)
    chosen = int(allowed[-1]) if allowed.size else 0
    share = (times * power)[:, chosen] / (times * power)[:, chosen].sum()
    tensor = uses_tensor_units(kinds)
    parts = [
        float(share[tensor == sort].sum()) * _deviation([e.power_pct for e in errors if e.tensor == sort])
        for sort in (True, False)
    ]
    watts = float(mean_w[chosen])
    spread_w = _NINETY_PERCENT * math.hypot(*parts) * watts
    return AveragedStep(
        sm_mhz=int(sm_mhz[chosen]),
        time_s=float(total[chosen]) * 1e-9,
        power_w=watts,
        power_range_w=(watts - spread_w, watts + spread_w),
    )


def _deviation(errors_pct: Sequence[float]) -> float:
    return float(np.sqrt(np.mean((np.array(errors_pct) / 100.0) ** 2)))
