"""Few measurements: curves from three clocks, from one, or from a trace, and intervals that hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kdvfs_sim.core.clocks import AUTO, Clocks
from kdvfs_sim.core.errors import InputError
from kdvfs_sim.gpu.fit.crossval import calibrated, cluster_p_value, cross_validate, outside
from kdvfs_sim.gpu.fit.curves import time_shapes
from kdvfs_sim.gpu.fit.few import fit_shared, with_clocks
from kdvfs_sim.gpu.fit.readings import Floats, Readings
from kdvfs_sim.gpu.fit.shared import NOISES, ClockSpace, learn

from .synthetic import readings

NOISE = 0.003


def some(data: Readings, *, kernels: slice, columns: list[int]) -> Readings:
    """All readings of the other kernels; of ``kernels`` those of ``columns``."""
    mask = np.ones(data.time_s.shape, dtype=np.bool_)
    mask[kernels] = np.isin(np.arange(data.n_clocks), columns)
    return data.keep(mask)


@pytest.fixture(scope="module")
def noisy() -> Readings:
    return readings(n_kernels=10, noise=NOISE)


@pytest.fixture(scope="module")
def clean() -> Readings:
    return readings(n_kernels=10)


def test_three_clocks_of_a_kernel_give_all(noisy: Readings, clean: Readings) -> None:
    model = fit_shared(some(noisy, kernels=slice(3, 5), columns=[0, 8, 15]))
    for predicted, truth in ((model.time_s(), clean.time_s), (model.power_w(), clean.power_w)):
        off = np.abs(predicted.middle / truth - 1)
        assert off[3:5].max() < 0.03
        inside = (predicted.low <= truth) & (truth <= predicted.high)
        assert inside[3:5].mean() >= 0.8


def test_one_clock_gives_an_honest_range(noisy: Readings, clean: Readings) -> None:
    model = fit_shared(some(noisy, kernels=slice(3, 5), columns=[15]))
    time = model.time_s()
    inside = (time.low <= clean.time_s) & (clean.time_s <= time.high)
    assert inside[3:5].mean() >= 0.8
    width = np.log(time.high / time.low)
    assert (width[3:5, 0] > 3 * width[[0, 1, 2], 0].max()).all(), "what was not read is known less well"
    assert (np.diff(width[3:5]) < 0.02).all(), "and the less the further from the reading"


def test_a_trace_gives_times_of_its_own_and_powers_of_others(noisy: Readings, clean: Readings) -> None:
    data = some(noisy, kernels=slice(3, 4), columns=[15])
    power = data.power_w.copy()
    power[3] = np.nan
    model = fit_shared(replace(data, power_w=power))
    predicted = model.power_w()
    assert (predicted.low[3] < clean.power_w[3]).all()
    assert (clean.power_w[3] < predicted.high[3]).all()
    assert predicted.high[3, 15] / predicted.low[3, 15] > 1.5
    assert model.time_s().middle[3, 15] == pytest.approx(noisy.time_s[3, 15], rel=0.005)
    unseen = replace(data, time_s=np.where(np.arange(10)[:, None] == 3, np.nan, data.time_s))
    assert np.isnan(fit_shared(unseen).time_s().middle[3]).all(), "no time at all is no time"


def test_more_readings_never_make_the_range_wider_by_much(noisy: Readings) -> None:
    widths = []
    for columns in ([15], [0, 15], [0, 8, 15], list(range(16))):
        time = fit_shared(some(noisy, kernels=slice(3, 4), columns=columns)).time_s()
        widths.append(np.log(time.high[3] / time.low[3]).mean())
    assert widths == sorted(widths, reverse=True)


def test_repeats_narrow_the_range(noisy: Readings) -> None:
    often = replace(noisy, n_repeats=100 * noisy.n_repeats)
    once, many = (fit_shared(data, reading_noise=0.02).time_s() for data in (noisy, often))
    assert np.log(many.high / many.low).mean() < 0.7 * np.log(once.high / once.low).mean()


def test_the_common_curve_is_learned_from_all(noisy: Readings) -> None:
    """A bump of 3 % at one clock that no form has: known of a kernel that was never read there."""
    bump = np.where(np.arange(16) == 11, 1.03, 1.0)
    plain, bumped = (
        fit_shared(some(replace(noisy, time_s=noisy.time_s * by), kernels=slice(4, 5), columns=[0, 5, 15]))
        for by in (np.ones(16), bump)
    )
    ratio = bumped.time_s().middle[4] / plain.time_s().middle[4]
    assert ratio[11] == pytest.approx(1.03, abs=0.008)
    assert np.abs(np.delete(ratio, 11) - 1).max() < 0.01


def test_posterior_equals_the_slow_one(noisy: Readings) -> None:
    """One kernel, no common curve to speak of: Bayes' rule written out over shapes and noises."""
    sm, mem = noisy.sm_mhz, noisy.mem_mhz
    space, shapes = ClockSpace.of(sm, mem), time_shapes(sm, mem, 15)[::40]
    log = np.log(noisy.time_s[4])[None] - np.log(noisy.time_s[4, 15])
    log[0, [1, 2, 4, 6, 7, 9, 12, 13]] = np.nan
    noise = np.full(log.shape, NOISE)
    model = learn(space, [shapes], log, noise, ("other",))
    seen = np.flatnonzero(~np.isnan(log[0]))
    weights, means = [], []
    for number in range(len(NOISES)):
        covariance = space.own[number][np.ix_(seen, seen)] + NOISE**2 * np.eye(seen.size)
        for h, shape in enumerate(shapes):
            curve = shape + model.common
            residual = log[0, seen] - curve[seen]
            solved = np.linalg.solve(covariance, residual)
            prior = np.log(model.noise_weights[number]) + np.log(model.shape_weights[0, h])
            weights.append(prior - 0.5 * residual @ solved - 0.5 * np.linalg.slogdet(covariance)[1])
            means.append(curve + space.own[number][:, seen] @ solved)
    weight = np.exp(np.array(weights) - max(weights))
    slow: Floats = (weight / weight.sum()) @ np.array(means)
    np.testing.assert_allclose(model.mean(0), slow, atol=2e-4)


def test_draws_are_about_the_mean_and_right_at_the_readings(noisy: Readings) -> None:
    model = fit_shared(noisy)
    drawn = model.time.draws(4, 4000, np.random.default_rng(0))
    np.testing.assert_allclose(drawn.mean(axis=0), model.time.mean(4), atol=5e-4)
    relative = model.relative_draws(4, 50, np.random.default_rng(0))[0]
    assert (relative[:, 15] == 0.0).all(), "the baseline relative to itself"


def test_new_clocks_are_predicted_between_those_read(noisy: Readings, clean: Readings) -> None:
    grown = with_clocks(noisy, [Clocks(1230, 5000), Clocks(600, 5000)])
    assert grown.n_clocks == noisy.n_clocks + 1
    time = fit_shared(grown).time_s()
    column = grown.column(Clocks(1230, 5000))
    # 1230 MHz lies half-way between two clocks that were read
    half_way = np.sqrt(clean.time_s[:, 10] * clean.time_s[:, 11])
    np.testing.assert_allclose(time.middle[:, column], half_way, rtol=0.01)
    assert with_clocks(noisy, []) is noisy
    with pytest.raises(InputError, match="a model predicts at numeric clocks"):
        with_clocks(noisy, [Clocks(AUTO, 5000)])
    with pytest.raises(InputError, match="no reading at sm=1,mem=1"):
        noisy.column(Clocks(1, 1))


@pytest.mark.parametrize("left_out", ["clock", "kernel", "trace"])
def test_left_out_readings_are_predicted_and_their_intervals_hold(noisy: Readings, left_out: str) -> None:
    found = cross_validate(noisy, left_out, calibrate=left_out == "clock", folds=3)  # type: ignore[arg-type]
    limits = {"clock": (1.0, 3.0), "kernel": (20.0, 20.0), "trace": (20.0, 50.0)}[left_out]
    for quantity, limit in zip(("time", "power"), limits, strict=True):
        coverage = found.coverage(quantity)  # type: ignore[arg-type]
        if left_out == "clock" or quantity == "time":
            assert coverage.p_value > 0.01, (quantity, coverage)
        assert coverage.share > 0.65
        assert found.errors(quantity).median_pct < limit, quantity  # type: ignore[arg-type]
    never_given = found.fold >= 0
    assert np.isnan(found.time.middle[~never_given]).all()


def test_calibration_widens_a_model_that_is_too_sure(noisy: Readings) -> None:
    jumpy = replace(
        noisy, time_s=noisy.time_s * np.exp(0.03 * np.sin(np.arange(16) * 2.1 + np.arange(10)[:, None]))
    )
    model = fit_shared(jumpy)
    widened = calibrated(model, folds=3)
    assert (widened.time_widen > 1.0).mean() > 0.9
    assert widened.time_widen.shape == jumpy.time_s.shape


def test_clocks_outside_what_a_kernel_was_read_at() -> None:
    data = readings(n_kernels=2, mem_mhz=(4000, 5000))
    mask = np.ones(data.time_s.shape, dtype=np.bool_)
    mask[0, (data.sm_mhz > 1200) | (data.mem_mhz < 5000)] = False
    beyond = outside(data.keep(mask))
    assert (beyond[0] == ((data.sm_mhz > 1200) | (data.mem_mhz < 5000))).all()
    assert not beyond[1].any()


def test_p_values_know_clusters() -> None:
    groups = np.repeat(np.arange(20), 10)
    known = np.ones(200, dtype=np.bool_)
    rng = np.random.default_rng(0)
    alone = [cluster_p_value(rng.random(200) < 0.9, known, groups) for _ in range(300)]
    assert np.mean(np.array(alone) < 0.05) < 0.09
    together = [cluster_p_value(np.repeat(rng.random(20) < 0.9, 10), known, groups) for _ in range(300)]
    assert np.mean(np.array(together) < 0.05) < 0.2
    assert cluster_p_value(rng.random(200) < 0.6, known, groups) < 0.001
    assert cluster_p_value(known.copy(), known, groups) < 0.001, "always inside is not 90 % either"
