"""The published numbers that the surfaces are fitted to, read from three CSV files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from kdvfs_sim.core.clocks import AUTO, Clocks
from kdvfs_sim.core.errors import InputError
from kdvfs_sim.gpu.gpt3xl_3080ti.calls import BATCH
from kdvfs_sim.gpu.gpt3xl_3080ti.surface import CLOCKS, Floats, Rows

KERNELS_FILE: Final = "fig5_table1_kernels.csv"
SWEEP_FILE: Final = "fig3_fig4_pass_sweep.csv"
AGAIN_FILE: Final = "fig7_fig8_transfer.csv"
# Where the figures' sizes are those of the fit: batch 40, degree 1.
_SIZES_OF_THE_FIT: Final = (("fig7_batch_size", BATCH), ("fig8_tensor_parallel_degree", 1))


@dataclass(frozen=True, kw_only=True, eq=False)
class Published:
    """Times and energies relative to (AUTO, AUTO); arrays (46,) by kernel ID, sweeps (66,) over CLOCKS.

    ``chosen``: the clocks of Table 1 as a row of CLOCKS, with ``chosen_time`` and ``chosen_energy``.
    ``least_*``, ``most_*``: over all clocks, at which is not said. ``again_*_pct``: an iteration with
    Table 1's clocks against AUTO, measured later, mean of two.
    """

    auto_time_s: Floats
    auto_energy_j: Floats
    n_calls: Rows
    chosen: Rows
    chosen_time: Floats
    chosen_energy: Floats
    least_time: Floats
    most_time: Floats
    least_energy: Floats
    most_energy: Floats
    forward_time: Floats
    forward_energy: Floats
    backward_time: Floats
    backward_energy: Floats
    again_time_pct: float
    again_energy_pct: float

    @property
    def auto_power_w(self) -> Floats:
        return self.auto_energy_j / self.auto_time_s


def read_published(folder: Path) -> Published:
    """Raises InputError for a missing file or row and for clocks that are none of the 66."""
    kernels, sweep = (_read(folder / name) for name in (KERNELS_FILE, SWEEP_FILE))
    chosen = [_row(sm, mem) for sm, mem in kernels.select("table1_core_mhz", "table1_mem_mhz").iter_rows()]
    time_s, energy_j = kernels["auto_time_s"].to_numpy(), kernels["auto_energy_J"].to_numpy()
    passes: dict[str, Floats] = {}
    for name in ("forward", "backward"):
        rows = sweep.filter(pl.col("pass") == name)
        order = [_row(sm, mem) for sm, mem in rows.select("core_mhz", "mem_mhz").iter_rows()]
        if sorted(order) != list(range(len(CLOCKS))):
            raise InputError(
                f"{folder / SWEEP_FILE}: {name} has {len(order)} rows; one for each of 66 pairs is right"
            )
        for quantity in ("time", "energy"):
            values = np.empty(len(CLOCKS))
            values[order] = 1.0 + rows[f"{quantity}_pct_vs_auto"].to_numpy() / 100.0
            passes[f"{name}_{quantity}"] = values
    again_time_pct, again_energy_pct = _again(folder / AGAIN_FILE)
    return Published(
        auto_time_s=time_s,
        auto_energy_j=energy_j,
        n_calls=kernels["repeat_per_iteration"].to_numpy().astype(np.int64),
        chosen=np.array(chosen, dtype=np.int64),
        chosen_time=1.0 + kernels["table1_time_pct"].to_numpy() / 100.0,
        chosen_energy=1.0 + kernels["table1_energy_pct"].to_numpy() / 100.0,
        least_time=kernels["min_time_s"].to_numpy() / time_s,
        most_time=kernels["max_time_s"].to_numpy() / time_s,
        least_energy=kernels["min_energy_J"].to_numpy() / energy_j,
        most_energy=kernels["max_energy_J"].to_numpy() / energy_j,
        again_time_pct=again_time_pct,
        again_energy_pct=again_energy_pct,
        **passes,
    )


def _again(path: Path) -> tuple[float, float]:
    """Time and energy, per cent: mean of the two points at the sizes of the fit, a repeat and no transfer."""
    points = _read(path)
    found = [points.filter(figure=figure, x=x) for figure, x in _SIZES_OF_THE_FIT]
    if any(len(rows) != 1 for rows in found):
        raise InputError(
            f"{path}: one row for batch size {BATCH} and one for degree 1 are right, "
            f"not {len(found[0])} and {len(found[1])}"
        )
    repeats = pl.concat(found)
    time, energy = repeats.select("time_pct_mean", "energy_pct_mean").to_numpy().mean(axis=0)
    return float(time), float(energy)


def _read(path: Path) -> pl.DataFrame:
    if not path.is_file():
        raise InputError(f"{path}: no such file; the published numbers are needed to fit the surfaces again")
    return pl.read_csv(path, infer_schema_length=None)


def _row(sm: object, mem: object) -> int:
    clocks = Clocks(*(AUTO if str(value) == "auto" else int(str(value)) for value in (sm, mem)))
    if clocks not in CLOCKS:
        raise InputError(f"{clocks} is none of the 66 pairs of the sweep")
    return CLOCKS.index(clocks)
