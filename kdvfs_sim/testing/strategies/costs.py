"""Cost tables, switch costs, and the protocols that charge them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from kdvfs_sim.core.clocks import AUTO_CLOCKS, Clocks
from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.core.switching import DRAIN, FOLLOW, FREE, LOOKAHEAD, SwitchCost, SwitchProtocol, SwitchTable
from kdvfs_sim.testing.strategies.clocks import PAIRS

MAX_KINDS = 3


@st.composite
def cost_tables(
    draw: st.DrawFn, *, n_kinds: int = MAX_KINDS, unknown_power: bool = True, may_cap: bool = True
) -> CostTable:
    """Small tables, physical or not: any duration, power and effective row; some power unknown."""
    locks = st.lists(st.sampled_from(PAIRS[1:]), unique=True, min_size=draw(st.integers(0, 2)), max_size=3)
    clocks = (AUTO_CLOCKS, *draw(locks))
    n = len(clocks)
    durations = st.sampled_from([1.0, 2.0, 0.5, 3.0, 1 / 3, 0.1]) | st.floats(0.05, 20)
    watts = st.sampled_from([100.0, 50.0, 0.0]) | st.floats(0, 1000)
    if unknown_power and draw(st.integers(0, 3)) == 3:
        watts |= st.just(float("nan"))

    def table(values: st.SearchStrategy[Any]) -> Any:
        rows = st.lists(st.lists(values, min_size=n, max_size=n), min_size=n_kinds, max_size=n_kinds)
        return np.asarray(draw(rows))

    identity = np.tile(np.arange(n, dtype=np.int32), (n_kinds, 1))
    effective = table(st.integers(0, n - 1)).astype(np.int32) if draw(st.booleans()) else identity
    return CostTable(
        kinds=tuple(f"k{i}" for i in range(n_kinds)),
        clocks=clocks,
        duration_ns=table(durations).astype(float),
        power_w=table(watts).astype(float),
        effective=effective,
        idle_power_w=np.asarray(draw(st.lists(watts, min_size=n, max_size=n)), dtype=float),
        recorded=draw(st.integers(0, n - 1)),
        requestable=np.ones(n, dtype=bool),
        cap_w=draw(st.none() | st.floats(0, 2000)) if may_cap else None,
    )


@st.composite
def physical_cost_tables(draw: st.DrawFn, *, n_kinds: int = 2, max_clocks: int = 3) -> CostTable:
    """Tables as silicon has them: a lower SM clock takes no less time and draws no more power, each kind has
    its SM-bound share, and power rises faster than the clock."""
    mhz = sorted(draw(st.lists(st.sampled_from([1200, 900, 600, 300]), max_size=max_clocks - 1, unique=True)))
    shares = [draw(st.sampled_from([0.0, 1.0, 0.5]) | st.floats(0, 1)) for _ in range(n_kinds)]
    idle_w = draw(st.sampled_from([50.0, 0.0, 100.0]))
    dynamic_w = [draw(st.sampled_from([300.0, 100.0]) | st.floats(1, 600)) for _ in range(n_kinds)]
    speed = np.array([1.0, *(m / 1500 for m in mhz)])
    share, watts = np.array(shares)[:, None], np.array(dynamic_w)[:, None]
    n = len(speed)
    return CostTable(
        kinds=tuple(f"k{i}" for i in range(n_kinds)),
        clocks=(AUTO_CLOCKS, *(Clocks(m, AUTO_CLOCKS.mem_mhz) for m in mhz)),
        duration_ns=np.round(share / speed + (1 - share), 4),
        power_w=np.round(idle_w + watts * speed**2 * (0.5 + 0.5 * speed), 1),
        effective=np.tile(np.arange(n, dtype=np.int32), (n_kinds, 1)),
        idle_power_w=np.full(n, idle_w),
        recorded=0,
        requestable=np.ones(n, dtype=np.bool_),
    )


def _latencies(longest_ns: int) -> st.SearchStrategy[int]:
    """Times up to a bound: small ones, and a tail with as many in each power of ten as below it."""
    tail = [10**k for k in range(1, 20) if 10**k <= longest_ns]
    return st.integers(0, min(longest_ns, 80)) | st.sampled_from([*tail, longest_ns])


@st.composite
def switch_tables(draw: st.DrawFn, n_clocks: int, *, longest_ns: int | None = None) -> SwitchTable:
    """Asymmetric pairwise costs, from nothing to longer than a small trace, with stalls and extra energy."""
    if longest_ns is None:
        longest_ns = draw(st.sampled_from([0, 5, 20, 80]))

    def table(values: st.SearchStrategy[int]) -> Any:
        cells = draw(st.lists(values, min_size=n_clocks**2, max_size=n_clocks**2))
        square = np.asarray(cells, dtype=np.int64).reshape(n_clocks, n_clocks)
        return square * (1 - np.eye(n_clocks, dtype=np.int64))

    switching = table(_latencies(longest_ns))
    return SwitchTable(
        host_call_ns=table(_latencies(longest_ns)),
        switching_ns=switching,
        stall_ns=np.minimum(table(_latencies(longest_ns)), switching),
        extra_energy_j=table(st.integers(0, 3)) * 1e-6,
    )


@st.composite
def protocols(draw: st.DrawFn) -> SwitchProtocol:
    """The four protocols, with times of their own."""
    protocol = draw(st.sampled_from([FREE, DRAIN, FOLLOW, LOOKAHEAD]))
    times = st.integers(0, 8)
    return protocol.with_timing(trigger_ns=draw(times), relaunch_ns=draw(times))


@dataclass(frozen=True)
class PairwiseSwitching:
    """A SwitchingModel that reads a table: (host call, switching, stall) in ns from clocks to clocks."""

    clocks: tuple[Clocks, ...]
    table: tuple[tuple[tuple[int, int, int], ...], ...]

    def switch(self, old: Clocks, new: Clocks, /) -> SwitchCost:
        if old == new:
            return SwitchCost(host_call_ns=0, switching_ns=0)
        call, lands, stall = self.table[self.clocks.index(old)][self.clocks.index(new)]
        return SwitchCost(host_call_ns=call, switching_ns=lands, stall_ns=min(stall, lands))


@st.composite
def switching_models(draw: st.DrawFn, clocks: tuple[Clocks, ...]) -> PairwiseSwitching:
    """Models between given clocks: up is not down, latencies of any order of magnitude."""
    cell = st.tuples(_latencies(10**9), _latencies(10**9), _latencies(10**9))
    n = len(clocks)
    row = st.lists(cell, min_size=n, max_size=n).map(tuple)
    return PairwiseSwitching(clocks, tuple(draw(st.lists(row, min_size=n, max_size=n))))
