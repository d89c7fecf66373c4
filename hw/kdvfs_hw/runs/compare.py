"""From kernels read one by one to the step they make up: does the model's step agree with the step read?

The kernels' readings become operating points of the GPU's entry, as ``kdvfs fit`` makes them, and
``averaged_step`` says what a step of them settles at under the power limit. Nothing of the step's own
readings goes into its prediction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from kdvfs_hw.runs.record import read_record
from kdvfs_hw.runs.verdict import ENERGY_TOLERANCE, TIME_TOLERANCE, Quantity, Verdict, quantity
from kdvfs_sim.core.errors import InputError
from kdvfs_sim.core.kinds import Category, KernelKind, OpClass
from kdvfs_sim.gpu.averaged import averaged_step
from kdvfs_sim.gpu.catalogue import load_gpu, match_device
from kdvfs_sim.gpu.operators import OperatorReading, fit_operators, leave_one_out

_CAPPED: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A record's step against the step its kernels predict; ``sum_*``: readings simply added up."""

    workload: str
    time: Quantity
    energy: Quantity
    sum_time_s: float
    sum_energy_j: float
    step_sm_mhz: int
    read_sm_mhz: float
    n_kernels: int

    @property
    def verdict(self) -> Verdict:
        return Verdict(quantities=(self.time, self.energy))


def compare_record(path: Path, *, gpu: str | None = None) -> Comparison:
    """Read a record of ``kdvfs hw observe --kernels`` and judge its step.

    Raises InputError where the record holds no kernels or no step, or the GPU is not in the catalogue.
    """
    lines = read_record(path)
    parts = {line["part"]: line for line in lines if line["kind"] == "part"}
    steps = [line for line in lines if line["kind"] == "step" and not line["void"]]
    kernels: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        if line["kind"] == "kernel" and not line["void"]:
            kernels.setdefault(line["part"], []).append(line)
    if not steps or not kernels:
        raise InputError(f"{path}: needs readings of the step and its kernels (kdvfs hw observe --kernels)")
    missing = sorted(set(parts) - set(kernels))
    if missing:
        raise InputError(f"{path}: {len(missing)} kernels were not read, the first {missing[0]!r}")
    slug = gpu or match_device(lines[0]["gpu"])
    if slug is None:
        raise InputError(f"{path}: {lines[0]['gpu']!r} is not in the catalogue; name one with --gpu")
    entry = load_gpu(slug)
    readings = [_operator(parts[name], read, path) for name, read in kernels.items()]
    each = [reading for reading in readings for _ in range(int(parts[reading.name]["n_per_step"]))]
    step = averaged_step(
        fit_operators(entry, readings, source=str(path)),
        [_kind(parts[reading.name]) for reading in each],
        duration_ns=[reading.time_s * 1e9 for reading in each],
        looped=np.ones(len(each), dtype=np.bool_),
        gap_ns=0.0,
        errors=leave_one_out(entry, readings),
    )
    name = str(lines[0]["workload"].get("workload", ""))
    times, energies = ([line[field] for line in steps] for field in ("time_s", "energy_j"))
    return Comparison(
        workload=name,
        time=quantity("step", "time", "s", step.time_s, times, TIME_TOLERANCE),
        energy=quantity("step", "energy", "J", step.energy_j, energies, ENERGY_TOLERANCE),
        sum_time_s=sum(reading.time_s for reading in each),
        sum_energy_j=sum(reading.time_s * reading.power_w for reading in each),
        step_sm_mhz=step.sm_mhz,
        read_sm_mhz=float(np.mean([line["sm_mhz"] for line in steps if line["sm_mhz"] is not None])),
        n_kernels=len(each),
    )


def _operator(part: Mapping[str, Any], read: Sequence[Mapping[str, Any]], path: Path) -> OperatorReading:
    """The mean of the readings of one kernel; its own name is its pattern, so that each keeps its own."""
    values: dict[str, float] = {}
    for field in ("time_s", "sm_mhz", "power_w", "capped"):
        known = [line[field] for line in read if line[field] is not None]
        if not known:
            raise InputError(f"{path}: no {field} is known of kernel {part['part']!r}")
        values[field] = float(np.mean(known))
    return OperatorReading(
        name=part["part"],
        category=cast(Category, part["category"]),
        time_s=values["time_s"],
        sm_mhz=values["sm_mhz"],
        power_w=values["power_w"],
        kernel=part["part"],
        flops=part["flops"],
        capped=values["capped"] > _CAPPED,
    )


def _kind(part: Mapping[str, Any]) -> KernelKind:
    return KernelKind(
        name=part["part"], op_class=cast(OpClass, part["op_class"]), category=cast(Category, part["category"])
    )


def comparison_lines(found: Comparison) -> Iterator[str]:
    """A page for people."""
    yield f"{found.workload}: its step, predicted from {found.n_kernels} operations read one by one"
    yield from found.verdict.lines()
    time, energy = found.time.measured, found.energy.measured
    if time is not None and energy is not None:
        yield (
            f"  readings simply added up: {found.sum_time_s:.5g} s "
            f"({100 * (found.sum_time_s / time.mean - 1):+.2f} %), {found.sum_energy_j:.5g} J "
            f"({100 * (found.sum_energy_j / energy.mean - 1):+.2f} %)"
        )
    yield f"  SM clock of the step: predicted {found.step_sm_mhz} MHz, read {found.read_sm_mhz:.0f}"
