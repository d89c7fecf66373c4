"""Emulated GPUs made from the library's catalogue and cost tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from kdvfs_hw.emulator.behaviour import GAP, Load, TableBehaviour
from kdvfs_hw.emulator.sensors import Sensors
from kdvfs_hw.emulator.spec import DeviceSpec
from kdvfs_sim.core.clocks import Auto, Clocks
from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.core.kinds import CATEGORIES, KernelKind
from kdvfs_sim.gpu.build import cost_table
from kdvfs_sim.gpu.catalogue import load_gpu
from kdvfs_sim.gpu.facts import GpuFacts
from kdvfs_sim.gpu.switching import dynamic_governor, switching_model

# nvmlDeviceArchitecture_t
_ARCHITECTURES: Final = {"volta": 5, "turing": 6, "ampere": 7, "ada": 8, "hopper": 9, "blackwell": 10}
_TYPICAL_NS: Final = 1_000_000.0
_PAUSE_NS: Final = 1000.0
_NO_LIMIT_W: Final = 10_000.0


def device_spec(name: str) -> DeviceSpec:
    """A GPU of the catalogue with one kernel kind for each category, named like it, of 1 ms each.

    Raises UnknownGpuError, and InputError where the entry lacks a number the emulator needs.
    """
    gpu = load_gpu(name)
    kinds = [KernelKind(name=category, category=category) for category in CATEGORIES]
    return spec_from_costs(gpu, cost_table(gpu, kinds, np.full(len(kinds), _TYPICAL_NS)))


def spec_from_costs(gpu: GpuFacts, costs: CostTable) -> DeviceSpec:
    """An emulated GPU that behaves exactly as ``costs`` and the GPU's nominal switching say.

    Load names are ``load_names(costs)``. A kind of unknown power draws idle power here: a made-up
    GPU must draw something, and predictions for such a kind have no energy to compare with.
    """
    switching = switching_model(gpu)
    period_ns = round(gpu.value("sensor.period_ns", Sensors().instant_period_ns))
    window_ns = round(gpu.value("sensor.window_ns", Sensors().instant_window_ns))
    governor = dynamic_governor(gpu)
    return DeviceSpec(
        name=f"{gpu.name} (emulated)",
        behaviour=TableBehaviour(
            rows=costs.clocks,
            mhz=tuple(_observed(gpu, row) for row in costs.clocks),
            loads=_loads(costs),
            idle_w=tuple(costs.idle_power_w.tolist()),
            idle_mhz=(gpu.auto_ceiling_mhz, gpu.default_memory_mhz),
            sm=switching.sm,
            mem=switching.memory,
        ),
        power_limit_w=_NO_LIMIT_W if costs.cap_w is None else costs.cap_w,
        sensors=Sensors(
            counter_period_ns=period_ns, instant_period_ns=period_ns, instant_window_ns=window_ns
        ),
        # no budget: what is measured here must not depend on when a load began
        governor=None if governor is None else replace(governor, budget=None),
        architecture=_ARCHITECTURES.get(gpu.generation.split()[0].lower(), 9),
    )


def load_names(costs: CostTable) -> tuple[str, ...]:
    """The emulated GPU's name for each kind of a cost table: the kind's, numbered where it repeats."""
    seen: dict[str, int] = {}
    names = []
    for kind in costs.kinds:
        seen[kind] = seen.get(kind, 0) + 1
        names.append(kind if seen[kind] == 1 else f"{kind}#{seen[kind]}")
    return tuple(names)


def _loads(costs: CostTable) -> dict[str, Load]:
    power_w = np.where(np.isnan(costs.power_w), costs.idle_power_w, costs.power_w)
    rows = tuple(range(costs.n_clocks))
    pause = Load(
        duration_ns=(_PAUSE_NS,) * len(rows), power_w=tuple(costs.idle_power_w.tolist()), effective=rows
    )
    return {GAP: pause} | {
        name: Load(
            duration_ns=tuple(costs.duration_ns[i].tolist()),
            power_w=tuple(power_w[i].tolist()),
            effective=tuple(costs.effective[i].tolist()),
        )
        for i, name in enumerate(load_names(costs))
    }


def _observed(gpu: GpuFacts, row: Clocks) -> tuple[int, int]:
    return (
        gpu.auto_ceiling_mhz if isinstance(row.sm_mhz, Auto) else row.sm_mhz,
        gpu.default_memory_mhz if isinstance(row.mem_mhz, Auto) else row.mem_mhz,
    )
