"""The GPU catalogue, for people and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.table import Table

from kdvfs_sim.core.units import format_duration
from kdvfs_sim.gpu.catalogue import gpu_names, load_gpu
from kdvfs_sim.gpu.facts import Fact, GpuFacts, rows
from kdvfs_sim.report.page import wide_console


def catalogue_json() -> list[dict[str, Any]]:
    """One object per GPU with the numbers of the overview."""
    return [_overview(load_gpu(name)) for name in gpu_names()]


def gpu_json(name: str) -> dict[str, Any]:
    """Every number of one GPU with source and kind."""
    gpu = load_gpu(name)
    return {
        "name": gpu.slug,
        "device": gpu.name,
        "generation": gpu.generation,
        "device_names": list(gpu.device_names),
        "sm_mhz": list(gpu.sm.values_mhz),
        "memory_mhz": [clock.mhz for clock in gpu.memory],
        "facts": [asdict(row) for row in rows(gpu)],
    }


def catalogue_table() -> Table:
    """The GPUs of the catalogue, one a line."""
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("name", "GPU", "generation", "SM clocks MHz", "memory MHz", "limit W", "SM switching"):
        grid.add_column(heading)
    for name in gpu_names():
        o = _overview(load_gpu(name))
        low, high = o["switching_low_ns"], o["switching_high_ns"]
        switching = "unknown" if low is None else f"{format_duration(low)} .. {format_duration(high)}"
        grid.add_row(
            o["name"],
            o["device"],
            o["generation"],
            f"{o['sm_mhz'][0]}..{o['sm_mhz'][1]} ({o['n_sm_clocks']})",
            ", ".join(map(str, o["memory_mhz"])),
            "unknown" if o["power_limit_w"] is None else f"{o['power_limit_w']:g}",
            switching,
        )
    return grid


def gpu_table(name: str) -> list[Table | str]:
    """A heading and every number with its source."""
    gpu = load_gpu(name)
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("number", "value", "unit", "range", "kind", "source"):
        grid.add_column(heading, overflow="fold", no_wrap=heading != "source")
    for row in rows(gpu):
        value = "unknown" if row.value is None else _number(row.value)
        span = "" if row.low is None or row.high is None else f"{_number(row.low)} .. {_number(row.high)}"
        source = f"{row.source} ({row.note})" if row.note else row.source
        grid.add_row(row.name, value, row.unit, span, row.kind, source)
    return [f"{gpu.name} ({gpu.slug}, {gpu.generation}); in recordings: {', '.join(gpu.device_names)}", grid]


def show(*parts: Table | str) -> None:
    """Print to stdout."""
    console = wide_console()
    for part in parts:
        console.print(part)


def _overview(gpu: GpuFacts) -> dict[str, Any]:
    switching = gpu.get("switching.sm.switching_ns")
    limit = gpu.get("power.limit_w")
    return {
        "name": gpu.slug,
        "device": gpu.name,
        "generation": gpu.generation,
        "sm_mhz": [gpu.sm.values_mhz[0], gpu.sm.values_mhz[-1]],
        "n_sm_clocks": len(gpu.sm.values_mhz),
        "memory_mhz": [clock.mhz for clock in gpu.memory],
        "power_limit_w": None if limit is None else limit.value,
        "switching_low_ns": _end(switching, "low"),
        "switching_high_ns": _end(switching, "high"),
        "n_assumed": sum(fact.kind == "assumed" for fact in gpu.facts.values()),
        "n_numbers": len(gpu.facts),
    }


def _end(fact: Fact | None, level: Any) -> float | None:
    return None if fact is None else fact.at(level)


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,.10g}"
