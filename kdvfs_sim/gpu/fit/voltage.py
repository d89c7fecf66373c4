"""The voltage curve of a GPU, as far as powers determine it: flat up to a knee, then linear.

Nobody reads the voltage: it is inferred from how power rises with the clock. So the curve comes with the
range that resampling the kernels gives, and with the reason where a sweep cannot say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from kdvfs_sim.gpu.fit.readings import Floats

KNEE_GRID: Final = np.linspace(0.40, 0.98, 30)  # of the highest clock
RISE_GRID: Final = np.concatenate([np.linspace(0.0, 0.5, 26), np.linspace(0.55, 1.2, 14)])
RESAMPLES: Final = 200
# A curve that takes away less than this of a flat voltage's cost is noise.
MIN_GAIN: Final = 0.15
# A knee known no better than this part of the clocks swept is not known.
MAX_KNEE_SPREAD: Final = 0.35


@dataclass(frozen=True, kw_only=True)
class Voltage:
    """Relative to its flat part: 1 up to ``knee_mhz``, ``1 + rise`` at ``top_mhz``, linear in between and
    beyond.

    ``knee_range_mhz`` and ``rise_range``: 90 % of what resampled kernels give. Not ``identifiable``: the
    numbers describe the powers swept and are no facts about the GPU; ``reason`` says why.
    """

    knee_mhz: float
    rise: float
    top_mhz: float
    knee_range_mhz: tuple[float, float]
    rise_range: tuple[float, float]
    identifiable: bool
    reason: str = ""

    def at(self, sm_mhz: npt.ArrayLike) -> Floats:
        return relative_voltage(sm_mhz, self.knee_mhz, self.rise, self.top_mhz)


def relative_voltage(sm_mhz: npt.ArrayLike, knee_mhz: float, rise: float, top_mhz: float) -> Floats:
    """V(f) over the voltage up to the knee: 1 there, ``1 + rise`` at ``top_mhz``, a line between."""
    sm = np.asarray(sm_mhz, dtype=np.float64)
    voltage: Floats = 1.0 + rise * np.maximum(sm - knee_mhz, 0.0) / (top_mhz - knee_mhz)
    return voltage


def judge_voltage(
    cost: Floats,
    flat_cost: Floats,
    *,
    lowest_mhz: float,
    top_mhz: float,
    knee: float,
    rise: float,
) -> Voltage:
    """Ranges and verdict for a curve found at ``knee`` (of the highest clock) and ``rise``.

    ``cost`` (n_kernels, n_knees, n_rises): what each kernel's best fit costs at each curve of the grids;
    ``flat_cost`` (n_kernels,): with a flat voltage.
    """
    n_kernels = cost.shape[0]
    draws = np.random.default_rng(0).integers(n_kernels, size=(RESAMPLES, n_kernels))
    weights = np.stack([np.bincount(draw, minlength=n_kernels) for draw in draws]).astype(np.float64)
    best = (weights @ cost.reshape(n_kernels, -1)).argmin(axis=1)
    knees, rises = KNEE_GRID[best // RISE_GRID.size], RISE_GRID[best % RISE_GRID.size]
    knee_low, knee_high = (float(x) * top_mhz for x in np.quantile(knees, [0.05, 0.95]))
    rise_low, rise_high = (float(x) for x in np.quantile(rises, [0.05, 0.95]))
    knee_low, knee_high = min(knee_low, knee * top_mhz), max(knee_high, knee * top_mhz)
    gain = 1.0 - float(cost.sum(axis=0).min() / max(flat_cost.sum(), 1e-300))
    span = top_mhz - lowest_mhz
    reason = ""
    if gain < MIN_GAIN:
        reason = f"a flat voltage explains the powers almost as well ({100 * gain:.0f} % of its cost saved)"
    elif knee_low <= lowest_mhz + 0.02 * span:
        reason = f"the knee may lie below the lowest clock swept, {lowest_mhz:.0f} MHz"
    elif (knee_high - knee_low) > MAX_KNEE_SPREAD * span:
        reason = f"the kernels put the knee anywhere from {knee_low:.0f} to {knee_high:.0f} MHz"
    elif rise_high >= RISE_GRID[-1] - 1e-9:
        reason = "the rise is traded against power that the voltage does not scale"
    return Voltage(
        knee_mhz=knee * top_mhz,
        rise=rise,
        top_mhz=top_mhz,
        knee_range_mhz=(knee_low, knee_high),
        rise_range=(min(rise_low, rise), max(rise_high, rise)),
        identifiable=not reason,
        reason=reason,
    )
