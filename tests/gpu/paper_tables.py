"""The published RTX 3080 Ti numbers as cost tables: passes over 66 clock pairs, and Table 1's kernels."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.gpu.tables import cost_table_from_rows

# share of the forward pass in time and in energy that reproduces the paper's Table 2
FORWARD_WEIGHT = 0.3245


def pass_costs(shared: Path) -> CostTable:
    """Kinds ``forward`` and ``backward``; an iteration at (AUTO, AUTO) takes 1 s and 1 J in all."""
    sweep = pl.read_csv(shared / "paper_gpt3xl_3080ti" / "fig3_fig4_pass_sweep.csv", infer_schema_length=None)
    weight = pl.when(pl.col("pass") == "forward").then(FORWARD_WEIGHT).otherwise(1.0 - FORWARD_WEIGHT)
    return cost_table_from_rows(
        sweep.select(
            kernel="pass",
            sm_mhz=pl.col("core_mhz").cast(pl.String),
            mem_mhz=pl.col("mem_mhz").cast(pl.String),
            time_s=weight * (1.0 + pl.col("time_pct_vs_auto") / 100.0),
            energy_j=weight * (1.0 + pl.col("energy_pct_vs_auto") / 100.0),
        ),
        source="arXiv 2601.08539, Figures 3 and 4, read off",
    )


def kernel_costs(shared: Path) -> tuple[CostTable, list[int]]:
    """46 kinds by ID, known at AUTO and at their Table 1 clocks; and how often each is called."""
    table = pl.read_csv(shared / "paper_gpt3xl_3080ti" / "fig5_table1_kernels.csv", infer_schema_length=None)
    name = pl.format("{} {}", pl.col("id"), pl.col("name_table1"))
    auto = table.select(
        kernel=name,
        sm_mhz=pl.lit("auto"),
        mem_mhz=pl.lit("auto"),
        time_s="auto_time_s",
        energy_j="auto_energy_J",
    )
    chosen = table.select(
        kernel=name,
        sm_mhz=pl.col("table1_core_mhz").cast(pl.String),
        mem_mhz=pl.col("table1_mem_mhz").cast(pl.String),
        time_s=pl.col("auto_time_s") * (1.0 + pl.col("table1_time_pct") / 100.0),
        energy_j=pl.col("auto_energy_J") * (1.0 + pl.col("table1_energy_pct") / 100.0),
    )
    both = pl.concat([auto, chosen]).unique(
        ["kernel", "sm_mhz", "mem_mhz"], keep="first", maintain_order=True
    )
    costs = cost_table_from_rows(both, source="arXiv 2601.08539, Table 1 and Figure 5")
    return costs, table["repeat_per_iteration"].to_list()
