"""The power budget of the H200's entry against loads watched from their first moment."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from h200_readings import (
    AGAIN,
    LOADS,
    MEAN_POWER,
    burst_w,
    changed,
    clock_at,
    falling_steps,
    load_clock,
    load_power,
    replay_watched,
)

from kdvfs_sim.gpu.catalogue import load_gpu
from kdvfs_sim.gpu.facts import GpuFacts
from kdvfs_sim.gpu.latency import Floats


@pytest.mark.parametrize("name", [*LOADS, AGAIN])
def test_a_load_falls_and_recovers_as_it_was_seen_to(name: str) -> None:
    """Falls to 0.75 of the clock, a second apart; a clock that stayed would be off by 160 MHz."""
    t_s, read_mhz = load_clock(name)
    found_mhz = clock_at(replay_watched(name), t_s + 0.01)
    assert np.sqrt(np.mean((found_mhz - read_mhz) ** 2)) < 35
    assert np.percentile(found_mhz, [5, 95]) == pytest.approx(np.percentile(read_mhz, [5, 95]), rel=0.05)
    assert read_mhz.std() > 130

    def first_fall_s(sm_mhz: Floats) -> float:
        return float(t_s[np.flatnonzero((sm_mhz < 0.95 * np.median(sm_mhz)) & (t_s > 0.3))[0]])

    assert first_fall_s(found_mhz) == pytest.approx(first_fall_s(read_mhz), abs=0.05)


@pytest.mark.parametrize(
    ("path", "factor"), [("window_ns", 0.8), ("window_ns", 1.2), ("gain", 0.4), ("least", 0.5)]
)
def test_another_budget_would_not_do(path: str, factor: float) -> None:
    gpu, path = load_gpu("h200"), f"governor.budget.{path}"
    other = changed(gpu, {path: factor * gpu.need(path).value})

    def miss_mhz(gpu: GpuFacts) -> float:
        errors = [clock_at(replay_watched(name, gpu), t_s + 0.01) - mhz for name, (t_s, mhz) in read.items()]
        return float(np.sqrt(np.mean(np.concatenate(errors) ** 2)))

    read = {name: load_clock(name) for name in LOADS}
    assert miss_mhz(other) > 1.3 * miss_mhz(gpu)


@pytest.mark.parametrize("name", LOADS)
def test_before_the_mean_meets_the_limit_power_is_held_at_the_burst_level(name: str) -> None:
    assert load_power(name, 0.2, 0.75) == pytest.approx(burst_w(load_gpu("h200")), rel=0.02)


def test_the_mean_over_two_falls_is_the_limit() -> None:
    begin_s, end_s = 0.77, 2.63
    for name in LOADS:
        assert load_power(name, begin_s, end_s) == pytest.approx(700.0, rel=0.03)
        rows = replay_watched(name).timeline.intervals
        rows = rows.filter((rows["start_ns"] >= begin_s * 1e9) & (rows["end_ns"] < end_s * 1e9))
        length_ns = rows["end_ns"] - rows["start_ns"]
        found_w = (rows["power_w"] * length_ns).sum() / length_ns.sum()
        assert found_w == pytest.approx(load_power(name, begin_s, end_s), rel=0.02)


def test_a_training_step_slows_down_once_as_in_its_recording() -> None:
    """Nothing is fitted to that recording. When its load had begun it does not say: only lengths compare."""
    read_ms, found_ms = (np.array(speeds) for speeds in falling_steps())
    assert read_ms[1] > 1.15 * read_ms[0]
    np.testing.assert_allclose(found_ms, read_ms, rtol=0.05)


def test_products_fall_too_which_is_not_reproduced_and_what_draws_less_than_the_limit_does_not() -> None:
    """What docs/validation/h200.md says of the runs of products and of sines and cosines at 445 W."""
    watched = pl.read_csv(MEAN_POWER / "products_and_sincos.csv.gz")
    for (load, _), run in watched.group_by("load", "run"):
        sm_mhz = np.convolve(run["sm_mhz"].to_numpy(), np.ones(20) / 20, "valid")
        if str(load).startswith("sincos"):
            assert sm_mhz.min() > 1970  # the very first moment
            assert run["reasons"].max() in (0, None)
            continue
        before_mhz = np.median(sm_mhz[300:750])
        fall_ms = np.flatnonzero((sm_mhz < 0.95 * before_mhz) & (np.arange(sm_mhz.size) > 300))[0]
        assert 1400 < before_mhz < 1430
        assert 815 < fall_ms < 840
        assert 1170 < sm_mhz[fall_ms : fall_ms + 150].min() < 1231
