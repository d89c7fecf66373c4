"""Make the shipped files again from the folder of published numbers (seconds; one thread, so that sums
come out the same to the last bit on one machine; on another, flat minima moved the time of the least energy
by 0.2 points):

OMP_NUM_THREADS=1 python -m kdvfs_sim.gpu.gpt3xl_3080ti.generate ../shared/paper_gpt3xl_3080ti [OUT]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from kdvfs_sim.core.clocks import AUTO_CLOCKS
from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.core.errors import KdvfsError
from kdvfs_sim.core.files import atomic_write
from kdvfs_sim.gpu.gpt3xl_3080ti import shipped as ship
from kdvfs_sim.gpu.gpt3xl_3080ti.calibrate import Fitted, fit
from kdvfs_sim.gpu.gpt3xl_3080ti.calls import CALLS
from kdvfs_sim.gpu.gpt3xl_3080ti.other_sizes import other_sizes
from kdvfs_sim.gpu.gpt3xl_3080ti.policies import Iteration
from kdvfs_sim.gpu.gpt3xl_3080ti.published import Published, read_published
from kdvfs_sim.gpu.gpt3xl_3080ti.surface import AUTO_ROW, CLOCKS, Surfaces
from kdvfs_sim.gpu.gpt3xl_3080ti.transfer import transferred_points
from kdvfs_sim.gpu.tables import read_cost_table, write_cost_table

SOURCE: Final = "arXiv 2601.08539, Table 1 and Figures 3 to 5, read off"
AGAIN: Final = "arXiv 2601.08539, Figures 7 and 8, read off: batch 40 and degree 1, mean of both"
SLOPES: Final = "arXiv 2601.08539, Table 1: the twelve kernels with only the memory clock locked, at the top"
RATES: Final = "arXiv 2601.08539, Figure 5, read off: a layer's matrix products, time against inner dimension"
POLICIES: Final = {
    "strict, local": "local",
    "strict, in total": "in_total",
    "least energy x time, local": "edp_local",
    "least energy x time, in total": "edp_in_total",
    "least energy": "floor",
}


def main(arguments: list[str]) -> int:
    """Fit, write four files, and print what the policies and the transfer come to."""
    if len(arguments) not in (1, 2):
        print(__doc__, file=sys.stderr)
        return 2
    out = Path(arguments[1]) if len(arguments) == 2 else Path(__file__).parent
    try:
        published = read_published(Path(arguments[0]))
        fitted = fit(published, lambda line: print(line, file=sys.stderr))
        make(published, fitted, out)
    except KdvfsError as error:
        print(error, file=sys.stderr)
        return 3
    costs, parameters = read_cost_table(out / ship.COSTS_FILE), ship.load(out)
    iteration = priced(costs, published.n_calls)
    for name, method in POLICIES.items():
        time_pct, energy_pct = iteration.percent(getattr(iteration, method)())
        print(f"{name:30s} time {time_pct:+7.2f} %  energy {energy_pct:+7.2f} %")
    for point in transferred_points(parameters):
        print(
            f"batch {point.sizes.n_sequences:2d}, split over {point.sizes.n_gpus:2d}: "
            f"time {point.time_pct:+6.2f} %  energy {point.energy_pct:+7.2f} %  "
            f"AUTO {point.auto_time_s:.4g} s {point.auto_energy_j:.4g} J"
        )
    return 0


def make(published: Published, fitted: Fitted, out: Path) -> None:
    """Write parameters, cost table and residuals to a folder."""
    found = fitted.surfaces
    ship.write_parameters(
        ship.Shipped(
            board=fitted.board,
            kernels=fitted.kernels,
            auto_time_s=published.auto_time_s,
            n_calls=published.n_calls,
            chosen=published.chosen,
            other_sizes=other_sizes(published, fitted.kernels.auto_sm_mhz),
        ),
        out,
        {
            "excess": ("paper", f"{SOURCE}: (1680, AUTO) over (1680, 9501) in both passes"),
            "again_time_pct": ("paper", AGAIN),
            "again_energy_pct": ("paper", AGAIN),
            "auto_power_slope": ("paper", SLOPES),
            "auto_clock_slope": ("assumed", f"{SLOPES}; against fitted SM clocks"),
            "inner_per_tile": ("paper", RATES),
            "": ("assumed", f"fitted to {SOURCE}"),
        },
    )
    costs, printed = cost_table(published, fitted)
    write_cost_table(costs, out / ship.COSTS_FILE, fact_kind=np.where(printed, "paper", "assumed"))
    with atomic_write(out / ship.RESIDUALS_FILE) as file:
        residuals(published, found).write_csv(file)


def cost_table(published: Published, fitted: Fitted) -> tuple[CostTable, np.ndarray]:
    """The table, and (46, 66) whether a cell is printed in the paper."""
    found, board, rows = fitted.surfaces, fitted.board, np.arange(len(CALLS))
    duration_ns, power_w = found.time * published.auto_time_s[:, None] * 1e9, found.power_w.copy()
    printed = np.zeros(duration_ns.shape, dtype=np.bool_)
    printed[:, AUTO_ROW] = printed[rows, published.chosen] = True
    duration_ns[:, AUTO_ROW] = published.auto_time_s * 1e9
    duration_ns[rows, published.chosen] = published.chosen_time * published.auto_time_s * 1e9
    power_w[rows, published.chosen] = published.auto_power_w * published.chosen_energy / published.chosen_time
    # with nothing running the clock still runs: as in the two kernels that do next to nothing
    tiny = np.array([call.role == "tiny" for call in CALLS])
    sm_mhz = found.sm_mhz[tiny].mean(axis=0)
    memory = np.repeat(np.arange(6), len(CLOCKS) // 6)
    tree_w = fitted.kernels.clock_w[tiny].mean() * board.voltage_squared(sm_mhz) * sm_mhz / 1000.0
    costs = CostTable(
        kinds=tuple(call.name for call in CALLS),
        clocks=CLOCKS,
        duration_ns=duration_ns,
        power_w=power_w,
        effective=np.broadcast_to(np.arange(len(CLOCKS), dtype=np.int32), duration_ns.shape).copy(),
        idle_power_w=board.static_w[memory] + tree_w,
        recorded=CLOCKS.index(AUTO_CLOCKS),
        requestable=np.ones(len(CLOCKS), dtype=np.bool_),
        assumed=(f"{ship.NAME}.cells_not_printed", f"{ship.NAME}.idle_power"),
        source=f"{SOURCE}; fitted where fact_kind is assumed",
    )
    return costs, printed


def residuals(published: Published, found: Surfaces) -> pl.DataFrame:
    """Every published number beside the fitted one; all relative to AUTO."""
    rows = np.arange(len(CALLS))
    names, chosen = [call.name for call in CALLS], [str(CLOCKS[row]) for row in published.chosen]
    tables = [
        pl.DataFrame({"of": names, "quantity": quantity, "at": at, "published": value, "fitted": model})
        for quantity, at, value, model in (
            ("time", chosen, published.chosen_time, found.time[rows, published.chosen]),
            ("energy", chosen, published.chosen_energy, found.energy[rows, published.chosen]),
            ("time", "least", published.least_time, found.time.min(axis=1)),
            ("time", "most", published.most_time, found.time.max(axis=1)),
            ("energy", "least", published.least_energy, found.energy.min(axis=1)),
            ("energy", "most", published.most_energy, found.energy.max(axis=1)),
        )
    ]
    for name in ("forward", "backward"):
        members = np.array([call.forward == (name == "forward") for call in CALLS])
        for quantity, per_call in (("time", published.auto_time_s), ("energy", published.auto_energy_j)):
            share = np.where(members, per_call, 0.0)
            model = share / share.sum() @ getattr(found, quantity)
            value = getattr(published, f"{name}_{quantity}")
            at = [str(clocks) for clocks in CLOCKS]
            tables.append(
                pl.DataFrame(
                    {
                        "of": f"{name} pass",
                        "quantity": quantity,
                        "at": at,
                        "published": value,
                        "fitted": model,
                    }
                )
            )
    return pl.concat(tables).with_columns(
        residual_pct=(100.0 * (pl.col("fitted") / pl.col("published") - 1.0)).round(2),
        published=pl.col("published").round_sig_figs(6),
        fitted=pl.col("fitted").round_sig_figs(6),
    )


def priced(costs: CostTable, n_calls: np.ndarray) -> Iteration:
    """A cost table and call counts as totals over kernels."""
    time = costs.duration_ns * n_calls[:, None] * 1e-9
    return Iteration(time=time, energy=time * costs.power_w, row=costs.auto)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
