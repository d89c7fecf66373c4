"""Table 1's clocks at other sizes: two measured points calibrate, nothing is fitted to the other ten."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from kdvfs_sim.core.errors import InputError
from kdvfs_sim.gpu.gpt3xl_3080ti import shipped as ship
from kdvfs_sim.gpu.gpt3xl_3080ti.calls import BATCH, CALLS, Sizes
from kdvfs_sim.gpu.gpt3xl_3080ti.other_sizes import auto_slopes, inner_per_tile, other_sizes
from kdvfs_sim.gpu.gpt3xl_3080ti.published import AGAIN_FILE, Published, read_published
from kdvfs_sim.gpu.gpt3xl_3080ti.transfer import transfer, transferred_points
from kdvfs_sim.gpu.published_runs import find_published_run

# Points that the prediction misses by more than one point of a per cent, as (figure's x, is a batch size).
MISSED_TIME = {(16, False)}
MISSED_ENERGY: set[tuple[int, bool]] = set()
QUANTITIES = ("time", "energy")


@pytest.fixture(scope="module")
def published(shared: Path) -> Published:
    return read_published(shared / "paper_gpt3xl_3080ti")


@pytest.fixture(scope="module")
def points(shared: Path) -> pl.DataFrame:
    """Measured and, in points, predicted minus measured. ``repeat``: at the sizes of the fit."""
    measured = pl.read_csv(shared / "paper_gpt3xl_3080ti" / AGAIN_FILE)
    found = transferred_points(ship.load())
    batch = measured["figure"].str.contains("batch")
    assert [p.sizes.n_sequences if b else p.sizes.n_gpus for p, b in zip(found, batch, strict=True)] == list(
        measured["x"]
    )
    return measured.select(
        "x",
        batch.alias("batch"),
        pl.Series("repeat", [p.sizes == Sizes() for p in found]),
        "time_pct_mean",
        "energy_pct_mean",
        time=pl.Series([p.time_pct for p in found]) - measured["time_pct_mean"],
        energy=pl.Series([p.energy_pct for p in found]) - measured["energy_pct_mean"],
    )


@pytest.fixture(scope="module")
def ten(points: pl.DataFrame) -> pl.DataFrame:
    return points.filter(~pl.col("repeat"))


def test_the_prediction_is_within_a_point_but_where_it_is_said_not_to_be(ten: pl.DataFrame) -> None:
    assert len(ten) == 10
    for quantity, missed in zip(QUANTITIES, (MISSED_TIME, MISSED_ENERGY), strict=True):
        beyond = ten.filter(pl.col(quantity).abs() > 1.0)
        assert set(beyond.select("x", "batch").iter_rows()) == missed, beyond
    assert ten["time"].abs().max() < 2.5  # type: ignore[operator]


def test_the_prediction_beats_the_constant_guesses(points: pl.DataFrame, ten: pl.DataFrame) -> None:
    """Nothing changes with the size: Table 1 as printed, and as measured again at the sizes of the fit,
    which is what the prediction was given too. Over the ten predicted points, and over all twelve."""
    repeats = points.filter("repeat")
    for quantity, printed in zip(QUANTITIES, (0.0, -15.64), strict=True):
        again = repeats[f"{quantity}_pct_mean"].mean()
        for over in (ten, points):
            measured = over[f"{quantity}_pct_mean"]
            for constant in (printed, again):
                assert over[quantity].abs().mean() < (measured - constant).abs().mean()  # type: ignore[operator]


def test_two_points_calibrate_and_ten_are_not_looked_at(
    shared: Path, published: Published, tmp_path: Path
) -> None:
    folder = shared / "paper_gpt3xl_3080ti"
    for file in folder.glob("*.csv"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    path = tmp_path / AGAIN_FILE
    table = pl.read_csv(path)
    repeat = (pl.col("figure").str.contains("batch") & (pl.col("x") == BATCH)) | (
        ~pl.col("figure").str.contains("batch") & (pl.col("x") == 1)
    )
    elsewhere = [
        pl.when(repeat).then(pl.col(f"{q}_pct_mean")).otherwise(99.0).name.keep() for q in QUANTITIES
    ]
    table.with_columns(elsewhere).write_csv(path)
    auto_sm_mhz = ship.load().kernels.auto_sm_mhz
    assert other_sizes(read_published(tmp_path), auto_sm_mhz) == other_sizes(published, auto_sm_mhz)
    table.filter(~repeat).write_csv(path)
    with pytest.raises(
        InputError, match=r"fig7_fig8_transfer\.csv: one row for batch size 40 .* not 0 and 0"
    ):
        read_published(tmp_path)


def test_the_shipped_numbers_are_those_of_the_published_ones(published: Published) -> None:
    parameters = ship.load()
    found = other_sizes(published, parameters.kernels.auto_sm_mhz)
    assert asdict(found) == pytest.approx(asdict(parameters.other_sizes), rel=1e-5)


def test_slopes_and_tiles_are_found_again(published: Published) -> None:
    """Made so that AUTO's power and clock follow with 0.3 and -0.2, and a tile costs 50 of inner."""
    auto_w = published.auto_power_w
    made = replace(published, chosen_energy=published.chosen_time * auto_w ** (1 / 0.3 - 1))
    assert auto_slopes(made, 1e9 * auto_w ** (-0.2 / 0.3)) == pytest.approx((0.3, -0.2))
    inner = np.array([call.dims(Sizes())[2] if call.shape else 1 for call in CALLS])
    flops = np.array([call.flops(Sizes()) for call in CALLS])
    assert inner_per_tile(1e-14 * flops * (1 + 50 / inner)) == pytest.approx(50.0)


def test_absolute_times_and_energies_of_the_text() -> None:
    """With Table 1's clocks: batch 8 takes 1.12 s and 325 J, degree 4 1.8 s and 503 J."""
    for sizes, time_s, energy_j, close in (
        (Sizes(n_sequences=8), 1.12, 325, 0.03),
        (Sizes(n_gpus=4), 1.8, 503, 0.05),
    ):
        point = transfer(ship.load(), sizes)
        assert point.auto_time_s * (1 + point.time_pct / 100) == pytest.approx(time_s, rel=close)
        assert point.auto_energy_j * (1 + point.energy_pct / 100) == pytest.approx(energy_j, rel=close)


def test_at_the_sizes_of_the_fit_it_is_what_was_measured_again() -> None:
    parameters = ship.load()
    point = transfer(parameters, Sizes())
    assert point.auto_time_s == pytest.approx(5.3578, abs=1e-3)
    assert point.auto_energy_j == pytest.approx(1815.8, abs=0.5)
    assert point.time_pct == pytest.approx(parameters.other_sizes.again_time_pct)
    assert point.energy_pct == pytest.approx(parameters.other_sizes.again_energy_pct)


@pytest.mark.parametrize(
    "smaller", [Sizes(n_sequences=8), Sizes(n_sequences=1), Sizes(n_gpus=4), Sizes(n_gpus=16)]
)
def test_less_work_takes_less_time_but_not_in_proportion(smaller: Sizes) -> None:
    whole, part = transfer(ship.load(), Sizes()), transfer(ship.load(), smaller)
    share = smaller.n_sequences / 40 / smaller.n_gpus
    assert share < part.auto_time_s / whole.auto_time_s < 1
    assert part.auto_energy_j < whole.auto_energy_j


def test_a_published_run_loads_by_name() -> None:
    run = find_published_run(ship.NAME)
    assert run is not None
    assert run.costs.kinds == tuple(kind.name for kind in run.trace.kinds)
    assert run.costs.assumed
    assert find_published_run("gpt5_on_a_toaster") is None
