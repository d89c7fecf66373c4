"""A recording of one GPU on another: durations by the two models. Always an estimate, and flagged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kdvfs_sim.core.clocks import AUTO_CLOCKS, Clocks
from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.core.errors import InputError
from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.gpu.build import tabulate_model
from kdvfs_sim.gpu.facts import GpuFacts, Level
from kdvfs_sim.gpu.latency import Floats, LatencyParameters
from kdvfs_sim.gpu.model import analytic_model, with_power
from kdvfs_sim.gpu.points import operating_points, uses_tensor_units
from kdvfs_sim.gpu.power import gpu_power


@dataclass(frozen=True, kw_only=True, eq=False)
class Transfer:
    """Costs on the target GPU, and how to bring the recording there.

    ``duration_scale`` (n_kinds,): a launch's duration on the target at (AUTO, AUTO) over its
    recorded one. The recorded row of ``costs`` is (AUTO, AUTO) of the target: apply the scale to
    the recorded durations once, then use ``costs`` as if the target had been recorded.
    """

    costs: CostTable
    duration_scale: Floats


def transfer_cost_table(
    gpu: GpuFacts,
    kinds: Sequence[KernelKind],
    typical_duration_ns: npt.ArrayLike,
    *,
    recorded_on: GpuFacts,
    recorded: Clocks = AUTO_CLOCKS,
    corner: Level = "nominal",
    power_limit_w: float | None = None,
    sm_clocks: Iterable[int] | None = None,
) -> Transfer:
    """Costs on ``gpu`` of kernels recorded on another GPU at ``recorded`` clocks of that one.

    SM-bound time goes with tensor throughput for GEMMs and attention and with the number of SMs
    for the rest, memory-bound time with bandwidth, both per clock; fixed time stays. Kernels chosen for the
    target's own architecture may do better. Copies over a link and collectives keep their time.
    Raises InputError if either GPU has no model for what was recorded, else as ``cost_table``.
    """
    for side in (recorded_on, gpu):
        _check_modelled(side, kinds)
    source = analytic_model(recorded_on, kinds, typical_duration_ns, recorded=recorded, corner=corner)
    tensor = uses_tensor_units(kinds)

    def per_clock(path: str) -> float:
        return recorded_on.need(path).value / gpu.need(path).value

    sm_factor = np.where(tensor, per_clock("rates.tensor_flop_per_clock"), per_clock("rates.n_sm"))
    latency = LatencyParameters(
        sm_ns_mhz=source.latency.sm_ns_mhz * sm_factor,
        memory_ns_mhz=source.latency.memory_ns_mhz * per_clock("rates.dram_bytes_per_clock"),
        fixed_ns=source.latency.fixed_ns,
        exponent=source.latency.exponent,
    )
    shared = gpu_power(gpu, corner)
    model = with_power(
        gpu, kinds, latency, shared, operating_points(gpu, kinds, shared, corner), roofline=False
    )
    costs = tabulate_model(model, power_limit_w=power_limit_w, sm_clocks=sm_clocks)
    reference = (
        costs.effective[:, costs.recorded] if costs.recorded_effective is None else costs.recorded_effective
    )
    arrives_ns = costs.duration_ns[np.arange(len(kinds)), reference]
    typical_ns = np.maximum(np.asarray(typical_duration_ns, dtype=np.float64), 1.0)
    flags = (f"transfer.{recorded_on.slug}.to.{gpu.slug}", *source.assumed, *costs.assumed)
    return Transfer(
        costs=replace(
            costs, assumed=tuple(dict.fromkeys(flags)), source=f"{costs.source}, from {recorded_on.name}"
        ),
        duration_scale=arrives_ns / typical_ns,
    )


def _check_modelled(gpu: GpuFacts, kinds: Sequence[KernelKind]) -> None:
    for kind in kinds:
        if kind.op_class != "kernel" or kind.category == "communication":
            continue
        if gpu.get(f"category.{kind.category}.compute_share") is None:
            raise InputError(
                f"transfer: {gpu.name} has no model of {kind.category} kernels such as {kind.name[:60]!r}"
            )
