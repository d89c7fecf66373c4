"""The voltage curve of the H200's entry against loads whose clock the power budget moved."""

from __future__ import annotations

import numpy as np
import pytest
from h200_loads import fitted_rise, misfit, predicted_errors, watched_loads

from kdvfs_sim.gpu.catalogue import load_gpu


def test_the_rise_of_the_entry_is_what_all_loads_agree_on() -> None:
    loads, rise = watched_loads(), load_gpu("h200").need("voltage.rise")
    assert len(loads) == 12
    assert fitted_rise(loads) == pytest.approx(rise.value, abs=0.002)
    assert misfit(loads, rise.value) < 0.0125
    assert misfit(loads, 0.24) > 2 * misfit(loads, rise.value), "a curve that did not matter would not do"
    assert misfit(loads, 0.10) > 1.5 * misfit(loads, rise.value)


def test_no_load_decides() -> None:
    loads = watched_loads()
    for name in loads:
        others = {other: load for other, load in loads.items() if other != name}
        assert fitted_rise(others) == pytest.approx(fitted_rise(loads), abs=0.004)


def test_the_knee_is_not_known_but_lies_below_1350_mhz() -> None:
    """Nothing was read below 1200 MHz: any knee up to there is as good."""
    loads, knee = watched_loads(), load_gpu("h200").need("voltage.knee_mhz")
    assert min(load.sm_mhz[0] for load in loads.values()) > 1195
    least = misfit(loads, fitted_rise(loads))
    assert knee.low is not None
    assert knee.high is not None
    for knee_mhz in (knee.low, 1000.0, 1200.0):
        assert misfit(loads, fitted_rise(loads, knee_mhz), knee_mhz) == pytest.approx(least, rel=0.01)
    above = knee.high + 100
    assert misfit(loads, fitted_rise(loads, above), above) > 1.3 * least


def test_one_reading_predicts_a_loads_power_at_lower_clocks() -> None:
    """V(f) from the other loads, the category's share of work, and how long the load takes there."""
    errors = np.abs(np.concatenate([predicted_errors(name) for name in watched_loads()]))
    assert np.median(errors) < 0.013
    assert np.percentile(errors, 95) < 0.045
