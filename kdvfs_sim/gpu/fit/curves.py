"""The shapes that time and power can take over the clocks of a GPU: the hypotheses of the shared model.

Each row is one set of coefficients of the latency or power form, evaluated at every clock and divided by
its value at the baseline, in logs. The grids are generic: what a GPU's kernels do is learned as weights on
the rows.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from kdvfs_sim.gpu.fit.readings import Floats
from kdvfs_sim.gpu.fit.voltage import relative_voltage
from kdvfs_sim.gpu.latency import p_norm

# SM-bound over memory-bound time at the baseline: the corner of the roofline lies at this part of the top
# clock.
BALANCE: Final = np.concatenate([[0.0], np.geomspace(0.3, 1.2, 20), [1.5, 2.0, 3.0, 6.0, np.inf]])
FIXED_SHARES: Final = (0.0, 0.12, 0.3, 0.5, 0.7, 0.85, 0.95)
EXPONENTS: Final = (1.0, 2.0, 4.0, 10.0, 40.0)
CAPS: Final = (1.0, 0.985, 0.965, 0.93, 0.88)  # of the top clock: where a power cap may hold a kernel
KNEES: Final = (0.5, 0.6, 0.67, 0.73, 0.79, 0.85, 0.9)  # of the top clock
RISES: Final = (0.08, 0.15, 0.22, 0.3, 0.4, 0.6)
FLOOR_SHARES: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8)
WORK_SHARES: Final = (0.0, 0.33, 0.67, 1.0)  # of the rest, follows the work rate
MEMORY_SHARES: Final = (0.0, 0.3, 0.6)  # of the floor, follows the memory clock
# Rows that agree to this at every clock are one hypothesis.
SAME: Final = 2e-3


def time_shapes(sm_mhz: Floats, mem_mhz: Floats, baseline: int) -> Floats:
    """(n_shapes, n_clocks): log time relative to the baseline column."""
    slow_mem, top = mem_mhz[baseline] / mem_mhz, float(sm_mhz.max())
    rows = []
    for cap in CAPS:
        reached = np.minimum(sm_mhz, cap * top)
        slow_sm = reached[baseline] / reached
        for exponent in EXPONENTS:
            for balance in BALANCE:
                one_sided = balance in (0.0, np.inf)
                if one_sided and exponent != EXPONENTS[0]:
                    continue  # one bound alone: p does not matter
                share = 1.0 if np.isinf(balance) else balance / (1.0 + balance)
                bound = p_norm(share * slow_sm, (1.0 - share) * slow_mem, exponent)
                bound = bound / bound[baseline]
                rows += [(1.0 - fixed) * bound + fixed for fixed in FIXED_SHARES]
    return _distinct(np.log(np.array(rows)))


def power_shapes(sm_mhz: Floats, mem_mhz: Floats, baseline: int, log_time: Floats) -> Floats:
    """(n_shapes, n_clocks): log power relative to the baseline, of a kernel with relative ``log_time``
    (n_clocks,).

    Row i means the same coefficients for every kernel of these clocks.
    """
    top = float(sm_mhz.max())
    memory = mem_mhz / mem_mhz[baseline]
    many_memories = bool(np.ptp(mem_mhz) > 0)
    floor, work, of_memory = (
        axis.ravel()[:, None]
        for axis in np.meshgrid(
            FLOOR_SHARES, WORK_SHARES, MEMORY_SHARES if many_memories else (0.0,), indexing="ij"
        )
    )
    rows = []
    for knee in KNEES:
        for rise in RISES:
            square = relative_voltage(sm_mhz, knee * top, rise, top) ** 2
            tree, rate = square * sm_mhz, square * np.exp(-log_time)
            dynamic = (1.0 - work) * tree / tree[baseline] + work * rate / rate[baseline]
            rows.append(floor * (1.0 - of_memory + of_memory * memory) + (1.0 - floor) * dynamic)
    log: Floats = np.log(np.concatenate(rows))
    return log


def _distinct(rows: Floats) -> Floats:
    _, first = np.unique(np.round(rows / SAME).astype(np.int64), axis=0, return_index=True)
    return rows[np.sort(first)]
