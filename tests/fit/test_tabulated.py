"""The table: what was measured comes back, what lies between is interpolated in logs, the rest is unknown."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdvfs_sim.core.clocks import AUTO, AUTO_CLOCKS, Clocks
from kdvfs_sim.core.errors import InputError
from kdvfs_sim.gpu.fit.sweep import Sweep
from kdvfs_sim.gpu.fit.tabulated import interpolated, tabulated_costs

from .synthetic import readings, sweep

GRID = readings(n_kernels=3, mem_mhz=(4000, 5000))


def with_auto(clean: Sweep) -> Sweep:
    top = clean.rows.filter((pl.col("sm_mhz") == 1500) & (pl.col("mem_mhz") == 5000))
    auto = top.with_columns(sm_mhz=pl.lit(None, dtype=pl.Int64), mem_mhz=pl.lit(None, dtype=pl.Int64))
    return replace(clean, rows=pl.concat([clean.rows, auto]))


def test_measured_points_come_back_exactly() -> None:
    for values in (GRID.time_s, GRID.power_w):
        np.testing.assert_allclose(interpolated(GRID, values, GRID.sm_mhz, GRID.mem_mhz), values, rtol=1e-12)


@settings(max_examples=30)
@given(
    power=st.tuples(st.floats(-2, 2), st.floats(-2, 2)),
    sm=st.floats(600, 1500),
    mem=st.floats(4000, 5000),
)
def test_power_laws_are_interpolated_exactly(power: tuple[float, float], sm: float, mem: float) -> None:
    """Log-linear in both logs: what the interpolation assumes."""
    law = GRID.sm_mhz ** power[0] * GRID.mem_mhz ** power[1]
    found = interpolated(GRID, np.tile(law, (3, 1)), [sm], [mem])
    np.testing.assert_allclose(found, sm ** power[0] * mem ** power[1], rtol=1e-9)


@settings(max_examples=30)
@given(sm=st.floats(600, 1500), mem=st.floats(4000, 5000))
def test_between_neighbours_and_never_beyond(sm: float, mem: float) -> None:
    (time,) = interpolated(GRID.only([1]), GRID.time_s[[1]], [sm], [mem])
    beside = GRID.time_s[1, (abs(GRID.sm_mhz - sm) <= 60)]
    assert beside.min() * (1 - 1e-9) <= time[0] <= beside.max() * (1 + 1e-9)


def test_outside_what_was_measured_nothing_is_known() -> None:
    outside = interpolated(GRID, GRID.time_s, [599.0, 1501.0, 900.0], [5000.0, 5000.0, 3999.0])
    assert np.isnan(outside).all()
    hole = GRID.time_s.copy()
    hole[0, GRID.sm_mhz > 1200] = np.nan
    assert np.isnan(interpolated(GRID, hole, [1300.0], [5000.0])[0, 0])
    assert not np.isnan(interpolated(GRID, hole, [1300.0], [5000.0])[1:]).any()


def test_a_sweep_becomes_a_cost_table() -> None:
    costs = tabulated_costs(with_auto(sweep(n_kernels=3)), clocks=[Clocks(630, 5000), Clocks(600, 5000)])
    assert costs.recorded == costs.index(AUTO_CLOCKS)
    low, between, high = (costs.index(Clocks(mhz, 5000)) for mhz in (600, 630, 660))
    assert (costs.duration_ns[:, low] >= costs.duration_ns[:, between]).all()
    assert (costs.duration_ns[:, between] >= costs.duration_ns[:, high]).all()
    np.testing.assert_allclose(costs.duration_ns[:, low], 1e9 * readings(n_kernels=3).time_s[:, 0])


def test_auto_that_was_not_measured_is_refused() -> None:
    with pytest.raises(InputError, match="no row for the recorded clocks"):
        tabulated_costs(sweep(n_kernels=2))
    with pytest.raises(InputError, match="AUTO is between no two clocks"):
        tabulated_costs(with_auto(sweep(n_kernels=2)), clocks=[Clocks(AUTO, 5000)])
