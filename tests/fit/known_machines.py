"""What the models say of two machines that they were made from: the paper's board, and an H200."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.gpu.averaged import averaged_step
from kdvfs_sim.gpu.build import cost_table
from kdvfs_sim.gpu.catalogue import load_gpu
from kdvfs_sim.gpu.gpt3xl_3080ti import shipped
from kdvfs_sim.gpu.gpt3xl_3080ti.calls import Sizes
from kdvfs_sim.gpu.gpt3xl_3080ti.generate import priced
from kdvfs_sim.gpu.gpt3xl_3080ti.transfer import transferred_points
from kdvfs_sim.gpu.operators import fit_operators, leave_one_out
from tests.gpu.h200_loads import misfit, predicted_errors, watched_loads
from tests.gpu.h200_readings import (
    AGAIN,
    GEMM_SCOPES,
    LOADS,
    clock_at,
    falling_steps,
    layer_step,
    load_clock,
    operators,
    percentiles,
    raw,
    replay_scope,
    replay_watched,
    scope,
)

# What the paper prints: time and energy against AUTO, per cent.
PUBLISHED: Final = {
    "local": (-1.78, -11.54),
    "in_total": (0.0, -15.64),
    "edp_local": (10.03, -27.34),
    "edp_in_total": (10.28, -27.52),
    "floor": (84.0, -36.9),
}
Row = dict[str, Any]


def paper_policies() -> Row:
    """Fitted on what it reproduces."""
    iteration = priced(shipped.cost_table(), shipped.load().n_calls)
    return {name: [round(x, 2) for x in iteration.percent(getattr(iteration, name)())] for name in PUBLISHED}


def paper_transfer(shared: Path) -> list[Row]:
    """The twelve points: mean measured, its interval, modelled. ``repeat``: at the sizes of the fit."""
    measured = pl.read_csv(shared / "paper_gpt3xl_3080ti" / "fig7_fig8_transfer.csv")
    return [
        {
            "figure": row["figure"],
            "x": row["x"],
            "repeat": point.sizes == Sizes(),
            **{
                quantity: [*(row[f"{quantity}_{of}"] for of in ("mean", "lo", "hi")), round(modelled, 2)]
                for quantity, modelled in (("time_pct", point.time_pct), ("energy_pct", point.energy_pct))
            },
        }
        for row, point in zip(measured.iter_rows(named=True), transferred_points(shipped.load()), strict=True)
    ]


def h200_step(shared: Path) -> Row:
    read, step = raw(shared)["full_step"], layer_step(shared)
    gpu = fit_operators(load_gpu("h200"), operators(shared), source="operator readings")
    errors = leave_one_out(gpu, operators(shared))
    found = averaged_step(
        gpu, step.kinds, duration_ns=step.duration_ns, looped=step.looped, gap_ns=step.gap_ns, errors=errors
    )
    products = [reading for reading in operators(shared) if reading.flops]
    costs = cost_table(
        gpu,
        [KernelKind(name=r.kernel.replace("*", "_64x4_") or "gemm", category="gemm") for r in products],
        [r.time_s * 1e9 for r in products],
    )
    clocks = [costs.clocks[costs.effective[i, costs.auto]].sm_mhz for i in range(costs.n_kinds)]
    off = [100 * abs(mhz / r.sm_mhz - 1) for mhz, r in zip(clocks, products, strict=True)]  # type: ignore[operator]
    left_out = [abs(e.clock_pct) for e in errors if e.clock_pct is not None]
    return {
        "time_ms": [round(read["us"] * 1e-3, 2), round(found.time_s * 1e3, 2)],
        "power_w": [round(read["power_W"]), round(found.power_w)],
        "power_range_w": [round(x) for x in found.power_range_w],
        "energy_pct": round(100 * (found.energy_j / (read["us"] * 1e-6 * read["power_W"]) - 1), 1),
        "sm_mhz": [round(read["clk_mean"]), found.sm_mhz],
        "gemm_clock_pct": round(max(off), 2),
        "gemm_clock_left_out_pct": round(max(left_out), 2),
    }


def h200_scopes(shared: Path) -> Row:
    """5th and 95th percentile of the SM clock: read, and replayed under the dynamic governor."""
    names = (*GEMM_SCOPES, "copy", "sincos_compute")
    found = {name: percentiles(replay_scope(shared, name)) for name in names}
    found["sincos_compute, times of the entry"] = percentiles(
        replay_scope(shared, "sincos_compute", times="entry")
    )
    return {
        label: [*np.percentile(scope(shared, label.partition(",")[0])[0], [5, 95]).round().tolist(), *ends]
        for label, ends in found.items()
    }


def h200_loads() -> Row:
    """The same of loads watched from their first moment, and how far both are apart (RMS), MHz."""
    result: Row = {}
    for name in (*LOADS, AGAIN):
        t_s, read_mhz = load_clock(name)
        found_mhz = clock_at(replay_watched(name), t_s + 0.01)
        ends = [np.percentile(mhz, [5, 95]).round().tolist() for mhz in (read_mhz, found_mhz)]
        result[name] = [*ends[0], *ends[1], round(float(np.sqrt(np.mean((found_mhz - read_mhz) ** 2))))]
    return result


def h200_voltage() -> Row:
    """The rise of the entry's voltage, what it leaves, and errors of left-out loads' power, per cent."""
    rise, loads = load_gpu("h200").need("voltage.rise").value, watched_loads()
    errors = 100 * np.abs(np.concatenate([predicted_errors(name) for name in loads]))
    return {
        "rise": rise,
        "misfit_pct": round(100 * misfit(loads, rise), 1),
        "median_pct": round(float(np.median(errors)), 1),
        "p95_pct": round(float(np.percentile(errors, 95)), 1),
    }


def all_known(shared: Path) -> Row:
    return {
        "paper": paper_policies(),
        "transfer": paper_transfer(shared),
        "h200_step": h200_step(shared),
        "h200_scopes": h200_scopes(shared),
        "h200_loads": h200_loads(),
        "h200_voltage": h200_voltage(),
        "h200_falling_steps": [[round(float(ms), 1) for ms in of_one] for of_one in falling_steps()],
    }
