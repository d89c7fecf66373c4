"""Measured points themselves, interpolated in logs: what the fitted forms are compared with.

Between two clocks of one memory clock log time is linear in log SM clock, then the same between memory
clocks. Outside what a kernel was measured at the answer is NaN: a table knows no more.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kdvfs_sim.gpu.fit.readings import Floats, Readings


def interpolated(readings: Readings, values: Floats, sm_mhz: npt.ArrayLike, mem_mhz: npt.ArrayLike) -> Floats:
    """(n_kernels, n): ``values`` (n_kernels, n_clocks), say times, at n clock pairs."""
    sm, mem = (np.asarray(mhz, dtype=np.float64) for mhz in (sm_mhz, mem_mhz))
    states = readings.memory_states
    result = np.full((readings.n_kernels, sm.size), np.nan)
    for k in range(readings.n_kernels):
        lines = np.stack([_along_sm(readings, values[k], state, sm) for state in states])
        for i in range(sm.size):
            known = ~np.isnan(lines[:, i])
            result[k, i] = _linear(np.log(mem[i]), np.log(states[known]), lines[known, i])
    values_there: Floats = np.exp(result)
    return values_there


def _along_sm(readings: Readings, values: Floats, mem_mhz: float, sm: Floats) -> Floats:
    """(n,): log values at one memory clock; NaN outside."""
    known = (readings.mem_mhz == mem_mhz) & ~np.isnan(values)
    at, log = np.log(readings.sm_mhz[known]), np.log(values[known])
    return np.array([_linear(x, at, log) for x in np.log(sm)])


def _linear(x: float, at: Floats, values: Floats) -> float:
    """Linear interpolation between ascending ``at``; NaN outside, and where nothing is known."""
    slack = 1e-12
    if not at.size or x < at[0] - slack or x > at[-1] + slack:
        return np.nan
    return float(np.interp(x, at, values))
