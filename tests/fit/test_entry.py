"""A sweep to a GPU entry: what the entry then says is what the sweep showed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.core.errors import InputError
from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.gpu.build import cost_table
from kdvfs_sim.gpu.catalogue import load_gpu, write_gpu
from kdvfs_sim.gpu.facts import GpuFacts
from kdvfs_sim.gpu.fit.entry import fitted_entry
from kdvfs_sim.gpu.fit.fit import SweepFit, fit_sweep, planning_clocks
from kdvfs_sim.gpu.fit.sweep import Sweep, sweep_from_rows
from kdvfs_sim.gpu.model import analytic_model

from . import datasets

GPU = load_gpu("a100")
MEM_MHZ = GPU.default_memory_mhz
SM_MHZ = GPU.sm_clocks(GPU.memory[-1])[::4]
KINDS = tuple(
    KernelKind(name=f"my_{category}_kernel[{i}]", category=category)  # type: ignore[arg-type]
    for i, category in enumerate(("gemm", "copy", "elementwise", "reduction", "normalization"))
)


def swept(*, at: tuple[int, ...] = SM_MHZ, noise: float = 0.0) -> Sweep:
    """What the catalogue's own model would measure."""
    model = analytic_model(GPU, KINDS, np.full(len(KINDS), 1e6))
    rng = np.random.default_rng(0)
    rows = [
        {
            "kernel": kind.name,
            "category": kind.category,
            "sm_mhz": mhz,
            "mem_mhz": MEM_MHZ,
            "time_s": 1e-9 * model.duration_ns(kind, Clocks(mhz, MEM_MHZ)) * np.exp(noise * rng.normal()),
            "power_w": model.busy_power_w(kind, Clocks(mhz, MEM_MHZ)) * np.exp(noise * rng.normal()),
        }
        for kind in KINDS
        for mhz in at
    ]
    return sweep_from_rows(pl.DataFrame(rows), source="made by the model")


@pytest.fixture(scope="module")
def fit() -> SweepFit:
    return fit_sweep(swept(noise=0.002))


@pytest.fixture(scope="module")
def entry(fit: SweepFit) -> GpuFacts:
    return fitted_entry(GPU, fit, source="test sweep")


def ratios(gpu: GpuFacts) -> tuple[np.ndarray, np.ndarray]:
    """Time relative to the top clock, and power, (n_kinds, n_clocks)."""
    model = analytic_model(gpu, KINDS, np.full(len(KINDS), 1e6), recorded=Clocks(SM_MHZ[-1], MEM_MHZ))
    time, power = (
        np.array([[ask(kind, Clocks(mhz, MEM_MHZ)) for mhz in SM_MHZ] for kind in KINDS])
        for ask in (model.duration_ns, model.busy_power_w)
    )
    return time / time[:, -1:], power


def test_the_entry_prices_kernels_as_the_sweep_did(fit: SweepFit, entry: GpuFacts) -> None:
    time, power = ratios(entry)
    read = fit.readings
    np.testing.assert_allclose(time, read.time_s / read.time_s[:, -1:], rtol=0.02)
    np.testing.assert_allclose(power, read.power_w, rtol=0.02)


def test_every_number_says_where_it_comes_from_and_holds_the_truth(entry: GpuFacts) -> None:
    new = {path: fact for path, fact in entry.facts.items() if fact.source == "test sweep"}
    for path, fact in new.items():  # one memory clock: the form alone tells shares of time apart
        by_form = path.endswith((".compute_share", ".fixed_share"))
        assert fact.kind == ("assumed" if by_form else "measured")
        assert ("one memory clock" in fact.note) == by_form
    assert {"voltage.knee_mhz", "voltage.rise", "latency.residual_p95"} <= set(new)
    assert entry.need("latency.residual_p95").value < 0.01
    held = [
        new[f"category.{kind.category}.{name}"].at("low") - 0.03
        <= GPU.need(f"category.{kind.category}.{name}").value
        <= new[f"category.{kind.category}.{name}"].at("high") + 0.03
        for kind in KINDS
        for name in ("compute_share", "fixed_share", "work_share")
    ]
    assert np.mean(held) >= 0.8
    assert entry.need("power.idle_w") == GPU.need("power.idle_w"), "what a sweep cannot know stays"


def test_it_is_what_gpu_reads(entry: GpuFacts, tmp_path: Path) -> None:
    write_gpu(entry, tmp_path / "mine.toml")
    again = load_gpu(tmp_path / "mine.toml")
    assert again.facts == dict(entry.facts)
    assert again.kernel_patterns[: len(KINDS)] == entry.kernel_patterns[: len(KINDS)]
    costs = cost_table(again, KINDS, np.full(len(KINDS), 1e6))
    assert costs.kinds == tuple(kind.name for kind in KINDS)


def test_a_kernel_name_is_no_pattern(entry: GpuFacts) -> None:
    """Brackets and stars of a name match themselves."""
    other = KernelKind(name="my_gemm_kernel0", category="copy")
    model = analytic_model(entry, [other], [1e6])
    assert model.latency.sm_ns_mhz[0] > 0
    assert any("[[]0]" in pattern for pattern in entry.kernel_patterns)


def test_kernels_read_at_few_clocks_borrow_from_the_others_and_have_wide_ranges(entry: GpuFacts) -> None:
    sweep = swept(noise=0.002)
    last = pl.col("kernel") == KINDS[2].name
    few = sweep.where_rows(~last | (pl.col("sm_mhz") == SM_MHZ[-1]))
    found = fitted_entry(GPU, fit_sweep(few), source="few")
    name = "kernel.my_elementwise_kernel[[]2].compute_share"
    spread = [gpu.need(name).at("high") - gpu.need(name).at("low") for gpu in (found, entry)]
    assert spread[0] > 0.2
    assert spread[1] < spread[0]


def test_a_kernel_known_from_a_trace_alone_has_the_powers_of_the_others() -> None:
    """One time at the highest clocks, no power."""
    sweep = swept(noise=0.002)
    traced = pl.col("kernel") == KINDS[2].name
    seen = sweep.where_rows(~traced | (pl.col("sm_mhz") == SM_MHZ[-1]))
    power = pl.when(traced).then(None).otherwise(pl.col("power_w"))
    fit = fit_sweep(replace(seen, rows=seen.rows.with_columns(power_w=power)))
    assert fit.power is not None
    assert len(fit.power.kernels) == len(KINDS) - 1
    found = fitted_entry(GPU, fit, source="trace")
    power_w = found.need("kernel.my_elementwise_kernel[[]2].power_w").value
    others = [found.need(f"category.{kind.category}.power_w").value for kind in KINDS if kind != KINDS[2]]
    assert min(others) < power_w < max(others)
    assert found.need("kernel.my_elementwise_kernel[[]2].work_share").at("high") == 1.0


def test_the_operating_point_is_the_one_read_at_auto() -> None:
    sweep = swept()
    top = sweep.rows.filter(pl.col("sm_mhz") == SM_MHZ[-1])
    auto = top.with_columns(sm_mhz=pl.lit(None, dtype=pl.Int64), sm_mhz_actual=pl.lit(1305.0))
    found = fitted_entry(GPU, fit_sweep(replace(sweep, rows=pl.concat([sweep.rows, auto]))), source="s")
    assert found.need("category.gemm.sm_mhz").value == 1305.0
    assert fitted_entry(GPU, fit_sweep(sweep), source="s").need("category.gemm.sm_mhz").value == SM_MHZ[-1]


def test_times_alone_keep_the_powers_of_the_category() -> None:
    sweep = swept()
    timed = replace(sweep, rows=sweep.rows.with_columns(power_w=pl.lit(None, dtype=pl.Float64)))
    found = fitted_entry(GPU, fit_sweep(timed), source="times")
    assert found.need("category.gemm.power_w") == GPU.need("category.gemm.power_w")
    assert found.need("category.gemm.compute_share").source == "times"
    assert found.need("voltage.knee_mhz") == GPU.need("voltage.knee_mhz")
    powered = replace(sweep, rows=sweep.rows.with_columns(time_s=pl.lit(None, dtype=pl.Float64)))
    with pytest.raises(InputError, match="has no time for every kernel"):
        fitted_entry(GPU, fit_sweep(powered), source="powers")


def test_a_sweep_of_another_gpu_is_refused() -> None:
    sweep = swept()
    other = replace(sweep, rows=sweep.rows.with_columns(mem_mhz=pl.lit(1215, dtype=pl.Int64)))
    with pytest.raises(InputError, match=r"measured at memory clock 1215 MHz; .* lists 1593"):
        fitted_entry(GPU, fit_sweep(other), source="other")


def test_clocks_to_plan_for_are_of_the_gpu_and_from_half_of_its_top() -> None:
    clocks = planning_clocks(GPU, [Clocks(510, MEM_MHZ)])
    assert clocks[0] == Clocks(510, MEM_MHZ)
    sm = sorted(pair.sm_mhz for pair in clocks[1:])  # type: ignore[type-var]
    assert sm[0] >= GPU.ceiling_mhz / 2  # type: ignore[operator]
    assert sm[-1] == GPU.ceiling_mhz
    assert len(sm) <= 24


def test_a_published_sweep_of_an_a100_becomes_an_a100(shared: Path) -> None:
    fit = fit_sweep(datasets.a100_spec())
    found = fitted_entry(GPU, fit, source="SPEC ACCEL")
    assert found.need("voltage.knee_mhz").value == pytest.approx(1137, rel=0.03)
    assert found.need("voltage.rise").value == pytest.approx(0.21, abs=0.03)
    kinds = [KernelKind(name=name, category="other") for name in fit.readings.kernels]
    top = Clocks(1410, MEM_MHZ)
    model = analytic_model(found, kinds, np.full(len(kinds), 1e9), recorded=top)
    relative = fit.readings.time_s / fit.readings.time_s[:, [fit.readings.baseline]]
    time = np.array([[model.duration_ns(k, c) for c in fit.readings.clocks] for k in kinds]) / 1e9
    power = np.array([[model.busy_power_w(k, c) for c in fit.readings.clocks] for k in kinds])
    assert np.median(np.abs(time / relative - 1)) < 0.02
    assert np.median(np.abs(power / fit.readings.power_w - 1)) < 0.03
