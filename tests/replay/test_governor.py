"""The dynamic governor: the steady one when it takes no time, and plausible when it does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdvfs_sim.core.clocks import AUTO_CLOCKS, Clocks
from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.core.errors import InputError
from kdvfs_sim.core.governor import DynamicGovernor, PowerBudget
from kdvfs_sim.replay.program import Program
from kdvfs_sim.replay.simulate import replay
from kdvfs_sim.testing.strategies import Scene, scenes, traces
from tests.replay.test_laws import chain, check_same, run, times

AT_ONCE = DynamicGovernor(sense_ns=0, fall_ns=0, rise_ns=0)
BUDGET = PowerBudget(
    tick_ns=10_000_000, n_ticks=20, gain=4.0, burst=1.1, burst_gain=0.5, most=1.2, least=0.9, rise=0.05
)
MHZ = tuple(range(900, 1981, 30))


def capped(*, kinds_at: tuple[int, ...] = (1500, 1980, 1980)) -> CostTable:
    """A GPU whose first kind of kernel runs at 1500 MHz under the cap, and whose others do not."""
    clocks = (AUTO_CLOCKS, *(Clocks(mhz, 1000) for mhz in MHZ))
    sm = np.asarray([MHZ[-1], *MHZ], dtype=float)
    top = np.asarray(kinds_at)
    effective = np.asarray([[1 + MHZ.index(min(mhz, int(f))) for f in sm] for mhz in top], dtype=np.int32)
    return CostTable(
        kinds=("gemm", "copy", "norm"),
        clocks=clocks,
        duration_ns=np.stack([1e9 / sm] * 3),
        power_w=np.stack([sm / 3] * 3),
        effective=effective,
        idle_power_w=np.full(len(clocks), 100.0),
        recorded=0,
        requestable=np.ones(len(clocks), dtype=bool),
    )


@given(scenes(trace=traces(n_devices=2)))
def test_a_governor_that_takes_no_time_is_the_steady_one(scene: Scene) -> None:
    steady, dynamic = run(scene), run(scene, governor=AT_ONCE)
    assert times(steady) == times(dynamic)
    check_same(steady.metrics, dynamic.metrics)


@given(
    scenes(trace=traces(n_devices=2)),
    st.builds(
        DynamicGovernor,
        sense_ns=st.integers(0, 9),
        fall_ns=st.integers(0, 9),
        rise_ns=st.integers(0, 9),
        steps=st.integers(1, 4),
        overshoot=st.sampled_from([0.0, 0.5]),
        budget=st.none()
        | st.builds(
            PowerBudget,
            tick_ns=st.integers(1, 9),
            n_ticks=st.integers(1, 4),
            gain=st.sampled_from([0.0, 4.0]),
            burst=st.sampled_from([1.0, 1.2]),
            burst_gain=st.sampled_from([0.0, 0.5]),
            most=st.just(1.2),
            least=st.sampled_from([0.0, 0.9]),
            rise=st.sampled_from([0.05, 1.0]),
        ),
    ),
)
def test_any_governor_leaves_a_whole_timeline(scene: Scene, governor: DynamicGovernor) -> None:
    result = run(scene, governor=governor)  # intervals and energy are checked by every run
    start, end = times(result)
    assert all(s <= e for s, e in zip(start, end, strict=True))


def test_the_clock_falls_at_a_heavy_kernel_and_rises_after_it() -> None:
    ms = 1_000_000
    program = Program.from_trace(chain([(1, 0, ms), (0, ms, 2 * ms), (1, 3 * ms, ms)]))
    governor = DynamicGovernor(sense_ns=20_000, fall_ns=100_000, rise_ns=150_000, steps=5)
    result = replay(program, costs=capped(), governor=governor)
    rows = result.timeline.intervals.select("start_ns", "effective_sm_mhz").rows()
    falls = [(t, mhz) for t, mhz in rows if ms < t < 2 * ms]
    assert [mhz for _, mhz in falls] == sorted((mhz for _, mhz in falls), reverse=True)
    assert falls[0][0] == ms + 20_000 + 20_000
    assert falls[-1] == (ms + 120_000, 1500)
    gemm_end = result.timeline.end_ns[1]
    rises = [(t, mhz) for t, mhz in rows if t > gemm_end]
    assert rises[-1] == (gemm_end + 170_000, 1980)
    steady = replay(program, costs=capped())
    # it runs faster than the cap allows for 120 microseconds, and slower afterwards for 170
    assert result.timeline.end_ns[1] < steady.timeline.end_ns[1]
    assert result.timeline.end_ns[2] - gemm_end > ms


def test_overshoot_goes_below_and_comes_back() -> None:
    ms = 1_000_000
    program = Program.from_trace(chain([(1, 0, ms), (0, ms, 3 * ms)]))
    governor = DynamicGovernor(sense_ns=0, fall_ns=100_000, rise_ns=200_000, steps=4, overshoot=0.25)
    rows = replay(program, costs=capped(), governor=governor).timeline.intervals
    lowest = rows["effective_sm_mhz"].min()
    assert lowest == 1380  # 1500 less a quarter of 480
    assert rows["effective_sm_mhz"][-1] == 1500


def test_loads_shorter_than_its_sense_do_not_move_it_for_ever() -> None:
    us = 1_000
    busy = [(0, i * 11 * us, 10 * us) for i in range(40)]
    program = Program.from_trace(chain(busy))
    governor = DynamicGovernor(sense_ns=50 * us, fall_ns=100 * us, rise_ns=100 * us)
    rows = replay(program, costs=capped(), governor=governor).timeline.intervals
    late = rows.filter(pl.col("start_ns") > 200 * us, pl.col("n_running") == 1)
    assert set(late["effective_sm_mhz"]) == {1500}


def test_a_governor_needs_costs() -> None:
    program = Program.from_trace(chain([(0, 0, 5)]))
    with pytest.raises(InputError, match="needs a cost table"):
        replay(program, governor=AT_ONCE)


def held(governor: DynamicGovernor | None, *, kind: int = 0, n: int = 40, **how: Any) -> pl.DataFrame:
    """What a device does under one kind of kernel, 400 ms of it; only the first is over the cap of 500 W."""
    costs = replace(capped(), cap_w=500.0)
    ms = 1_000_000
    program = Program.from_trace(chain([(kind, 10 * i * ms, 10 * ms) for i in range(n)]))
    how = {"boundary": "one-shot", "costs": costs, **how}
    return replay(program, governor=governor, **how).timeline.intervals


def mean_w(rows: pl.DataFrame) -> float:
    length = rows["end_ns"] - rows["start_ns"]
    return float((rows["power_w"] * length).sum() / length.sum())


def with_budget(budget: PowerBudget = BUDGET) -> DynamicGovernor:
    return replace(AT_ONCE, budget=budget)


def test_a_rested_device_may_draw_more_until_the_mean_meets_the_cap() -> None:
    ms = 1_000_000
    rows = held(with_budget())
    starts = rows["start_ns"]
    assert rows["effective_sm_mhz"][0] == 1800  # 600 W: 1.2 of the cap
    assert set(rows.filter((starts > 80 * ms) & (starts < 150 * ms))["power_w"]) == {550.0}
    assert rows["power_w"].min() == 450.0  # the fall that makes up for it
    assert mean_w(rows.filter(starts >= 150 * ms)) == pytest.approx(500.0, rel=0.02)
    steady = held(AT_ONCE)
    assert set(steady["power_w"]) == {500.0}
    assert rows["end_ns"][-1] < steady["end_ns"][-1]


def allowed_w(rows: pl.DataFrame, budget: PowerBudget, cap_w: float, idle_w: float) -> list[float]:
    """What is allowed from each tick on, from the power that a finished replay shows."""
    tick, n = budget.tick_ns, budget.n_ticks
    begin, end, power = (rows[name].to_numpy() for name in ("start_ns", "end_ns", "power_w"))
    edges = np.arange(0, end[-1] + tick, tick)
    drawn = [
        (np.clip(np.minimum(end, e + tick) - np.maximum(begin, e), 0, None) @ power) / tick for e in edges
    ]
    limit_w = burst_w = budget.most * cap_w
    allowed = [limit_w]
    for i, power_w in enumerate(drawn):
        mean_w = np.mean([*([idle_w] * n), *drawn[: i + 1]][-n:])
        burst_w = min(budget.most * cap_w, burst_w + budget.burst_gain * (budget.burst * cap_w - power_w))
        by_mean_w = max(budget.least * cap_w, cap_w + budget.gain * (cap_w - mean_w))
        limit_w = min(burst_w, by_mean_w, limit_w + budget.rise * cap_w)
        allowed.append(limit_w)
    return allowed


@given(
    st.lists(st.tuples(st.integers(1, 40), st.sampled_from([0, 0, 3, 25])), min_size=5, max_size=40),
    st.sampled_from([0.0, 0.9]),
    st.sampled_from([0.5, 4.0]),
)
def test_every_clock_is_the_highest_that_the_power_drawn_before_allows(
    work: list[tuple[int, int]], least: float, gain: float
) -> None:
    """An independent account: the allowance recomputed from the finished timeline."""
    ms, at, rows = 1_000_000, 0, []
    for length, gap in work:
        rows.append((0, at * ms, length * ms))
        at += length + gap
    budget = replace(BUDGET, least=least, gain=gain)
    costs = replace(capped(), cap_w=500.0)
    program = Program.from_trace(chain(rows))
    result = replay(program, costs=costs, governor=with_budget(budget), boundary="one-shot")
    intervals = result.timeline.intervals
    allowed = allowed_w(intervals, budget, 500.0, 100.0)
    for begin, sm_mhz, n_running in intervals.select("start_ns", "effective_sm_mhz", "n_running").rows():
        if n_running:
            limit_w = allowed[begin // budget.tick_ns]
            assert abs(sm_mhz - max([900, *(mhz for mhz in MHZ if mhz / 3 <= limit_w)])) <= (
                0 if min(abs(mhz / 3 - limit_w) for mhz in MHZ) > 1e-6 else 30
            )


def test_a_rest_gives_the_allowance_back() -> None:
    ms = 1_000_000
    work = [10 * i * ms for i in range(30)]
    program = Program.from_trace(chain([(0, t, 10 * ms) for t in [*work, *(t + 600 * ms for t in work)]]))
    rows = replay(
        program, costs=replace(capped(), cap_w=500.0), governor=with_budget(), boundary="one-shot"
    ).timeline.intervals.filter(pl.col("n_running") == 1)
    first, second = rows.filter(pl.col("start_ns") < 400 * ms), rows.filter(pl.col("start_ns") > 400 * ms)
    assert second["power_w"].max() == pytest.approx(first["power_w"].max())


@pytest.mark.parametrize("kind", [1, 2])
def test_a_kind_that_the_cap_does_not_hold_is_not_moved(kind: int) -> None:
    power_w = capped().power_w.copy()
    power_w[kind] = 400.0
    costs = replace(capped(), cap_w=500.0, power_w=power_w)
    assert set(held(with_budget(), kind=kind, costs=costs)["effective_sm_mhz"]) == {1980}


def test_where_nothing_rests_or_caps_there_is_no_budget() -> None:
    for how in ({"boundary": "periodic"}, {"costs": capped()}):
        assert held(with_budget(), **how).equals(held(AT_ONCE, **how))
    unknown = replace(capped(), cap_w=500.0, power_w=np.full_like(capped().power_w, np.nan))
    assert set(held(with_budget(), costs=unknown)["effective_sm_mhz"]) == {1500}


def test_a_category_has_a_burst_of_its_own() -> None:
    category = chain([(0, 0, 1)]).kinds[0].category
    for name, held_w in ((category, 500.0), ("gemm", 550.0)):
        rows = held(with_budget(replace(BUDGET, burst_of=((name, 1.0),))))
        ms, starts = 1_000_000, rows["start_ns"]
        assert set(rows.filter((starts > 80 * ms) & (starts < 150 * ms))["power_w"]) == {held_w}


def test_a_budget_that_makes_no_sense_is_refused() -> None:
    for wrong in ({"tick_ns": 0}, {"n_ticks": 0}, {"gain": -1.0}, {"rise": 0.0}):
        with pytest.raises(InputError, match="are the least"):
            replace(BUDGET, **wrong)
    for wrong in ({"burst": 0.9}, {"burst": 1.3}, {"burst_of": (("gemm", 2.0),)}, {"least": 1.1}):
        with pytest.raises(InputError, match="in this order are right"):
            replace(BUDGET, **wrong)
