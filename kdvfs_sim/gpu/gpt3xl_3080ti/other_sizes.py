"""What a transfer to other sizes needs besides the surfaces: five numbers, each from published ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from kdvfs_sim.core.clocks import AUTO
from kdvfs_sim.gpu.gpt3xl_3080ti.calls import CALLS, Sizes
from kdvfs_sim.gpu.gpt3xl_3080ti.published import Published
from kdvfs_sim.gpu.gpt3xl_3080ti.surface import CLOCKS, Floats

_TOP_MEMORY_MHZ: Final = (9251, 9501)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherSizes:
    """``again_*_pct``: Table 1's clocks against AUTO, measured again at the sizes of the fit.

    ``auto_power_slope``, ``auto_clock_slope``: by how many per cent power and SM clock at AUTO change when
    a kernel would draw one per cent more at the same clock. ``inner_per_tile``: to be started and written,
    every tile of a matrix product takes as long as so many more of its inner dimension.
    """

    again_time_pct: float
    again_energy_pct: float
    auto_power_slope: float
    auto_clock_slope: float
    inner_per_tile: float


def other_sizes(published: Published, auto_sm_mhz: Floats) -> OtherSizes:
    """``auto_sm_mhz``: the kernels' fitted SM clocks at AUTO."""
    power_slope, clock_slope = auto_slopes(published, auto_sm_mhz)
    return OtherSizes(
        again_time_pct=published.again_time_pct,
        again_energy_pct=published.again_energy_pct,
        auto_power_slope=power_slope,
        auto_clock_slope=clock_slope,
        inner_per_tile=inner_per_tile(published.auto_time_s),
    )


def auto_slopes(published: Published, auto_sm_mhz: Floats) -> tuple[float, float]:
    """Of power and SM clock at AUTO on the power drawn with only the memory clock locked, at the top.

    Logarithmic slopes over the twelve kernels for which Table 1 has both.
    """
    rows = [
        row
        for row, chosen in enumerate(published.chosen)
        if CLOCKS[chosen].sm_mhz is AUTO and CLOCKS[chosen].mem_mhz in _TOP_MEMORY_MHZ
    ]
    locked_w = published.auto_power_w * published.chosen_energy / published.chosen_time
    drawn = np.log(locked_w[rows])
    power, clock = (
        float(np.polyfit(drawn, np.log(values[rows]), 1)[0])
        for values in (published.auto_power_w, auto_sm_mhz)
    )
    return power, clock


def inner_per_tile(auto_time_s: Floats) -> float:
    """From the products of a layer whose tiles run through the whole inner dimension, 2048 to 8192 long."""
    rows = [
        row
        for row, call in enumerate(CALLS)
        if call.role == "gemm" and not call.accumulates and call.n_calls > 1
    ]
    inner = np.array([CALLS[row].dims(Sizes())[2] for row in rows])
    s_per_flop = auto_time_s[rows] / [CALLS[row].flops(Sizes()) for row in rows]
    per_tile, per_inner = np.polyfit(1.0 / inner, s_per_flop, 1)
    return float(per_tile / per_inner)
