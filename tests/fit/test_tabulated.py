"""The table: what was measured comes back, what lies between is interpolated in logs, the rest is unknown."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from .synthetic import readings
from .tabulated import interpolated

GRID = readings(n_kernels=3, mem_mhz=(4000, 5000))


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
