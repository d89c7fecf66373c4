"""Problems small enough to be tried out by hand, and to be read when one of them is a counterexample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from hypothesis import strategies as st

from kdvfs_sim.core.clocks import AUTO, AUTO_CLOCKS, Clocks
from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.core.problem import Granularity, Metrics, Minimize, Problem
from kdvfs_sim.core.switching import DRAIN, FOLLOW, FREE, LOOKAHEAD, Boundary, SwitchProtocol, SwitchTable
from kdvfs_sim.optimize.baselines import locked
from kdvfs_sim.testing.notation import problem, trace
from kdvfs_sim.testing.strategies.costs import physical_cost_tables
from kdvfs_sim.trace.table import Trace

ALL = (FREE, DRAIN, FOLLOW, LOOKAHEAD)
SLACKS = (0.0, 0.006, 0.1, 0.3, 1.0)


# strategies are made once: making one costs more than drawing from it
_RATIO = st.sampled_from([1.0, 0.5, 2.0, 1.5]) | st.floats(0.5, 3)
_WATTS = st.sampled_from([100.0, 50.0]) | st.floats(1, 500)
_LONGER, _LESS = st.sampled_from([1.5, 1.25, 2.0, 1.0]), st.sampled_from([50.0, 40.0, 70.0])
_IDLE = st.sampled_from([10.0, 0.0, 50.0])
_CALL, _LANDS = st.sampled_from([0, 20, 400]), st.sampled_from([0, 1, 30, 500, 10**6])
_STALL, _EXTRA = st.sampled_from([0, 0, 10]), st.sampled_from([0, 0, 1])
_CAP_W = st.sampled_from([None, 150.0, 60.0])
_COIN = st.booleans()


@cache
def _times(values: st.SearchStrategy[Any], n: int) -> st.SearchStrategy[list[Any]]:
    return st.lists(values, min_size=n, max_size=n)


@cache
def _launches(
    least: int, most: int, durations_ns: tuple[int, ...]
) -> st.SearchStrategy[list[tuple[int, int, int]]]:
    """(kind of two, duration, gap before it)."""
    launch = st.tuples(st.integers(0, 1), st.sampled_from(durations_ns), st.sampled_from([0, 0, 7, 100]))
    return st.lists(launch, min_size=least, max_size=most)


@st.composite
def chains(
    draw: st.DrawFn,
    *,
    max_launches: int = 5,
    min_launches: int = 1,
    durations_ns: tuple[int, ...] = (1000, 300, 50, 0),
) -> Trace:
    """One stream of two kinds without a host, with and without gaps."""
    rows: list[tuple[int, int, int]] = []
    now = 0
    for kind, duration, gap in draw(_launches(min_launches, max_launches, durations_ns)):
        now += gap if rows else 0
        rows.append((kind, now, duration))
        now += duration
    return trace(*rows, n_kinds=2)


@st.composite
def _any_costs(draw: st.DrawFn, n_kinds: int, max_clocks: int, tempting: bool) -> CostTable:
    """Tempting: other clocks than AUTO take longer and less energy. Else adversarial: any time, any power,
    also more of both. Kinds may be twins."""
    n = max(draw(st.integers(1, max_clocks)), draw(st.integers(1, max_clocks)))
    n_drawn = 1 if draw(_COIN) else n_kinds

    def grid(values: st.SearchStrategy[float]) -> Any:
        drawn = np.array(draw(_times(values, n_drawn * n))).reshape(n_drawn, n)
        return np.repeat(drawn, n_kinds // n_drawn, axis=0)

    time, power = grid(_LONGER if tempting else _RATIO), grid(_LESS if tempting else _WATTS)
    if tempting:
        time[:, 0], power[:, 0] = 1.0, 100.0
    return CostTable(
        kinds=tuple(f"k{i}" for i in range(n_kinds)),
        clocks=(AUTO_CLOCKS, *(Clocks(300 * (i + 1), AUTO) for i in range(n - 1))),
        duration_ns=time,
        power_w=power,
        effective=np.tile(np.arange(n, dtype=np.int32), (n_kinds, 1)),
        idle_power_w=np.array(draw(_times(_IDLE, n))),
        recorded=0,
        requestable=np.ones(n, dtype=np.bool_),
    )


@st.composite
def _switching(draw: st.DrawFn, n: int, stalls: bool) -> SwitchTable:
    """The same for every pair, or a cost of its own for each; from nothing to longer than any small trace."""
    if draw(_COIN):
        return SwitchTable.uniform(n, host_call_ns=draw(_CALL), switching_ns=draw(_LANDS))

    def table(values: st.SearchStrategy[int]) -> Any:
        cells = np.array(draw(_times(values, n * n)), dtype=np.int64)
        return cells.reshape(n, n) * (1 - np.eye(n, dtype=np.int64))

    switching = table(_LANDS)
    return SwitchTable(
        host_call_ns=table(_CALL),
        switching_ns=switching,
        stall_ns=np.minimum(table(_STALL), switching) if stalls else 0 * switching,
        extra_energy_j=table(_EXTRA) * 1e-8,
    )


@cache
def _costs(n_kinds: int, max_clocks: int, tempting: bool) -> st.SearchStrategy[CostTable]:
    if tempting:
        return _any_costs(n_kinds, max_clocks, True)
    any_costs = _any_costs(n_kinds, max_clocks, False)
    physical = physical_cost_tables(n_kinds=n_kinds, max_clocks=max_clocks)
    return _any_costs(n_kinds, max_clocks, True) | any_costs | physical


@st.composite
def problems(
    draw: st.DrawFn,
    *,
    recordings: st.SearchStrategy[Trace] | None = None,
    protocols: Sequence[SwitchProtocol] = ALL,
    boundaries: Sequence[Boundary] = ("periodic", "one-shot"),
    granularities: Sequence[Granularity] = ("launch",),
    minimize: Sequence[Minimize] = ("energy",),
    slacks: Sequence[float] = SLACKS,
    max_clocks: int = 3,
    stalls: bool = True,
    tempting: bool = False,
    capped: bool = False,
) -> Problem:
    """At most five launches of two kinds at three clocks; switching from nothing to longer than all.

    ``slacks``: of the time budget over AUTO. A problem that minimizes time has an energy budget instead,
    as much as AUTO takes or less; EDP and ED²P have that or none. Switch costs may differ by pair.
    ``tempting``: every other clock takes longer and less energy. ``capped``: kernels that run at once may
    share a power limit.
    """
    recording = draw(chains() if recordings is None else recordings)
    n_kinds = len(recording.kinds)
    table = draw(_costs(n_kinds, max_clocks, tempting))
    if capped:
        table = replace(table, cap_w=draw(_CAP_W))
    protocol = draw(st.sampled_from(protocols))
    if protocol.charged:
        protocol = protocol.with_timing(
            relaunch_ns=draw(st.sampled_from([0, 10])) if protocol.drains else 0,
            trigger_ns=draw(st.sampled_from([0, 5])) if protocol == FOLLOW else 0,
        )
    boundary = draw(st.sampled_from(boundaries))
    n = table.n_clocks
    switches = draw(_switching(n, stalls)) if protocol.charged else SwitchTable.zero(n)
    posed = problem(
        recording,
        table,
        switches,
        protocol=protocol,
        boundary=boundary,
        stream=_busiest(recording),
        start=draw(st.integers(0, n - 1)) if boundary == "one-shot" else None,
        granularity=draw(st.sampled_from(granularities)),
    )
    what = draw(st.sampled_from(minimize))
    auto = at_auto(posed)
    objective = replace(posed.objective, minimize=what)
    if what == "energy":
        objective = replace(objective, max_time_s=auto.time_s * (1 + draw(st.sampled_from(slacks))))
    elif what == "time" or draw(st.booleans()):
        share = draw(st.sampled_from([1.0, 0.9, 0.6]))
        objective = replace(objective, max_energy_j=max(0.0, auto.energy_j or 0.0) * share)
    return replace(posed, objective=objective)


def at_auto(posed: Problem) -> Metrics:
    """What AUTO for everything gives: what slack is measured from."""
    return posed.evaluate(locked(posed, AUTO_CLOCKS))


def _busiest(recording: Trace) -> tuple[int, int]:
    """The first of the streams with most time in operations."""
    busy: dict[tuple[int, int], int] = {}
    for device, stream, ns in recording.ops.select("device", "stream", "duration_ns").rows():
        busy[device, stream] = busy.get((device, stream), 0) + ns
    return max(busy, key=lambda queue: busy[queue])
