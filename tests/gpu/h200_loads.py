"""Power, SM clock and kernel time of loads that an H200's power budget moved, and the V(f) they agree on."""

from __future__ import annotations

from functools import cache
from typing import Final, NamedTuple

import numpy as np
import polars as pl
from scipy.optimize import minimize_scalar, nnls

from kdvfs_sim.gpu.catalogue import load_gpu
from kdvfs_sim.gpu.latency import Floats
from kdvfs_sim.gpu.power import GpuPower, gpu_power
from tests.gpu.h200_readings import MEAN_POWER, changed

STEADY_MHZ: Final = 60  # by how much the clock may have moved while power was averaged
BEGUN_NS: Final = 120_000_000
BIN_MHZ: Final = 20  # clocks this near count once: a load stays at its highest most of the time


class Load(NamedTuple):
    """Medians of readings at about the same clock, in ascending order of the clock."""

    sm_mhz: Floats
    time_s: Floats
    power_w: Floats


@cache
def watched_loads() -> dict[str, Load]:
    """All but the products, whose clock swings faster than power is read."""
    table = pl.read_csv(MEAN_POWER / "power_and_time_of_14_loads.csv.gz").filter(
        (pl.col("sm_mhz_most") - pl.col("sm_mhz_least") <= STEADY_MHZ) & (pl.col("t_ns") > BEGUN_NS)
    )
    binned = (
        table.group_by("load", (pl.col("sm_mhz") / BIN_MHZ).round().alias("bin"))
        .agg(pl.col("sm_mhz", "duration_ns", "power_w").median())
        .sort("load", "bin")
    )
    return {
        str(name): Load(
            part["sm_mhz"].to_numpy(), part["duration_ns"].to_numpy() * 1e-9, part["power_w"].to_numpy()
        )
        for (name,), part in binned.group_by("load", maintain_order=True)
    }


def shape(rise: float, knee_mhz: float | None = None) -> GpuPower:
    """The entry's power with another voltage curve."""
    gpu = load_gpu("h200")
    knee_mhz = gpu.need("voltage.knee_mhz").value if knee_mhz is None else knee_mhz
    return gpu_power(changed(gpu, {"voltage.rise": rise, "voltage.knee_mhz": knee_mhz}))


def unexplained(load: Load, power: GpuPower) -> float:
    """Root of the mean square of relative errors of the best ``b V^2 f + e V^2 / t`` beside the idle GPU."""
    squared = power.voltage(load.sm_mhz) ** 2
    columns = np.stack([squared * load.sm_mhz * 1e-3, squared * 1e-4 / load.time_s], axis=1)
    rest_w = load.power_w - power.idle_w(load.sm_mhz, power.memory_mhz)
    missed = nnls(columns / load.power_w[:, None], rest_w / load.power_w)[1]
    return float(missed) / float(np.sqrt(load.sm_mhz.size))


def misfit(loads: dict[str, Load], rise: float, knee_mhz: float | None = None) -> float:
    """The same over all loads, each counting as much."""
    power = shape(rise, knee_mhz)
    return float(np.sqrt(np.mean([unexplained(load, power) ** 2 for load in loads.values()])))


def fitted_rise(loads: dict[str, Load], knee_mhz: float | None = None) -> float:
    """The rise of the voltage that all loads agree on best."""
    found = minimize_scalar(lambda rise: misfit(loads, rise, knee_mhz), bounds=(0.05, 0.5), method="bounded")
    return float(found.x)


def predicted_errors(name: str) -> Floats:
    """Relative errors of a load's power, by the rise that the others agree on, from its one reading at its
    highest clock, with the category's share of work and its own times."""
    loads = dict(watched_loads())
    load = loads.pop(name)
    power = shape(round(fitted_rise(loads), 3))
    share = load_gpu("h200").need("category.elementwise.work_share").value
    squared = power.voltage(load.sm_mhz) ** 2
    follows = share * squared * load.time_s[-1] / load.time_s / squared[-1]
    follows += (1 - share) * squared * load.sm_mhz / (squared[-1] * load.sm_mhz[-1])
    idle_w = power.idle_w(load.sm_mhz, power.memory_mhz)
    errors: Floats = (idle_w + (load.power_w[-1] - idle_w[-1]) * follows) / load.power_w - 1
    return errors[:-1]
