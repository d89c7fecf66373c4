"""Device power at effective clocks, before the power cap.

``P = P0 + m(f_mem) + b V(f)^2 f + e V(f)^2 / t``: a floor that the SM clock does not touch, the clock tree
and what follows the clock, and what follows the work rate (``e V^2`` is an energy per launch). V is
flat up to a knee, then linear. One V and one floor for a GPU, b and e for each kernel kind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kdvfs_sim.core.errors import InputError
from kdvfs_sim.gpu.facts import GpuFacts, Level

Floats = npt.NDArray[np.float64]
_OPPOSITE: dict[Level, Level] = {"low": "high", "nominal": "nominal", "high": "low"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPower:
    """The part of the model that all kernels of a GPU share.

    ``floor_w``: at the default memory clock ``memory_mhz``; ``memory_w`` of it is proportional to
    the memory clock. ``tree_w_per_mhz``: idle power that follows V^2 f. Voltage is relative to its
    flat part: 1 up to ``knee_mhz``, ``1 + rise`` at ``ceiling_mhz``.
    """

    floor_w: float
    memory_w: float
    memory_mhz: float
    tree_w_per_mhz: float
    knee_mhz: float
    rise: float
    ceiling_mhz: float

    def voltage(self, sm_mhz: npt.ArrayLike) -> Floats:
        above = np.maximum(np.asarray(sm_mhz, dtype=np.float64) - self.knee_mhz, 0.0)
        return 1.0 + self.rise * above / (self.ceiling_mhz - self.knee_mhz)

    def tree_mhz(self, sm_mhz: npt.ArrayLike) -> Floats:
        """V(f)^2 f, in MHz at the flat voltage."""
        sm = np.asarray(sm_mhz, dtype=np.float64)
        tree: Floats = self.voltage(sm) ** 2 * sm
        return tree

    def idle_w(self, sm_mhz: npt.ArrayLike, memory_mhz: npt.ArrayLike) -> Floats:
        """Device power with nothing running, with a context."""
        memory = np.asarray(memory_mhz, dtype=np.float64) / self.memory_mhz - 1.0
        idle: Floats = self.floor_w + self.memory_w * memory + self.tree_w_per_mhz * self.tree_mhz(sm_mhz)
        return idle


@dataclass(frozen=True, kw_only=True, eq=False)
class PowerParameters:
    """b and e of each kernel kind, arrays of shape (n_kinds,); NaN where the kind's power is unknown.

    ``clock_w_per_mhz``: b beyond the idle clock tree. ``work_nj``: e, energy per launch at the flat
    voltage, in nJ (W times ns).
    """

    gpu: GpuPower
    clock_w_per_mhz: Floats
    work_nj: Floats

    def busy_w(self, sm_mhz: npt.ArrayLike, memory_mhz: npt.ArrayLike, duration_ns: Floats) -> Floats:
        """(n_kinds, n): device power with one kernel running alone, for durations (n_kinds, n)."""
        follows_clock = self.clock_w_per_mhz[:, None] * self.gpu.tree_mhz(sm_mhz)
        follows_work = self.work_nj[:, None] * self.gpu.voltage(sm_mhz) ** 2 / duration_ns
        busy: Floats = self.gpu.idle_w(sm_mhz, memory_mhz) + follows_clock + follows_work
        return busy

    def scaled(self, factor: Floats) -> PowerParameters:
        """The same powers for launches whose durations are ``factor`` (n_kinds,) times as long."""
        return PowerParameters(
            gpu=self.gpu, clock_w_per_mhz=self.clock_w_per_mhz, work_nj=self.work_nj * factor
        )


def gpu_power(gpu: GpuFacts, level: Level = "nominal") -> GpuPower:
    """The shared part, from idle readings and the voltage curve. Raises InputError if one is missing.

    At ``level`` "high" a lower clock saves least: the voltage falls least with the clock.
    """
    floor, idle = gpu.need("power.floor_w").value, gpu.need("power.idle_w").value
    if idle < floor:
        raise InputError(f"gpu {gpu.slug}: power.idle_w is {idle}; at least power.floor_w, {floor}, is right")
    shape = GpuPower(
        floor_w=floor,
        memory_w=gpu.value("power.memory_w", 0.0),
        memory_mhz=gpu.default_memory_mhz,
        tree_w_per_mhz=0.0,
        knee_mhz=gpu.need("voltage.knee_mhz").value,
        rise=gpu.need("voltage.rise").at(_OPPOSITE[level]),
        ceiling_mhz=gpu.ceiling_mhz,
    )
    if not shape.knee_mhz < shape.ceiling_mhz:
        raise InputError(
            f"gpu {gpu.slug}: voltage.knee_mhz is {shape.knee_mhz}; below {shape.ceiling_mhz} is right"
        )
    if shape.memory_w > floor:
        raise InputError(f"gpu {gpu.slug}: power.memory_w is {shape.memory_w}; at most {floor} is right")
    tree = (idle - floor) / float(shape.tree_mhz(gpu.auto_ceiling_mhz))
    return replace(shape, tree_w_per_mhz=tree)


def unit_power(
    shared: GpuPower, *, sm_mhz: Floats, power_w: Floats, work_share: Floats, memory_mhz: float
) -> PowerParameters:
    """Parameters of kernels that draw ``power_w`` at ``sm_mhz`` and take 1 ns there; all (n_kinds,)."""
    dynamic = power_w - shared.idle_w(sm_mhz, memory_mhz)
    return PowerParameters(
        gpu=shared,
        clock_w_per_mhz=(1.0 - work_share) * dynamic / shared.tree_mhz(sm_mhz),
        work_nj=work_share * dynamic / shared.voltage(sm_mhz) ** 2,
    )
