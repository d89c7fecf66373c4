"""How long a kernel takes at effective clocks.

``t = ((a / f_sm)^p + (b / f_mem)^p)^(1/p) + c``: SM-bound and memory-bound time overlap, a fixed part does
not scale. p = 4 is the safe default on published sweeps; p = 1 is their sum, p = inf their maximum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from kdvfs_sim.gpu.facts import GpuFacts, Level

Floats = npt.NDArray[np.float64]

DEFAULT_EXPONENT: Final = 4.0
# A roofline says which side binds, but not by how much: caches, tile shapes and latency move the balance.
ROOFLINE_SPREAD: Final = 2.0
# Below this share of the measured time the roofline explains too little of a kernel to split it.
ROOFLINE_MIN_EXPLAINED: Final = 0.25


@dataclass(frozen=True, kw_only=True, eq=False)
class LatencyParameters:
    """a, b, c of each kernel kind, arrays of shape (n_kinds,).

    ``sm_ns_mhz`` and ``memory_ns_mhz``: SM-bound and memory-bound time in ns at 1 MHz; ``fixed_ns``:
    the part that no clock changes. A kind with both at 0 takes the same time at every clock.
    """

    sm_ns_mhz: Floats
    memory_ns_mhz: Floats
    fixed_ns: Floats
    exponent: float = DEFAULT_EXPONENT

    def duration_ns(self, sm_mhz: npt.ArrayLike, memory_mhz: npt.ArrayLike) -> Floats:
        """(n_kinds, n): durations at n pairs of clocks; clocks of shape (n_kinds, n) are per kind."""
        sm_ns = self.sm_ns_mhz[:, None] / np.atleast_1d(np.asarray(sm_mhz, dtype=np.float64))
        memory_ns = self.memory_ns_mhz[:, None] / np.atleast_1d(np.asarray(memory_mhz, dtype=np.float64))
        return p_norm(sm_ns, memory_ns, self.exponent) + self.fixed_ns[:, None]

    def scaled(self, factor: Floats) -> LatencyParameters:
        """The same shapes with every duration times ``factor`` (n_kinds,)."""
        return LatencyParameters(
            sm_ns_mhz=self.sm_ns_mhz * factor,
            memory_ns_mhz=self.memory_ns_mhz * factor,
            fixed_ns=self.fixed_ns * factor,
            exponent=self.exponent,
        )


def p_norm(x: Floats, y: Floats, exponent: float) -> Floats:
    """(x^p + y^p)^(1/p) for x, y >= 0 and p >= 1 or inf, without overflow."""
    if exponent == 1.0:
        return x + y
    larger = np.maximum(x, y)
    if np.isinf(exponent):
        return larger
    ratio = np.minimum(x, y) / np.where(larger > 0, larger, 1.0)
    norm: Floats
    if exponent == 4.0:  # the default, and numpy's general power is some twenty times slower
        norm = larger * np.sqrt(np.sqrt(1.0 + ratio * ratio * (ratio * ratio)))
    else:
        norm = larger * (1.0 + ratio**exponent) ** (1.0 / exponent)
    return norm


def unit_latency(
    compute_share: Floats, fixed_share: Floats, sm_mhz: Floats, memory_mhz: float, exponent: float
) -> LatencyParameters:
    """Parameters of kernels that take exactly 1 ns at ``sm_mhz`` (n_kinds,) and ``memory_mhz``.

    ``compute_share``: SM-bound over SM-bound plus memory-bound time there, NaN for a kind whose
    duration does not depend on the clocks.
    """
    constant = np.isnan(compute_share)
    share = np.where(constant, 0.5, compute_share)
    fixed = np.where(constant, 1.0, fixed_share)
    scale = (1.0 - fixed) / p_norm(share, 1.0 - share, exponent)
    return LatencyParameters(
        sm_ns_mhz=scale * share * np.where(constant, 1.0, sm_mhz),
        memory_ns_mhz=scale * (1.0 - share) * memory_mhz,
        fixed_ns=fixed,
        exponent=exponent,
    )


def roofline_share(
    gpu: GpuFacts,
    *,
    flops: Floats,
    n_bytes: Floats,
    typical_ns: Floats,
    tensor: npt.NDArray[np.bool_],
    sm_mhz: Floats,
) -> Floats:
    """(n_kinds,) compute shares from FLOPs and bytes per launch; NaN where they explain too little.

    Moving bytes keeps the SMs busy too: the SM-bound time is at least what a copy of as many bytes
    has. ``tensor``: kinds that may use the tensor units. Where those leave most of the measured
    time unexplained, the vector units are tried: a 32-bit GEMM does not run on tensor units.
    """
    share = np.full(flops.shape, np.nan)
    copy = gpu.value("category.copy.compute_share", 0.0)
    dram = gpu.get("rates.dram_bytes_per_clock")
    if dram is None:
        return share
    memory_ns = n_bytes / dram.value / gpu.default_memory_mhz * 1e3
    for units, applies in (("vector", np.ones_like(tensor)), ("tensor", tensor)):
        rate = gpu.get(f"rates.{units}_flop_per_clock")
        if rate is None:
            continue
        sm_ns = flops / rate.value / sm_mhz * 1e3
        with np.errstate(invalid="ignore"):
            explains = applies & (np.maximum(sm_ns, memory_ns) >= ROOFLINE_MIN_EXPLAINED * typical_ns)
        sm_bound = np.maximum(sm_ns, memory_ns * copy / (1.0 - copy))[explains]
        share[explains] = sm_bound / (sm_bound + memory_ns[explains])
    return share


def spread_share(share: Floats, level: Level) -> Floats:
    """The end of a roofline's range: SM-bound over memory-bound time off by ROOFLINE_SPREAD."""
    factor = {"low": 1.0 / ROOFLINE_SPREAD, "nominal": 1.0, "high": ROOFLINE_SPREAD}[level]
    spread: Floats = factor * share / (factor * share + 1.0 - share)
    return spread
