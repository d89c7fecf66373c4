"""Each fault of a sweep, put into a clean one, is found by its code; a clean one has none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from kdvfs_sim.gpu.fit.diagnoses import diagnose
from kdvfs_sim.gpu.fit.sweep import Sweep

from . import datasets
from .synthetic import KNEE_MHZ, sweep

SM, TIME, POWER = pl.col("sm_mhz"), pl.col("time_s"), pl.col("power_w")


def codes(found: Sweep) -> set[str]:
    return {finding.code for finding in diagnose(found)}


@pytest.mark.parametrize("mem_mhz", [(5000,), (4000, 5000)])
@pytest.mark.parametrize("noise", [0.0, 0.003])
def test_a_clean_sweep_has_no_finding(noise: float, mem_mhz: tuple[int, ...]) -> None:
    assert codes(sweep(noise=noise, mem_mhz=mem_mhz, n_repeats=3)) == set()


def edited(clean: Sweep, **columns: pl.Expr) -> Sweep:
    return replace(clean, rows=clean.rows.with_columns(**columns))


FAULTS: dict[str, tuple[str, Callable[[Sweep], Sweep], str]] = {
    "slow clock at the bottom": (
        "clock-not-reached",
        lambda clean: edited(clean, time_s=pl.when(SM <= 660).then(TIME * 1.3).otherwise(TIME)),
        "up to 660 MHz",
    ),
    "actual clock below the request": (
        "clock-not-reached",
        lambda clean: edited(
            clean, sm_mhz_actual=pl.when(SM > 1400).then(SM * 0.9).otherwise(SM).cast(pl.Float64)
        ),
        "such as 1350 MHz at 1500",
    ),
    "milliwatts": ("unit-mix-up", lambda clean: edited(clean, power_w=POWER * 1000), "mW"),
    "two units of time": (
        "unit-mix-up",
        lambda clean: edited(clean, time_s=pl.when(SM == 900).then(TIME * 1000).otherwise(TIME)),
        "two units in one column",
    ),
    "watt hours": ("unit-mix-up", lambda clean: replace(clean, energy_factor=1 / 3600), "W h"),
    "cold start": (
        "cold-start",
        lambda clean: edited(
            Sweep(rows=clean.rows.sort("kernel", -SM)),
            time_s=pl.when(pl.int_range(pl.len()).over("kernel") == 0).then(TIME * 2).otherwise(TIME),
        ),
        "100 %",
    ),
    "two modes": (
        "bimodal",
        lambda clean: edited(
            clean, time_s=pl.when(pl.int_range(pl.len()) % 3 == 0).then(TIME * 1.5).otherwise(TIME)
        ),
        "51 % apart",
    ),
    "copied times": (
        "duplicate-series",
        lambda clean: edited(
            clean,
            time_s=pl.when(pl.col("kernel") == "kernel 1").then(TIME.first().over("sm_mhz")).otherwise(TIME),
        ),
        "2 kernels, such as kernel 0, have the same time",
    ),
    "seam": (
        "seam",
        lambda clean: edited(clean, time_s=pl.when(SM >= 1080).then(TIME * 1.05).otherwise(TIME)),
        "between 1020 and 1080 MHz",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_by_its_code(name: str) -> None:
    code, spoil, text = FAULTS[name]
    clean = sweep(noise=0.001, n_repeats=5 if code == "bimodal" else 1)
    assert codes(clean) == set()
    found = [finding for finding in diagnose(spoil(clean)) if finding.code == code]
    assert found, diagnose(spoil(clean))
    assert any(text in finding.text for finding in found), found
    assert all(finding.kernels and "\n" not in finding.text for finding in found)


def test_a_power_cap_shows_as_a_plateau_of_the_same_power() -> None:
    capped = sweep(noise=0.001, cap_w=160.0)
    (plateau,) = [finding for finding in diagnose(capped) if finding.code == "cap-plateau"]
    assert "160 W" in plateau.text
    assert set(plateau.kernels) < set(capped.kernels), "small kernels never reach it"


def test_several_limits_are_judged_apart() -> None:
    clean = sweep()
    low = edited(clean, power_limit_w=pl.lit(200.0), time_s=TIME * 2)
    both = replace(clean, rows=pl.concat([edited(clean, power_limit_w=pl.lit(300.0)).rows, low.rows]))
    assert codes(both) == {"several-limits"}


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (lambda: datasets.nv_dvfs("v100-dvfs-real-profile.csv"), "clock-not-reached"),
        (datasets.v100_merged_times, "duplicate-series"),
        (lambda: datasets.perseus("a100_sxm", tuple(range(8))), "duplicate-series"),
        (lambda: datasets.perseus("a100_sxm"), "cap-plateau"),
        (lambda: datasets.perseus("a40"), "cap-plateau"),
        (lambda: datasets.perseus("a40"), "seam"),
        (lambda: datasets.gpu_power_model("titanv_volta_micro"), "clock-not-reached"),
        (datasets.l4, "bimodal"),
        (lambda: datasets.mertside("V100", "llama"), "cold-start"),
        (datasets.giordano, "several-limits"),
    ],
)
def test_what_people_found_by_hand_is_found(shared: Path, read: Callable[[], Sweep], expected: str) -> None:
    """shared/reference/measured_dvfs_data.md, section 2."""
    assert expected in codes(read())


def test_quiet_sets_are_not_suspected(shared: Path) -> None:
    for name in ("GTX 980 low", "GTX 980 high", "GTX 1080 Ti", "RTX 2070 S", "P100", "Titan X apps"):
        assert codes(datasets.DATASETS[name].sweep()) == set(), name


def test_the_knee_of_the_synthetic_gpu_is_inside_its_clocks() -> None:
    """Else half of what is above would test a GPU without a voltage curve."""
    assert 600 < KNEE_MHZ < 1500
