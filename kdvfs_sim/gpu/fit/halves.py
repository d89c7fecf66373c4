"""Selection bias: what is chosen on some repeats is reported on the others.

The best of many noisy readings looks better than it is. Repeats that had no part in the choice do not know
that it was chosen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import polars as pl

from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.gpu.fit.plan import Choice
from kdvfs_sim.gpu.fit.readings import merge_repeats
from kdvfs_sim.gpu.fit.sweep import Sweep

_KEYS = ("kernel", "sm_mhz", "mem_mhz")


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What the repeats held back say of a choice, per cent against the baseline; NaN where none was."""

    kernel: str
    clocks: Clocks
    time_pct: float
    energy_pct: float


def split_repeats(sweep: Sweep, *, seed: int = 0) -> tuple[Sweep, Sweep] | None:
    """Every clock pair's repeats at random in two halves, the first the larger by at most one.

    None unless most pairs were read twice or more: there is then nothing to hold back.
    """
    counts = sweep.rows.group_by(*_KEYS).len()["len"]
    if float(np.median(counts.to_numpy())) < 2:
        return None
    order = np.random.default_rng(seed).permutation(sweep.rows.height)
    # ranks within a pair, in random order, alternate between the halves
    rank = sweep.rows.with_columns(order=order).select(pl.col("order").rank("ordinal").over(_KEYS))
    first = (rank["order"] % 2) == 1
    return sweep.where_rows(pl.lit(first)), sweep.where_rows(pl.lit(~first))


def held_out(choices: Iterable[Choice], others: Sweep, baseline: Clocks) -> list[Held]:
    """Time and energy of each choice, against ``baseline``, as ``others`` has them."""
    readings = merge_repeats(others)
    column = {pair: i for i, pair in enumerate(readings.clocks)}
    row = {kernel: i for i, kernel in enumerate(readings.kernels)}
    energy = readings.time_s * readings.power_w
    result = []
    for choice in choices:
        k, at, base = row.get(choice.kernel), column.get(choice.clocks), column.get(baseline)
        time_pct = energy_pct = float("nan")
        if k is not None and at is not None and base is not None:
            time_pct = 100.0 * float(readings.time_s[k, at] / readings.time_s[k, base] - 1.0)
            energy_pct = 100.0 * float(energy[k, at] / energy[k, base] - 1.0)
        result.append(
            Held(kernel=choice.kernel, clocks=choice.clocks, time_pct=time_pct, energy_pct=energy_pct)
        )
    return result
