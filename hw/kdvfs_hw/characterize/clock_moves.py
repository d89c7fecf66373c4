"""The chip's own clock moves, seen from inside a kernel: cycles against nanoseconds, tens of us apart."""

from __future__ import annotations

import ctypes as c
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from kdvfs_hw.characterize.ptx import PTX
from kdvfs_hw.workloads.base import Workload
from kdvfs_hw.workloads.cuda_driver import Buffer, Module, Stream, attach

INTERVAL_NS: Final = 20_000
_BURST_NS: Final = 8_000_000
_PAUSE_NS: Final = 4_000_000
_N_BURSTS: Final = 40
_N_STEPS: Final = 40
_NEAR: Final = 0.1  # of the way between two levels
_LEAST_MHZ: Final = 30.0  # two steps of a clock list
_LEVEL_NS: Final = 1_000_000
_BLOCK: Final = 512


@dataclass(frozen=True, kw_only=True, eq=False)
class ClockScope:
    """``t_ns`` (n,), from 0; ``sm_mhz`` (n,): mean between this sample and the one before."""

    t_ns: npt.NDArray[np.int64]
    sm_mhz: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockMoves:
    """How fast the clock moves by itself between a pause and work, medians over all moves seen.

    A fall is timed from the last sample at the upper level to the first within 10 % of the way to
    the lowest clock that follows within 1 ms; a rise likewise. None where none was seen.
    """

    n_falls: int
    n_rises: int
    fall_ns: float | None
    rise_ns: float | None
    high_mhz: float
    low_mhz: float | None
    settled_mhz: float | None

    def to_json(self) -> Mapping[str, object]:
        return asdict(self)


def read_scope(words: Sequence[int]) -> ClockScope:
    """Samples (timer, cycles) in one flat sequence to clocks."""
    flat = np.array(words, dtype=np.int64).reshape(-1, 2)
    t, cycles = flat[:, 0], flat[:, 1]
    elapsed = np.diff(t)
    good = elapsed > 0
    return ClockScope(t_ns=(t[1:] - t[0])[good], sm_mhz=(np.diff(cycles)[good] / elapsed[good]) * 1e3)


class _Bench:
    """The two kernels on one GPU, with their streams and buffers."""

    def __init__(self, uuid: str, n_samples: int) -> None:
        self.n_sm = attach(uuid)
        self.module = Module(PTX)
        self.sampling, self.working = Stream(), Stream()
        self.samples, self.scratch = Buffer(2 * n_samples), Buffer(4096)
        self.n_samples = n_samples
        self.sample, self.burn = self.module.function("sample"), self.module.function("burn")

    def start(self) -> None:
        interval = c.c_uint64(INTERVAL_NS)
        self.sampling.launch(self.sample, 1, 1, self.samples.address, c.c_uint32(self.n_samples), interval)

    def work(self, n_loops: int) -> None:
        # one multiprocessor is left to the sampler, which would starve beside this
        self.working.launch(self.burn, self.n_sm - 1, _BLOCK, self.scratch.address, c.c_uint32(n_loops))

    def rest(self, duration_ns: int) -> None:
        """A pause that the host need not keep: a sampler of two samples, that far apart."""
        self.working.launch(self.sample, 1, 1, self.scratch.address, c.c_uint32(2), c.c_uint64(duration_ns))

    def loops_for(self, duration_ns: int) -> int:
        n_loops, took_ns = 20_000, 1
        for _ in range(2):
            begin_ns = time.monotonic_ns()
            self.work(n_loops)
            self.working.wait()
            took_ns = time.monotonic_ns() - begin_ns
        return max(1, round(n_loops * duration_ns / took_ns))

    def finish(self) -> ClockScope:
        self.sampling.wait()
        self.working.wait()
        return read_scope(self.samples.read())

    def close(self) -> None:
        self.sampling.wait()
        self.working.wait()
        for each in (self.samples, self.scratch, self.sampling, self.working, self.module):
            each.close()


def scope_bursts(uuid: str) -> ClockScope:
    """Bursts of matrix products with pauses between them, and what the clock does meanwhile.

    Takes half a second. Raises DeviceError where CUDA cannot be used.
    """
    bench = _Bench(uuid, _N_BURSTS * (_BURST_NS + _PAUSE_NS) // INTERVAL_NS)
    try:
        n_loops = bench.loops_for(_BURST_NS)
        bench.start()
        for _ in range(_N_BURSTS):
            bench.work(n_loops)
            bench.rest(_PAUSE_NS)
        return bench.finish()
    finally:
        bench.close()


def scope_workload(uuid: str, workload: Workload) -> ClockScope:
    """The same while steps of a workload run, with a pause after each."""
    begin, end = workload.launch(None, 0), workload.launch(None, 3)
    begin_ns = workload.wait(begin)
    step_ns = max(1, (workload.wait(end) - begin_ns) // 3)
    bench = _Bench(uuid, _N_STEPS * round(1.2 * step_ns + _PAUSE_NS) // INTERVAL_NS)
    try:
        bench.start()
        for _ in range(_N_STEPS):
            workload.wait(workload.launch(None, 1))
            time.sleep(_PAUSE_NS * 1e-9)
        return bench.finish()
    finally:
        bench.close()


def find_moves(scope: ClockScope) -> ClockMoves:
    """Falls from, and rises to, the clock that the chip has in its pauses."""
    clock, t = scope.sm_mhz, scope.t_ns
    high = float(np.percentile(clock, 90))
    working = clock < high - _LEAST_MHZ
    if working.mean() < 0.05:
        return ClockMoves(
            n_falls=0, n_rises=0, fall_ns=None, rise_ns=None, high_mhz=high, low_mhz=None, settled_mhz=None
        )
    settled = float(np.median(clock[working]))
    upper, deep = high - _NEAR * (high - settled), high - 0.5 * (high - settled)
    falls, rises, lows = [], [], []
    i, n = 1, len(clock)
    while i < n:
        if clock[i - 1] >= upper > clock[i]:
            stop = int(np.searchsorted(t, t[i] + _LEVEL_NS))
            low = float(clock[i:stop].min())
            if low <= deep:
                bottom = i + int(np.argmax(clock[i:stop] <= low + _NEAR * (high - low)))
                falls.append(float(t[bottom] - t[i - 1]))
                lows.append(low)
                i = bottom
        elif clock[i - 1] < upper <= clock[i]:
            j = i - 1
            while j > 0 and clock[j] > clock[j - 1] and clock[j] > deep:
                j -= 1
            if clock[j] <= deep:
                rises.append(float(t[i] - t[j]))
        i += 1
    return ClockMoves(
        n_falls=len(falls),
        n_rises=len(rises),
        fall_ns=float(np.median(falls)) if falls else None,
        rise_ns=float(np.median(rises)) if rises else None,
        high_mhz=high,
        low_mhz=float(np.median(lows)) if lows else None,
        settled_mhz=settled,
    )
