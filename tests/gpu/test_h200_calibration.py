"""The H200's entry against what one H200 did by itself: operators, a training step, moves of the clock."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from h200_readings import (
    GEMM_SCOPES,
    layer_step,
    operators,
    percentiles,
    raw,
    replay_scope,
    scope,
)

from kdvfs_sim.core.errors import InputError
from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.gpu.averaged import averaged_step
from kdvfs_sim.gpu.build import cost_table
from kdvfs_sim.gpu.catalogue import load_gpu, write_gpu
from kdvfs_sim.gpu.operators import OperatorReading, fit_operators, leave_one_out, read_operators

SOURCE = "operator readings"


def test_a_fitted_entry_is_written_and_read_back(shared: Path, tmp_path: Path) -> None:
    fitted = fit_operators(load_gpu("h200"), operators(shared), source=SOURCE)
    path = tmp_path / "h200.toml"
    write_gpu(fitted, path)
    again = load_gpu(path)
    assert dict(again.facts) == dict(fitted.facts)
    fact = again.need("category.gemm.sm_mhz")
    assert (fact.kind, fact.source) == ("measured", SOURCE)
    assert "fc2_fwd" in fact.note
    assert (fact.low, fact.high) == (pytest.approx(1463.6, abs=0.1), pytest.approx(1561.2, abs=0.1))


def test_the_catalogue_says_what_the_fit_says(shared: Path) -> None:
    shipped, fitted = load_gpu("h200"), fit_operators(load_gpu("h200"), operators(shared), source=SOURCE)
    # of the two element-wise readings, GELU has an entry of its own and the category follows the other
    points = [p for p, f in fitted.facts.items() if f.source == SOURCE and "category.elementwise" not in p]
    assert len(points) == 2 * (5 + 6)
    for path in points:
        assert shipped.need(path).value == pytest.approx(fitted.need(path).value, rel=0.015), path


def test_every_gemm_sustains_the_clock_that_was_read(shared: Path) -> None:
    readings = [reading for reading in operators(shared) if reading.flops]
    gpu = fit_operators(load_gpu("h200"), operators(shared), source=SOURCE)
    kinds = [
        KernelKind(name=reading.kernel.replace("*", "_64x4_") or "gemm", category="gemm")
        for reading in readings
    ]
    costs = cost_table(gpu, kinds, [reading.time_s * 1e9 for reading in readings])
    for i, reading in enumerate(readings):
        assert costs.clocks[costs.effective[i, costs.auto]].sm_mhz == pytest.approx(reading.sm_mhz, rel=0.03)


def test_a_gemm_left_out_is_predicted_by_the_energy_per_flop_of_the_others(shared: Path) -> None:
    """The same bound out of sample: 3 % of the clock. Other operators have less in common."""
    errors = leave_one_out(load_gpu("h200"), operators(shared))
    clocks_pct = [error.clock_pct for error in errors if error.clock_pct is not None]
    assert len(clocks_pct) == 9
    assert np.abs(clocks_pct).max() < 3
    power_pct = {sort: np.abs([e.power_pct for e in errors if e.tensor == sort]) for sort in (True, False)}
    assert power_pct[True].max() < 6
    assert 10 < power_pct[False].mean() < 25


def test_the_layer_step_from_operator_readings(shared: Path) -> None:
    """10.49 ms and 676 W were read; nothing of that step is used. Its one clock is predicted too."""
    read, step = raw(shared)["full_step"], layer_step(shared)
    gpu = fit_operators(load_gpu("h200"), operators(shared), source=SOURCE)
    found = averaged_step(
        gpu,
        step.kinds,
        duration_ns=step.duration_ns,
        looped=step.looped,
        gap_ns=step.gap_ns,
        errors=leave_one_out(gpu, operators(shared)),
    )
    assert found.time_s == pytest.approx(read["us"] * 1e-6, rel=0.02)
    assert found.energy_j == pytest.approx(read["us"] * 1e-6 * read["power_W"], rel=0.08)
    low, high = found.power_range_w
    assert low < read["power_W"] < high
    assert high - low < 0.15 * found.power_w
    assert found.sm_mhz == pytest.approx(read["clk_mean"], rel=0.03)


def test_readings_simply_added_miss_the_step(shared: Path) -> None:
    """Each at its own sustained clock, as under a cap on every kernel: too slow by more than 2 %."""
    step, read = layer_step(shared), raw(shared)["full_step"]
    assert (step.duration_ns.sum() + step.gap_ns) * 1e-3 / read["us"] > 1.02


def test_laws_of_the_averaged_step(shared: Path) -> None:
    gpu, step = load_gpu("h200"), layer_step(shared)
    errors = leave_one_out(gpu, operators(shared))

    def found(limit_w: float) -> tuple[int, float, float]:
        result = averaged_step(
            gpu,
            step.kinds,
            duration_ns=step.duration_ns,
            looped=np.ones(64, dtype=bool),
            gap_ns=step.gap_ns,
            errors=errors,
            limit_w=limit_w,
        )
        return result.sm_mhz, result.time_s, result.power_w

    clocks, times, powers = zip(*(found(limit_w) for limit_w in (450.0, 550.0, 650.0, 700.0)), strict=True)
    assert list(clocks) == sorted(clocks)
    assert list(times) == sorted(times, reverse=True)
    for watts, limit_w in zip(powers, (450.0, 550.0, 650.0, 700.0), strict=True):
        assert 0.97 * limit_w < watts <= limit_w


@pytest.mark.parametrize("name", GEMM_SCOPES)
def test_the_dynamic_governor_moves_the_clock_as_the_chip_does(shared: Path, name: str) -> None:
    read = np.percentile(scope(shared, name)[0], [5, 95])
    result = replay_scope(shared, name)
    assert percentiles(result) == pytest.approx(read, rel=0.05)
    steady = float(np.median(scope(shared, name)[0]))
    assert abs(read[1] / steady - 1) > 0.06, "a clock that did not move would not do"


def test_a_copy_leaves_the_clock_alone(shared: Path) -> None:
    read = np.percentile(scope(shared, "copy")[0], [5, 95])
    assert percentiles(replay_scope(shared, "copy")) == pytest.approx(read, rel=0.05)


def test_a_constant_load_falls_when_the_mean_of_its_power_meets_the_limit(shared: Path) -> None:
    """Nothing of this scope's clock is fitted: the budget and V(f) come from other loads and another chip,
    the kernel's times at other clocks are those it took."""
    read = np.percentile(scope(shared, "sincos_compute")[0], [5, 95])
    assert percentiles(replay_scope(shared, "sincos_compute")) == pytest.approx(read, rel=0.05)


def test_the_overshoot_of_the_catalogue_is_the_one_that_fits_best(shared: Path) -> None:
    def off(overshoot: float) -> tuple[float, float]:
        """The largest error of an end, to a thousandth, and the root of their mean square."""
        errors = np.concatenate(
            [
                np.array(percentiles(replay_scope(shared, name, overshoot=overshoot)))
                / np.percentile(scope(shared, name)[0], [5, 95])
                - 1
                for name in GEMM_SCOPES
            ]
        )
        return round(float(np.abs(errors).max()), 3), float(np.sqrt(np.mean(errors**2)))

    by_overshoot = {overshoot: off(overshoot) for overshoot in (0.17, 0.35, 0.5, 0.66)}
    assert min(by_overshoot, key=by_overshoot.__getitem__) == load_gpu("h200").value(
        "governor.overshoot", 0.0
    )


def test_operator_files(shared: Path, tmp_path: Path) -> None:
    readings = operators(shared)
    table = pl.DataFrame(
        {
            "operator": [r.name for r in readings],
            "category": [r.category for r in readings],
            "time_s": [r.time_s for r in readings],
            "sm_mhz": [r.sm_mhz for r in readings],
            "power_w": [r.power_w for r in readings],
            "kernel": [r.kernel or None for r in readings],
            "flops": [r.flops for r in readings],
            "capped": [r.capped for r in readings],
        }
    )
    for name in ("ops.csv", "ops.parquet"):
        path = tmp_path / name
        table.write_csv(path) if name.endswith("csv") else table.write_parquet(path)
        assert list(read_operators(path)) == readings
    table.drop("power_w").write_csv(tmp_path / "short.csv")
    with pytest.raises(InputError, match=r"short\.csv: has no column 'power_w'"):
        read_operators(tmp_path / "short.csv")
    with pytest.raises(InputError, match=r"none\.csv"):
        read_operators(tmp_path / "none.csv")
    for column in ("time_s", "sm_mhz", "power_w"):
        for value in ("", "nan", "-1", "fast"):
            texts = table.with_columns(pl.col(column).cast(pl.String))
            texts[1, column] = value or None
            texts.write_csv(tmp_path / "bad.csv")
            with pytest.raises(InputError, match=rf"bad\.csv: line 3, column '{column}'"):
                read_operators(tmp_path / "bad.csv")


def test_what_makes_no_sense_is_refused(shared: Path) -> None:
    with pytest.raises(InputError, match="nothing to fit"):
        fit_operators(load_gpu("h200"), [], source=SOURCE)
    with pytest.raises(InputError, match="leaving one out needs"):
        leave_one_out(load_gpu("h200"), operators(shared)[:3])
    with pytest.raises(InputError, match="operator x: category 'gem'"):
        OperatorReading(name="x", category="gem", time_s=1.0, sm_mhz=1.0, power_w=1.0)  # type: ignore[arg-type]
