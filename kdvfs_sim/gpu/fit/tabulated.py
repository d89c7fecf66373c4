"""Measured points themselves, interpolated in logs: the first choice where a sweep exists.

Between two clocks of one memory clock log time is linear in log SM clock, then the same between memory
clocks. Outside what a kernel was measured at the answer is NaN: a table knows no more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from kdvfs_sim.core.clocks import AUTO_CLOCKS, Auto, Clocks
from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.core.errors import InputError
from kdvfs_sim.gpu.fit.readings import Floats, Readings, merge_repeats
from kdvfs_sim.gpu.fit.sweep import Sweep
from kdvfs_sim.gpu.tables import cost_table_from_rows


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


def tabulated_costs(
    sweep: Sweep, *, clocks: Sequence[Clocks] = (), recorded: Clocks = AUTO_CLOCKS
) -> CostTable:
    """A cost table of the medians measured, and of ``clocks`` interpolated between them.

    ``recorded`` must have been measured. Raises InputError where it was not, and for AUTO among ``clocks``,
    which nothing interpolates.
    """
    rows = sweep.rows.group_by("kernel", "sm_mhz", "mem_mhz", maintain_order=True).agg(
        pl.col("time_s", "power_w").median()
    )
    as_text = [pl.col(name).cast(pl.String).fill_null("auto") for name in ("sm_mhz", "mem_mhz")]
    table = rows.select("kernel", *as_text, "time_s", "power_w")
    measured = set(sweep.clocks)
    new = [pair for pair in dict.fromkeys(clocks) if pair not in measured]
    if new:
        readings = merge_repeats(sweep)
        sm, mem = zip(*(numeric(pair, sweep.where) for pair in new), strict=True)
        time_s, power_w = (
            interpolated(readings, values, sm, mem) for values in (readings.time_s, readings.power_w)
        )
        between = pl.DataFrame(
            {
                "kernel": np.repeat(np.array(readings.kernels, dtype=object), len(new)),
                "sm_mhz": [str(mhz) for mhz in sm] * readings.n_kernels,
                "mem_mhz": [str(mhz) for mhz in mem] * readings.n_kernels,
                "time_s": time_s.ravel(),
                "power_w": power_w.ravel(),
            },
            schema_overrides={"kernel": pl.String},
        )
        table = pl.concat([table, between])
    return cost_table_from_rows(table, recorded=recorded, source=sweep.where)


def numeric(clocks: Clocks, where: str) -> tuple[int, int]:
    """Raises InputError for AUTO, which is between no two clocks."""
    if isinstance(clocks.sm_mhz, Auto) or isinstance(clocks.mem_mhz, Auto):
        raise InputError(f"{where}: {clocks} was not measured, and AUTO is between no two clocks")
    return clocks.sm_mhz, clocks.mem_mhz


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
