"""Table 1's clocks at other batch sizes and degrees of tensor parallelism, from scaled shapes.

What scales: a matrix product's SM time with its FLOPs and with how well its tiles fill the GPU; its traffic
with the tiles that the GPU holds at a time; everything else with its bytes; every kernel pays the ramp of an
empty one at its SM clock. What stays: the clock and the excess power of each kernel at AUTO (among the matrix
products AUTO's clock does not fall with the power drawn), and the power of a partly filled GPU (the text's
325 J in 1.12 s at batch 8 are no less power than at batch 40). Embedding, layernorm, residual and loss are
not divided: this comes closest to the text's 1.8 s and 503 J at degree 4, and is still 5 % short.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from kdvfs_sim.gpu.gpt3xl_3080ti.calls import CALLS, Call, Sizes
from kdvfs_sim.gpu.gpt3xl_3080ti.shipped import Shipped
from kdvfs_sim.gpu.gpt3xl_3080ti.surface import AUTO_ROW, MEMORY_REQUESTS, surfaces

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
    """What the clocks chosen at batch 40 on one GPU do at ``sizes``, corrected for the luck of the choice."""
    board, kernels = shipped.board, shipped.kernels
    reference = Sizes()
    work = np.array([_work(call, sizes) / _work(call, reference) for call in CALLS])
    traffic = np.array([_traffic(call, sizes) / _traffic(call, reference) for call in CALLS])
    tiny = np.array([call.role == "tiny" for call in CALLS])
    ramp_s = float(shipped.auto_time_s[tiny].mean())
    scaled = replace(
        kernels,
        sm_time=kernels.sm_time * work,
        memory_time=kernels.memory_time * traffic,
        fixed_time=kernels.fixed_time * work,
        work_w=kernels.work_w * work,
        traffic_w=kernels.traffic_w * traffic,
        ramp_time=np.maximum(1.0 - work, 0.0) * ramp_s / shipped.auto_time_s,
    )
    auto_memory = np.array([len(MEMORY_REQUESTS) - 1])
    auto_sm = kernels.auto_sm_mhz[:, None]
    excess = kernels.cap_w / kernels.at(board, auto_sm, auto_memory)[1][:, 0]
    auto_time, auto_power = (values[:, 0] for values in scaled.at(board, auto_sm, auto_memory))
    auto_power = np.minimum(auto_power * excess, kernels.cap_w)
    rows = np.arange(len(CALLS))
    there = surfaces(board, scaled)
    stays = shipped.chosen == AUTO_ROW
    time = np.where(stays, auto_time, there.time[rows, shipped.chosen])
    power = np.where(stays, auto_power, there.power_w[rows, shipped.chosen])
    seconds = shipped.n_calls * shipped.auto_time_s
    base_s, base_j = float(seconds @ auto_time), float(seconds @ (auto_time * auto_power))
    return Transferred(
        sizes=sizes,
        auto_time_s=base_s,
        auto_energy_j=base_j,
        time_pct=100.0 * (float(seconds @ time) / base_s - 1.0) + shipped.luck_time_pct,
        energy_pct=100.0 * (float(seconds @ (time * power)) / base_j - 1.0) + shipped.luck_energy_pct,
    )


def _work(call: Call, sizes: Sizes) -> float:
    """Proportional to the SM time."""
    if not call.shape:
        return call.bytes(sizes) or 1.0
    rows, columns = _tiles(call, sizes)
    waves = rows * columns / _N_SM
    # a weight gradient sums over all tokens: the library splits that sum to fill the GPU
    filled = 1.0 if call.accumulates else waves / math.ceil(waves)
    return call.flops(sizes) / filled


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
