"""What the driver's readings cost, how often they change, and where two power readings part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from kdvfs_hw.measure.counter import find_edges, find_period
from kdvfs_sim.core.device import Device, EnergyReading, Feature
from kdvfs_sim.core.errors import DeviceUnsupportedError

_N_CALLS: Final = 30
_COUNTER_NS: Final = 3_000_000_000
_POWER_NS: Final = 2_000_000_000


def call_costs(device: Device) -> Mapping[str, Mapping[str, float | None]]:
    """Microseconds of each kind of reading: median, 90 %, longest; None where the GPU has it not."""
    calls: dict[Feature, Callable[[], Any]] = {
        Feature.READ_CLOCKS: device.observed_clocks,
        Feature.ENERGY_COUNTER: device.energy_counter,
        Feature.INSTANT_POWER: lambda: device.power("instant"),
        Feature.AVERAGE_POWER: lambda: device.power("average"),
        Feature.THROTTLE_REASONS: device.throttle_reasons,
        Feature.TEMPERATURE: device.temperature_c,
        Feature.PROCESSES: device.foreign_processes,
    }
    return {feature.value: _cost(device, read) for feature, read in calls.items()}


def _cost(device: Device, read: Callable[[], Any]) -> Mapping[str, float | None]:
    took = []
    try:
        for _ in range(_N_CALLS):
            begin_ns = device.time.now_ns()
            read()
            took.append((device.time.now_ns() - begin_ns) * 1e-3)
    except DeviceUnsupportedError:
        return {"median_us": None, "p90_us": None, "longest_us": None}
    return {
        "median_us": float(np.median(took)),
        "p90_us": float(np.percentile(took, 90)),
        "longest_us": max(took),
    }


def counter_period(device: Device) -> Mapping[str, float | int | None]:
    """How often the energy counter moves, from reading it back to back."""
    readings: list[EnergyReading] = []
    end_ns = device.time.now_ns() + _COUNTER_NS
    try:
        while device.time.now_ns() < end_ns:
            readings.append(device.energy_counter())
    except DeviceUnsupportedError:
        return {"period_ms": None, "jitter_ms": None, "n_updates": 0}
    edges = find_edges(readings)
    period = find_period(edges)
    return {
        "period_ms": None if period is None else period.period_ns * 1e-6,
        "jitter_ms": None if period is None else period.jitter_ns * 1e-6,
        "n_updates": len(edges),
    }


def instant_power_period(device: Device) -> float | None:
    """Median time between changes of the instant power reading, ms."""
    changes, last = [], None
    end_ns = device.time.now_ns() + _POWER_NS
    try:
        while device.time.now_ns() < end_ns:
            reading = device.power("instant")
            if last is not None and reading.power_w != last:
                changes.append(reading.returned_ns)
            last = reading.power_w
            device.time.sleep_ns(1_000_000)
    except DeviceUnsupportedError:
        return None
    return float(np.median(np.diff(changes)) * 1e-6) if len(changes) > 2 else None
