"""The analytic model of one GPU: latency, power and governor of given kernel kinds, as plain arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from kdvfs_sim.core.clocks import AUTO, AUTO_CLOCKS, Auto, ClockMhz, Clocks
from kdvfs_sim.core.errors import InputError, UnknownKernelError, UnsupportedClocksError
from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.gpu.facts import GpuFacts, Level, MemoryClock
from kdvfs_sim.gpu.governor import Rows, cap_position, effective_position, position
from kdvfs_sim.gpu.latency import (
    DEFAULT_EXPONENT,
    Floats,
    LatencyParameters,
    roofline_share,
    spread_share,
    unit_latency,
)
from kdvfs_sim.gpu.points import OperatingPoints, operating_points, uses_tensor_units
from kdvfs_sim.gpu.power import GpuPower, PowerParameters, gpu_power, unit_power


@dataclass(frozen=True, kw_only=True, eq=False)
class AnalyticModel:
    """Parameters of each kernel kind on one GPU; answers as a LatencyModel and as a PowerModel.

    ``assumed`` names the assumed numbers it leans on.
    """

    gpu: GpuFacts
    kinds: tuple[KernelKind, ...]
    latency: LatencyParameters
    power: PowerParameters
    assumed: tuple[str, ...] = ()

    def duration_ns(self, kind: KernelKind, clocks: Clocks, /) -> float:
        """Nanoseconds at numeric clocks. Raises UnknownKernelError for another kind."""
        sm_mhz, memory_mhz = _numeric(clocks)
        return float(self.latency.duration_ns(sm_mhz, memory_mhz)[self._index(kind), 0])

    def busy_power_w(self, kind: KernelKind, clocks: Clocks, /) -> float:
        """Device power with the kind running alone. Raises UnknownKernelError for another kind."""
        sm_mhz, memory_mhz = _numeric(clocks)
        durations = self.latency.duration_ns(sm_mhz, memory_mhz)
        return float(self.power.busy_w(sm_mhz, memory_mhz, durations)[self._index(kind), 0])

    def idle_power_w(self, clocks: Clocks, /) -> float:
        """Device power with nothing running."""
        return float(self.power.gpu.idle_w(*_numeric(clocks)))

    def at(self, memory: MemoryClock) -> tuple[Floats, Floats]:
        """Durations and powers, (n_kinds, n_sm), at every SM clock that goes with a memory clock."""
        sm_mhz = np.asarray(self.gpu.sm_clocks(memory), dtype=np.float64)
        durations = self.latency.duration_ns(sm_mhz, memory.mhz)
        return durations, self.power.busy_w(sm_mhz, memory.mhz, durations)

    def effective_sm_mhz(self, clocks: Clocks, power_limit_w: float | None) -> npt.NDArray[np.int64]:
        """(n_kinds,): the SM clock at which each kind runs, alone, under a request."""
        memory = memory_clock(self.gpu, clocks.mem_mhz)
        asked = requested_positions(self.gpu, memory, [clocks.sm_mhz])
        effective = effective_position(asked, cap_position(self.at(memory)[1], power_limit_w))
        return np.asarray(self.gpu.sm_clocks(memory))[effective[:, 0]]

    @cached_property
    def _row(self) -> dict[KernelKind, int]:
        return {kind: i for i, kind in enumerate(self.kinds)}

    def _index(self, kind: KernelKind) -> int:
        try:
            return self._row[kind]
        except KeyError:
            raise UnknownKernelError(kind.name, f"the model of {self.gpu.name}") from None


def analytic_model(
    gpu: GpuFacts,
    kinds: Sequence[KernelKind],
    typical_duration_ns: npt.ArrayLike,
    *,
    recorded: Clocks = AUTO_CLOCKS,
    corner: Level = "nominal",
) -> AnalyticModel:
    """The model in which every kind takes its typical duration at the recorded clocks.

    ``typical_duration_ns`` (n_kinds,), at least 0 (which counts as 1 ns): say the median of a
    kind's launches, recorded under the default power limit. At ``corner`` "high" every uncertain
    number is taken at the end at which a lower clock costs most time and saves least energy, at
    "low" at the other. Raises InputError for durations that are none, and where the GPU's entry
    lacks what the model needs.
    """
    typical_ns = np.asarray(typical_duration_ns, dtype=np.float64)
    if typical_ns.shape != (len(kinds),) or not (np.isfinite(typical_ns) & (typical_ns >= 0)).all():
        raise InputError(
            f"typical_duration_ns of shape {typical_ns.shape}: {len(kinds)} durations from 0 ns are right"
        )
    typical_ns = np.maximum(typical_ns, 1.0)
    shared = gpu_power(gpu, corner)
    points, roofline = _points(gpu, kinds, typical_ns, shared, corner)
    refined = np.isfinite(roofline)
    latency = unit_latency(
        np.where(refined, spread_share(roofline, corner), points.compute_share),
        points.fixed_share,
        points.sm_mhz,
        gpu.default_memory_mhz,
        gpu.value("latency.exponent", DEFAULT_EXPONENT),
    )
    unit = with_power(gpu, kinds, latency, shared, points, roofline=bool(refined.any()))
    ran_at = unit.effective_sm_mhz(recorded, default_limit_w(gpu))[:, None]
    factor = typical_ns / latency.duration_ns(ran_at, memory_clock(gpu, recorded.mem_mhz).mhz)[:, 0]
    return replace(unit, latency=latency.scaled(factor), power=unit.power.scaled(factor))


def with_power(
    gpu: GpuFacts,
    kinds: Sequence[KernelKind],
    latency: LatencyParameters,
    shared: GpuPower,
    points: OperatingPoints,
    *,
    roofline: bool,
) -> AnalyticModel:
    """Add to given latencies the power that the operating points ask for."""
    unit = unit_power(
        shared,
        sm_mhz=points.sm_mhz,
        power_w=points.power_w,
        work_share=points.work_share,
        memory_mhz=gpu.default_memory_mhz,
    )
    at_point = latency.duration_ns(points.sm_mhz[:, None], gpu.default_memory_mhz)[:, 0]
    return AnalyticModel(
        gpu=gpu,
        kinds=tuple(kinds),
        latency=latency,
        power=unit.scaled(at_point),
        assumed=(
            *gpu.assumed(["clocks.", "power.", "voltage.", "latency.", *points.prefixes]),
            *((f"{gpu.slug}.roofline",) if roofline else ()),
            *((f"{gpu.slug}.occupancy",) if (points.occupancy < 1.0).any() else ()),
            f"{gpu.slug}.auto_resolved_by_governor",
        ),
    )


def _points(
    gpu: GpuFacts, kinds: Sequence[KernelKind], typical_ns: Floats, shared: GpuPower, corner: Level
) -> tuple[OperatingPoints, Floats]:
    """Operating points, and compute shares by roofline (NaN where the entry's own are used).

    A roofline refines a category's share; it makes no constant kind depend on clocks and overrides
    nothing that is known of a kernel by name. A GEMM or attention kernel that it finds
    memory-bound, such as a GEMM of few rows, runs and draws as a copy does.
    """
    flops, n_bytes = (
        np.array([np.nan if count is None else count for count in counts], dtype=np.float64)
        for counts in ([kind.flops for kind in kinds], [kind.bytes for kind in kinds])
    )
    tensor = uses_tensor_units(kinds)

    def shares(points: OperatingPoints) -> Floats:
        share = roofline_share(
            gpu, flops=flops, n_bytes=n_bytes, typical_ns=typical_ns, tensor=tensor, sm_mhz=points.sm_mhz
        )
        own = points.by_name | ~np.isfinite(points.compute_share)
        return np.where(own, np.nan, share)

    points = operating_points(gpu, kinds, shared, corner)
    memory_bound = tensor & (shares(points) < 0.5)
    if memory_bound.any() and gpu.get("category.copy.power_w") is not None:
        points = operating_points(gpu, kinds, shared, corner, like_copies=memory_bound)
    return points, shares(points)


def default_limit_w(gpu: GpuFacts) -> float | None:
    """The power limit in force if nobody sets one; None where it is unknown: no cap."""
    limit = gpu.get("power.limit_w")
    return None if limit is None else limit.value


def memory_clock(gpu: GpuFacts, mem_mhz: ClockMhz) -> MemoryClock:
    """The listed memory clock that a request means. Raises UnsupportedClocksError."""
    wanted = gpu.default_memory_mhz if isinstance(mem_mhz, Auto) else mem_mhz
    for memory in gpu.memory:
        if memory.mhz == wanted:
            return memory
    nearest = gpu.clock_table().nearest(Clocks(AUTO, mem_mhz))
    raise UnsupportedClocksError(str(Clocks(AUTO, mem_mhz)), gpu.name, str(nearest))


def requested_positions(gpu: GpuFacts, memory: MemoryClock, requests: Sequence[ClockMhz]) -> Rows:
    """For each SM request the position in ``gpu.sm_clocks(memory)`` of what the board then reaches."""
    sm_mhz = gpu.sm_clocks(memory)
    limits = (gpu.auto_ceiling_mhz if isinstance(r, Auto) else min(r, gpu.ceiling_mhz) for r in requests)
    return np.array([position(sm_mhz, limit) for limit in limits], dtype=np.int32)


def _numeric(clocks: Clocks) -> tuple[int, int]:
    if isinstance(clocks.sm_mhz, Auto) or isinstance(clocks.mem_mhz, Auto):
        raise InputError(f"clocks {clocks}: a model answers for effective clocks, which are numbers")
    return clocks.sm_mhz, clocks.mem_mhz
