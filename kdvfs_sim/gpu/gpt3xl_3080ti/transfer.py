"""Table 1's clocks at other batch sizes and degrees of tensor parallelism, from scaled shapes.

What scales: a matrix product's SM time with its FLOPs, with how well its tiles fill the GPU and with what
starting and writing a tile adds to it; its traffic with the tiles that the GPU holds at a time;
everything else with its bytes; every kernel pays the ramp of an empty one at its SM clock. What a tile
waits for its start draws no power of work; a partly filled GPU does (the text's 325 J in 1.12 s at batch 8
are no less power than at batch 40). AUTO's power and clock follow what a kernel draws as little as they
do from kernel to kernel. Embedding, layernorm, residual and loss are not divided: this comes closest to
the text's 1.8 s and 503 J at degree 4, and is still 4 % short. Calibrated at the sizes of the fit on what
was measured there again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from kdvfs_sim.gpu.gpt3xl_3080ti.calls import CALLS, Call, Sizes
from kdvfs_sim.gpu.gpt3xl_3080ti.shipped import Shipped
from kdvfs_sim.gpu.gpt3xl_3080ti.surface import AUTO_ROW, MEMORY_REQUESTS, Floats, surfaces

_N_SM: Final = 80
_TILE: Final = (256, 128)  # rows and columns of the result that one SM works on


@dataclass(frozen=True, slots=True, kw_only=True)
class Transferred:
    """An iteration at other sizes: at AUTO, and in per cent of that with Table 1's clocks."""

    sizes: Sizes
    auto_time_s: float
    auto_energy_j: float
    time_pct: float
    energy_pct: float


def transfer(shipped: Shipped, sizes: Sizes) -> Transferred:
    """What the clocks chosen at batch 40 on one GPU do at ``sizes``."""
    auto_s, auto_j, chosen_s, chosen_j = _iteration(shipped, sizes)
    fit_auto_s, fit_auto_j, fit_chosen_s, fit_chosen_j = _iteration(shipped, Sizes())

    def percent(ratio: float, fit_ratio: float, again_pct: float) -> float:
        return (100.0 + again_pct) * ratio / fit_ratio - 100.0

    again = shipped.other_sizes
    return Transferred(
        sizes=sizes,
        auto_time_s=auto_s,
        auto_energy_j=auto_j,
        time_pct=percent(chosen_s / auto_s, fit_chosen_s / fit_auto_s, again.again_time_pct),
        energy_pct=percent(chosen_j / auto_j, fit_chosen_j / fit_auto_j, again.again_energy_pct),
    )


def _iteration(shipped: Shipped, sizes: Sizes) -> tuple[float, float, float, float]:
    """Time and energy at AUTO, time and energy with Table 1's clocks, as modelled."""
    board, kernels, other = shipped.board, shipped.kernels, shipped.other_sizes
    busy, traffic = _ratio(_busy, sizes), _ratio(_traffic, sizes)
    work = busy * _ratio(lambda call, s: _tile(call, s, other.inner_per_tile), sizes)
    tiny = np.array([call.role == "tiny" for call in CALLS])
    ramp_s = float(shipped.auto_time_s[tiny].mean())
    scaled = replace(
        kernels,
        sm_time=kernels.sm_time * work,
        memory_time=kernels.memory_time * traffic,
        fixed_time=kernels.fixed_time * work,
        work_w=kernels.work_w * busy,
        traffic_w=kernels.traffic_w * traffic,
        ramp_time=np.maximum(1.0 - work, 0.0) * ramp_s / shipped.auto_time_s,
    )
    memory, sm_mhz = np.array([len(MEMORY_REQUESTS) - 1]), kernels.auto_sm_mhz[:, None]
    drawn = scaled.at(board, sm_mhz, memory)[1] / kernels.at(board, sm_mhz, memory)[1]
    auto_time = scaled.at(board, sm_mhz * drawn**other.auto_clock_slope, memory)[0][:, 0]
    auto_power = kernels.cap_w * drawn[:, 0] ** other.auto_power_slope
    rows = np.arange(len(CALLS))
    there = surfaces(board, scaled)
    stays = shipped.chosen == AUTO_ROW
    time = np.where(stays, auto_time, there.time[rows, shipped.chosen])
    power = np.where(stays, auto_power, there.power_w[rows, shipped.chosen])
    seconds = shipped.n_calls * shipped.auto_time_s
    return (
        float(seconds @ auto_time),
        float(seconds @ (auto_time * auto_power)),
        float(seconds @ time),
        float(seconds @ (time * power)),
    )


def _ratio(of: Callable[[Call, Sizes], float], sizes: Sizes) -> Floats:
    """(n_kernels,): against the sizes of the fit."""
    reference = Sizes()
    return np.array([of(call, sizes) / of(call, reference) for call in CALLS])


def _busy(call: Call, sizes: Sizes) -> float:
    """Proportional to the SM time but for what starting a tile adds."""
    if not call.shape:
        return call.bytes(sizes) or 1.0
    rows, columns = _tiles(call, sizes)
    waves = rows * columns / _N_SM
    # a weight gradient sums over all tokens: the library splits that sum to fill the GPU
    filled = 1.0 if call.accumulates else waves / math.ceil(waves)
    return call.flops(sizes) / filled


def _tile(call: Call, sizes: Sizes, inner_per_tile: float) -> float:
    """A tile's time over that of its inner dimension alone."""
    return 1.0 + inner_per_tile / call.dims(sizes)[2] if call.shape else 1.0


def _traffic(call: Call, sizes: Sizes) -> float:
    """Proportional to the bytes that cross the memory bus.

    The tiles in work at a time form a block; its rows and columns of the operands are read once for it.
    The block is as square as the result allows.
    """
    if not call.shape:
        return call.bytes(sizes) or 1.0
    rows, columns = _tiles(call, sizes)
    m, n, k = call.dims(sizes)

    def read(height: float) -> float:
        high = min(height, rows)
        wide = min(_N_SM / high, columns)
        blocks = rows * columns / (high * wide)
        return blocks * k * (high * _TILE[0] + wide * _TILE[1])

    written = (2 if call.accumulates else 1) * m * n
    return min(read(height) for height in range(1, _N_SM + 1)) + written


def _tiles(call: Call, sizes: Sizes) -> tuple[int, int]:
    m, n, _ = call.dims(sizes)
    return -(-m // _TILE[0]), -(-n // _TILE[1])


def transferred_points(shipped: Shipped) -> tuple[Transferred, ...]:
    """The twelve points that the paper measured: seven batch sizes, five degrees."""
    sizes = [Sizes(n_sequences=batch) for batch in (1, 2, 4, 8, 16, 32, 40)]
    sizes += [Sizes(n_gpus=degree) for degree in (1, 2, 4, 8, 16)]
    return tuple(transfer(shipped, size) for size in sizes)
