"""Public value classes carry the unit of every number in its name."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import pkgutil
from collections.abc import Iterator

import kdvfs_hw
import pytest

import kdvfs_sim

UNITS = (
    "_ns", "_ms", "_s", "_seconds", "_mhz", "_w", "_j", "_c", "_js", "_js2", "_pct", "_mj", "_mw", "_bytes",
    "_pid",
)  # fmt: skip
# counts, positions, ratios, and numbers whose unit another field decides
PLAIN = {
    "launch", "stream", "device", "seed", "share", "lower_bound", "steps", "overshoot", "recorded", "start",
    "flops", "bytes", "value", "low", "high", "index", "kind", "row", "exponent", "number", "bound",
    "correlation", "recorded_correlation", "recorded_stream", "device_names", "repairs", "quarantined",
    "cut", "rise", "bend", "excess", "gap", "sigma", "kept", "baseline", "p_value", "energy_factor",
    "residual_p95", "gain", "burst", "burst_gain", "most", "least",
    "auto_power_slope", "auto_clock_slope", "inner_per_tile",
    "n", "repeats", "mean", "capped", "slack", "tolerance", "predicted", "default",
    "architecture", "confidence", "cuda_ordinal",
}  # fmt: skip

WITH_TORCH = {"kdvfs_hw.workloads.torch_graph", "kdvfs_hw.workloads.gpt3xl"}


def _value_classes() -> Iterator[type]:
    for module in (
        *pkgutil.walk_packages(kdvfs_sim.__path__, "kdvfs_sim."),
        *pkgutil.walk_packages(kdvfs_hw.__path__, "kdvfs_hw."),
    ):
        if ".cli" in module.name or module.name.rpartition(".")[2].startswith("_"):
            continue
        if module.name in WITH_TORCH and importlib.util.find_spec("torch") is None:
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            here = isinstance(value, type) and value.__module__ == module.name
            if here and dataclasses.is_dataclass(value) and not name.startswith("_"):
                yield value


@pytest.mark.parametrize("cls", list(_value_classes()), ids=lambda c: f"{c.__module__}.{c.__qualname__}")
def test_a_number_carries_its_unit(cls: type) -> None:
    for field in dataclasses.fields(cls):
        # annotations are text here, so names that only exist for the type checker do not matter
        options = {option.strip() for option in str(field.type).split("|")}
        if not options & {"int", "float"} or field.name.startswith(("_", "n_")):
            continue
        unit = field.name in PLAIN or "efficiency" in field.name or f"_{field.name}".endswith(UNITS)
        assert unit, f"{cls.__name__}.{field.name} has no unit"
