"""Power fits: the voltage curve where powers determine it, and the reason where they do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import lsq_linear

from kdvfs_sim.core.errors import InputError
from kdvfs_sim.gpu.fit.power_fit import FORMS, fit_power
from kdvfs_sim.gpu.fit.voltage import relative_voltage

from .synthetic import FLOOR_W, KNEE_MHZ, RISE, readings


def test_knee_and_rise_are_found_and_their_ranges_hold_them() -> None:
    fit = fit_power(readings(noise=0.003, mem_mhz=(4000, 5000)))
    voltage = fit.voltage
    assert voltage is not None
    assert voltage.identifiable, voltage.reason
    assert voltage.knee_mhz == pytest.approx(KNEE_MHZ, rel=0.04)
    assert voltage.rise == pytest.approx(RISE, abs=0.05)
    low, high = voltage.knee_range_mhz
    assert low <= voltage.knee_mhz <= high
    assert fit.errors.p95_pct < 1.0


@settings(max_examples=3)
@given(seed=st.integers(0, 1000))
def test_without_noise_the_full_form_leaves_nothing(seed: int) -> None:
    data = readings(seed=seed, n_kernels=5)
    fit = fit_power(data)
    assert fit.errors.p95_pct < 0.3
    found = fit.power_w(data.sm_mhz, data.mem_mhz, data.time_s)
    np.testing.assert_allclose(found, data.power_w, rtol=5e-3)


def test_clocks_above_the_knee_alone_do_not_tell_the_voltage() -> None:
    above = readings(noise=0.005)
    above = above.keep(above.sm_mhz >= 1200)
    voltage = fit_power(above).voltage
    assert voltage is not None
    assert not voltage.identifiable
    assert voltage.reason


def test_a_flat_voltage_is_said_to_be_flat() -> None:
    flat = readings(noise=0.002)
    sm = flat.sm_mhz
    flat = replace(flat, power_w=(60 + 0.1 * sm) * np.linspace(1, 2, flat.n_kernels)[:, None])
    voltage = fit_power(flat).voltage
    assert voltage is not None
    assert not voltage.identifiable
    assert "a flat voltage" in voltage.reason


@pytest.mark.parametrize("form", ["a+bf", "a+bV2f", "a+bV2f+eV2/t"])
def test_coefficients_are_those_of_a_bounded_least_squares(form: str) -> None:
    """On data without outliers, where the robust loss is a square."""
    data = readings(noise=0.001)
    fit = fit_power(data, form)
    voltage = np.ones(data.n_clocks) if fit.voltage is None else fit.voltage.at(data.sm_mhz)
    for k in range(data.n_kernels):
        columns = {
            "linear": data.sm_mhz,
            "tree": voltage**2 * data.sm_mhz,
            "work": voltage**2 / data.time_s[k],
        }
        design = np.stack([np.ones(data.n_clocks), *(columns[t] for t in FORMS[form].terms)], axis=1)
        design /= data.power_w[k][:, None]
        scale = np.linalg.norm(design, axis=0)
        slow = lsq_linear(design / scale, np.ones(data.n_clocks), bounds=(0, np.inf), tol=1e-12).x / scale
        ours = np.array([fit.floor_w[k], *fit.coefficients[k]])
        cost = [float(((design @ x - 1) ** 2).sum()) for x in (ours, slow)]
        assert cost[0] <= cost[1] * 1.05 + 1e-9


def test_a_shared_floor_is_one_floor() -> None:
    fit = fit_power(readings(noise=0.002), "A+bV2f+eV2/t")
    assert np.ptp(fit.floor_w) == 0
    assert fit.floor_w[0] == pytest.approx(FLOOR_W, rel=0.35), "static and idle cannot be told apart"


def test_a_wild_power_moves_little() -> None:
    clean = readings()
    wild = clean.power_w.copy()
    wild[3, 5] *= 1.4
    fit = fit_power(replace(clean, power_w=wild), voltage=fit_power(clean).voltage)
    off = np.abs(fit.power_w(clean.sm_mhz, clean.mem_mhz, clean.time_s) / clean.power_w - 1)
    assert np.delete(off[3], 5).max() < 0.02


def test_margins_and_standard_errors() -> None:
    fit = fit_power(readings(noise=0.005))
    assert ((fit.margin("p95") > 1.0) & (fit.margin("p95") < 1.03)).all()
    known = fit.standard_error[~np.isnan(fit.standard_error)]
    assert known.size
    assert (known >= 0).all()


def test_the_voltage_is_one_up_to_the_knee() -> None:
    assert relative_voltage([500.0, 1000.0, 1250.0, 1500.0], 1000.0, 0.2, 1500.0) == pytest.approx(
        [1.0, 1.0, 1.1, 1.2]
    )


def test_mistakes_are_named() -> None:
    with pytest.raises(InputError, match="power form 'a': one of"):
        fit_power(readings(), "a")
    without = readings()
    without = replace(without, time_s=np.full_like(without.time_s, np.nan))
    with pytest.raises(InputError, match="kernel 0 has no power with a time"):
        fit_power(without)
    assert fit_power(without, "a+bV2f").errors.n_readings > 0
