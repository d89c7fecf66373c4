"""Time and power of the paper's kernels over its 66 clock pairs, from a few parameters.

Time is ``((a / f_sm)^4 + (b / (eta f_mem))^4)^(1/4) + c`` with one efficiency ``eta`` for each memory
clock, power ``P(f_mem) + k V^2 f_sm + w V^2 / t + g / t``: a static part, what follows the clock, the work
and the traffic. The SM clock is the lowest of the request, what the board reaches with that memory
clock locked, and what the power cap allows. With the memory clock left to the driver the board behaves
otherwise, as the paper shows and does not explain: from 1680 MHz up it draws more power for the same
time, and at the top every kernel is held near the limit. There the kernel's own measured point stands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from kdvfs_sim.core.clocks import AUTO, AUTO_CLOCKS, Auto, ClockMhz, Clocks
from kdvfs_sim.gpu.latency import p_norm

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

SM_REQUESTS: Final[tuple[ClockMhz, ...]] = (210, 420, 630, 840, 1050, 1260, 1470, 1680, 1890, 2100, AUTO)
MEMORY_REQUESTS: Final[tuple[ClockMhz, ...]] = (405, 810, 5001, 9251, 9501, AUTO)
CLOCKS: Final = tuple(Clocks(sm, mem) for mem in MEMORY_REQUESTS for sm in SM_REQUESTS)
AUTO_ROW: Final = CLOCKS.index(AUTO_CLOCKS)
TOP_MEMORY_MHZ: Final = 9501
# At AUTO memory 1890 and 2100 MHz take the time and energy of AUTO (pass sweep, within 0.2 %).
GOVERNED_FROM_MHZ: Final = 1890
EXCESS_AT_MHZ: Final = 1680
# A locked top memory clock is a shade slower: nothing beats AUTO's time in seven streaming kernels.
LOCKED_EFFICIENCY: Final = 0.9998
_BISECTIONS: Final = 16
_LOWEST_CAPPED_MHZ: Final = 1200.0

_MEMORY: Final[Rows] = np.repeat(np.arange(len(MEMORY_REQUESTS)), len(SM_REQUESTS))
_MEMORY_MHZ: Final[Floats] = np.array(
    [TOP_MEMORY_MHZ if isinstance(m, Auto) else m for m in MEMORY_REQUESTS], dtype=np.float64
)
_SM_MHZ: Final[Floats] = np.tile(
    [np.inf if isinstance(s, Auto) else s for s in SM_REQUESTS], len(MEMORY_REQUESTS)
)
_LEFT_TO_DRIVER: Final = np.array([c.mem_mhz is AUTO for c in CLOCKS])


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """What all kernels share.

    ``static_*_w``: power that no SM clock changes, by memory clock (9251 MHz lies between its
    neighbours). ``efficiency_*``: bandwidth per memory clock against that at 9501 MHz left to the
    driver. ``ceiling_*``: SM clock reached with the memory clock locked, at 810 MHz and above it; with
    405 MHz the SMs are held at 420. Voltage is 1 up to ``knee_mhz``, then rises by ``rise`` per GHz
    and ``bend`` per GHz squared. ``excess``: power at SM 1680 MHz with AUTO memory over that with
    9501 MHz locked.
    """

    static_405_w: float
    static_810_w: float
    static_5001_w: float
    static_9501_w: float
    efficiency_405: float
    efficiency_810: float
    efficiency_5001: float
    ceiling_mhz: float
    ceiling_810_mhz: float
    knee_mhz: float
    rise: float
    bend: float
    excess: float

    @property
    def static_w(self) -> Floats:
        """By memory request."""
        low, high = self.static_5001_w, self.static_9501_w
        between = low + (high - low) * (9251 - 5001) / (TOP_MEMORY_MHZ - 5001)
        return np.array([self.static_405_w, self.static_810_w, low, between, high, high])

    @property
    def efficiency(self) -> Floats:
        """By memory request."""
        return np.array(
            [self.efficiency_405, self.efficiency_810, self.efficiency_5001, *(2 * [LOCKED_EFFICIENCY]), 1.0]
        )

    @property
    def ceilings_mhz(self) -> Floats:
        """By memory request."""
        top = self.ceiling_mhz
        return np.array([420.0, self.ceiling_810_mhz, top, top, top, top])

    def voltage_squared(self, sm_mhz: Floats) -> Floats:
        above = np.maximum(sm_mhz - self.knee_mhz, 0.0) / 1000.0
        squared: Floats = (1.0 + above * (self.rise + self.bend * above)) ** 2
        return squared


@dataclass(frozen=True, kw_only=True, eq=False)
class Kernels:
    """What each kernel has of its own; arrays of shape (n_kernels,), times relative to its time at AUTO.

    ``auto_sm_mhz``: SM clock at (AUTO, AUTO). ``sm_time``, ``memory_time``: SM-bound and memory-bound
    time there. ``fixed_time``: what no clock changes. ``clock_w``: W per GHz at the flat voltage.
    ``work_w``: at the flat voltage and the time at AUTO. ``traffic_w``: at that time.
    ``cap_w``: power to which the governor holds the kernel, its measured power at (AUTO, AUTO).
    ``ramp_time``: SM-bound time that overlaps with nothing; matters to small kernels only.
    """

    auto_sm_mhz: Floats
    sm_time: Floats
    memory_time: Floats
    fixed_time: Floats
    clock_w: Floats
    work_w: Floats
    traffic_w: Floats
    cap_w: Floats
    ramp_time: Floats | None = None

    def at(self, board: Board, sm_mhz: Floats, memory: Rows) -> tuple[Floats, Floats]:
        """Times and powers, (n_kernels, n), at SM clocks (n_kernels, n) and memory requests (n,)."""
        sm_slowdown = self.auto_sm_mhz[:, None] / sm_mhz
        memory_slowdown = TOP_MEMORY_MHZ / (board.efficiency[memory] * _MEMORY_MHZ[memory])
        time = p_norm(self.sm_time[:, None] * sm_slowdown, self.memory_time[:, None] * memory_slowdown, 4.0)
        time += self.fixed_time[:, None]
        if self.ramp_time is not None:
            time += self.ramp_time[:, None] * sm_slowdown
        squared = board.voltage_squared(sm_mhz)
        follows_clock = self.clock_w[:, None] * squared * sm_mhz / 1000.0
        follows_time = (self.work_w[:, None] * squared + self.traffic_w[:, None]) / time
        return time, board.static_w[memory] + follows_clock + follows_time


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Surfaces:
    """(n_kernels, 66) over ``CLOCKS``: time relative to (AUTO, AUTO), power, the SM clock behind them."""

    time: Floats
    power_w: Floats
    sm_mhz: Floats

    @property
    def energy(self) -> Floats:
        """Relative to (AUTO, AUTO)."""
        return self.time * self.power_w / (self.time * self.power_w)[:, AUTO_ROW, None]


def surfaces(board: Board, kernels: Kernels) -> Surfaces:
    """What every kernel does at every clock pair."""
    sm_mhz = np.minimum(
        np.minimum(_SM_MHZ, board.ceilings_mhz[_MEMORY]), capped_sm_mhz(board, kernels)[:, _MEMORY]
    )
    time, power = kernels.at(board, sm_mhz, _MEMORY)
    excess = _LEFT_TO_DRIVER & (_SM_MHZ == EXCESS_AT_MHZ)
    power[:, excess] = np.minimum(power[:, excess] * board.excess, kernels.cap_w[:, None])
    governed = _LEFT_TO_DRIVER & (_SM_MHZ >= GOVERNED_FROM_MHZ)
    sm_mhz[:, governed] = kernels.auto_sm_mhz[:, None]
    time[:, governed] = kernels.at(board, kernels.auto_sm_mhz[:, None], _MEMORY[governed])[0]
    power[:, governed] = kernels.cap_w[:, None]
    return Surfaces(time=time, power_w=power, sm_mhz=sm_mhz)


def capped_sm_mhz(board: Board, kernels: Kernels) -> Floats:
    """(n_kernels, n_memory): the SM clock at which a kernel meets its cap, at most the board's ceiling."""
    n_kernels, memory = len(kernels.cap_w), np.arange(len(MEMORY_REQUESTS))
    low = np.full((n_kernels, memory.size), _LOWEST_CAPPED_MHZ)
    high = np.full((n_kernels, memory.size), max(board.ceiling_mhz, board.ceiling_810_mhz))
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        allowed = kernels.at(board, middle, memory)[1] <= kernels.cap_w[:, None]
        low, high = np.where(allowed, middle, low), np.where(allowed, high, middle)
    return high
