"""Latency fits: they find what made the times, whatever it was, and say how well they know it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdvfs_sim.core.errors import InputError
from kdvfs_sim.gpu.fit.latency_fit import FORMS, LatencyForm, fit_latency
from kdvfs_sim.gpu.fit.readings import Floats, Readings
from kdvfs_sim.gpu.fit.residuals import margin_factor, summarize
from kdvfs_sim.gpu.latency import p_norm

from .synthetic import readings

GRID_SM = np.tile(np.arange(600.0, 1501.0, 100.0), 3)
GRID_MEM = np.repeat([3000.0, 4000.0, 5000.0], 10)


def of_times(time_s: Floats, sm_mhz: Floats = GRID_SM, mem_mhz: Floats = GRID_MEM) -> Readings:
    blank = np.full_like(time_s, np.nan)
    return Readings(
        kernels=tuple(f"k{i}" for i in range(time_s.shape[0])),
        categories=("other",) * time_s.shape[0],
        sm_mhz=sm_mhz,
        mem_mhz=mem_mhz,
        time_s=time_s,
        power_w=blank,
        sm_mhz_actual=blank,
        n_repeats=np.ones_like(time_s),
    )


def made(share: float, fixed: float, exponent: float, cap_mhz: float = np.inf) -> Floats:
    """(1, n_clocks) times of 1 s at the top."""
    slow = 1500.0 / np.minimum(GRID_SM, cap_mhz), 5000.0 / GRID_MEM
    bound = p_norm(share * slow[0], (1 - share) * slow[1], exponent)
    top = float(p_norm(np.array([share]), np.array([1 - share]), exponent)[0])
    return ((1 - fixed) * bound / top + fixed)[None]


@settings(max_examples=40)
@given(
    share=st.floats(0.0, 1.0),
    fixed=st.floats(0.0, 0.6),
    form=st.sampled_from(["sum", "max+c", "p2+c", "p4+c"]),
    scale=st.sampled_from([1e-6, 1.0, 1e3]),
)
def test_a_form_finds_what_it_made_in_any_unit(share: float, fixed: float, form: str, scale: float) -> None:
    exponent = FORMS[form].exponent
    assert exponent is not None
    found = fit_latency(of_times(scale * made(share, fixed, exponent)), form)
    assert found.errors.p95_pct < 0.15
    np.testing.assert_allclose(
        found.time_s(GRID_SM, GRID_MEM), scale * made(share, fixed, exponent), rtol=5e-3
    )


@settings(max_examples=15)
@given(share=st.floats(0.4, 0.6), fixed=st.floats(0.0, 0.2), exponent=st.sampled_from([1.5, 3.0, 8.0]))
def test_a_fitted_exponent_is_found_where_both_bounds_matter(
    share: float, fixed: float, exponent: float
) -> None:
    found = fit_latency(of_times(made(share, fixed, exponent)), "p+c")
    assert found.errors.p95_pct < 0.1
    assert found.exponent[0] == pytest.approx(exponent, rel=0.2)


def test_the_cap_is_the_clock_where_times_stop_falling() -> None:
    found = fit_latency(of_times(made(0.9, 0.02, 4.0, cap_mhz=1250.0)), "p4+c, cap")
    assert found.cap_mhz[0] == pytest.approx(1250.0, rel=0.02)
    assert found.errors.p95_pct < 0.2
    assert fit_latency(of_times(made(0.9, 0.02, 4.0)), "p4+c, cap").errors.p95_pct < 0.2


def test_memory_efficiency_is_shared_by_all_kernels() -> None:
    factor = np.array([0.92, 0.97, 1.0])
    times = np.concatenate(
        [
            p_norm(s * 1500 / GRID_SM, (1 - s) * 5000 / (GRID_MEM * np.repeat(factor, 10)), 4.0)[None]
            for s in (0.2, 0.4, 0.6)
        ]
    )
    found = fit_latency(of_times(times), "p4+c, eta")
    np.testing.assert_allclose(found.memory_efficiency, factor, atol=0.005)
    assert found.errors.p95_pct < 1.0
    assert fit_latency(of_times(times), "p4+c").errors.p95_pct > 2.0
    assert np.isnan(found.time_s([1000.0], [2000.0])).all(), "outside the states their factor is unknown"


def test_one_wild_reading_moves_little() -> None:
    times = made(0.6, 0.1, 4.0)
    wild = times.copy()
    wild[0, 7] *= 1.5
    found = fit_latency(of_times(wild), "p4+c").time_s(GRID_SM, GRID_MEM)
    others = np.arange(times.size) != 7
    assert np.abs(found / times - 1)[0, others].max() < 0.01


@pytest.mark.parametrize("form", ["sum", "p4+c"])
def test_the_fit_is_no_worse_than_a_search_by_brute_force(form: str) -> None:
    """Squared relative errors over a dense grid of shares and fixed parts, scale by least squares."""
    exponent = FORMS[form].exponent
    assert exponent is not None
    rng = np.random.default_rng(1)
    times = made(0.55, 0.15, 2.5) * np.exp(0.01 * rng.standard_normal(GRID_SM.size))
    best = np.inf
    for share in np.linspace(0, 1, 101):
        for fixed in np.linspace(0, 0.6, 61):
            shape = made(share, fixed, exponent) / times
            scale = shape.sum() / (shape * shape).sum()
            best = min(best, float(((scale * shape - 1) ** 2).sum()))
    found = fit_latency(of_times(times), form)
    assert float((np.expm1(-found.log_residual) ** 2).sum()) < best * 1.02


def test_standard_errors_cover_the_truth() -> None:
    rng = np.random.default_rng(0)
    truth = fit_latency(of_times(made(0.5, 0.1, 4.0)))
    inside = []
    for _ in range(40):
        noisy = made(0.5, 0.1, 4.0) * np.exp(0.005 * rng.standard_normal(GRID_SM.size))
        found = fit_latency(of_times(noisy))
        for name, i in (("sm_s_mhz", 0), ("memory_s_mhz", 1), ("fixed_s", 2)):
            off = abs(getattr(found, name)[0] - getattr(truth, name)[0])
            inside.append(off < 2 * found.standard_error[0, i])
    assert 0.85 < np.mean(inside) <= 1.0


def test_what_is_not_determined_has_no_standard_error() -> None:
    memory_bound = fit_latency(of_times(made(0.0, 0.0, 4.0)))
    assert np.isnan(memory_bound.standard_error[0, 0]), "the SM-bound part is at its bound of 0"
    assert np.isnan(memory_bound.standard_error[0, 3]), "the exponent was not fitted"
    three = of_times(made(0.5, 0.1, 4.0)).keep(np.isin(np.arange(30), [0, 5, 9]))
    assert np.isnan(fit_latency(three).standard_error).all()


def test_clocks_as_read_are_used_where_they_were_read() -> None:
    """A kernel held at 1200 MHz: as requested its times make no sense."""
    asked = of_times(made(1.0, 0.0, 4.0, cap_mhz=1200.0))
    read = replace(asked, sm_mhz_actual=np.minimum(GRID_SM, 1200.0)[None])
    assert fit_latency(asked).errors.p95_pct > 1.0
    assert fit_latency(read).errors.p95_pct < 0.01


def test_margins_hold_at_their_level_on_new_readings() -> None:
    """Factor from half of the clocks, judged on the others; noise is all that is left out."""
    rng = np.random.default_rng(3)
    clean = readings(n_kernels=12)
    noisy = replace(clean, time_s=clean.time_s * np.exp(0.01 * rng.standard_normal(clean.time_s.shape)))
    even = np.arange(clean.n_clocks) % 2 == 0
    fit = fit_latency(noisy.keep(even))
    raised = fit.margin("p95")[:, None] * fit.time_s(clean.sm_mhz, clean.mem_mhz)
    assert (noisy.time_s <= raised)[:, ~even].mean() == pytest.approx(0.95, abs=0.05)
    assert (fit.margin(None) == 1.0).all()
    assert (fit.margin("p95") >= fit.margin("p60")).all()


def test_a_margin_of_one_kernel_is_drawn_towards_all() -> None:
    residual = np.zeros((3, 20))
    residual[2] = 0.1
    factors = margin_factor(residual, 0, "p95")
    assert factors[0] == factors[1] < factors[2] < np.exp(0.1) + 1e-9
    for wrong in ("95", "p100", "p49", "pp95", "p"):
        with pytest.raises(InputError, match="p50 to p99 is right"):
            margin_factor(residual, 0, wrong)


def test_summaries_skip_what_was_not_measured() -> None:
    assert summarize(np.array([np.nan, 0.01])).n_readings == 1
    assert np.isnan(summarize(np.full(3, np.nan)).median_pct)


def test_mistakes_are_named() -> None:
    with pytest.raises(InputError, match=r"latency form 'p3\+c': one of sum, max"):
        fit_latency(of_times(made(0.5, 0.1, 4.0)), "p3+c")
    with pytest.raises(InputError, match="k0 has no measured time"):
        fit_latency(of_times(np.full((1, 30), np.nan)))
    assert LatencyForm(name="x", exponent=3.0) == LatencyForm(name="x", exponent=3.0)
