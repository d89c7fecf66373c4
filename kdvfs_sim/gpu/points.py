"""What an entry says about each kernel kind: the clock and power it is known to run at, and its shares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

import numpy as np
import numpy.typing as npt

from kdvfs_sim.core.errors import InputError
from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.gpu.facts import GpuFacts, Level
from kdvfs_sim.gpu.latency import Floats
from kdvfs_sim.gpu.power import GpuPower

TENSOR_CATEGORIES: Final = ("gemm", "attention")
_COPY: Final = "category.copy"
_HOST_LINK: Final = "host_link"  # copies to and from the host, where their power is known
_OPPOSITE: Final[dict[Level, Level]] = {"low": "high", "nominal": "nominal", "high": "low"}


@dataclass(frozen=True, kw_only=True, eq=False)
class OperatingPoints:
    """One operating point for each kernel kind; all arrays have shape (n_kinds,).

    ``paths``: where the entry describes the kind, ``kernel.<pattern>``, ``category.<category>`` or
    ``host_link``; '' for nowhere. At ``sm_mhz`` and the default memory clock it draws ``power_w``.
    Unknown is NaN: a NaN ``compute_share`` means that no clock changes the duration, a NaN ``power_w``
    gives a null energy. ``occupancy``: share of the SMs that the kernel fills, already in ``power_w``.
    """

    paths: tuple[str, ...]
    sm_mhz: Floats
    power_w: Floats
    compute_share: Floats
    fixed_share: Floats
    work_share: Floats
    occupancy: Floats

    @property
    def by_name(self) -> npt.NDArray[np.bool_]:
        """Kinds with numbers of their own, not their category's."""
        return np.array([path.startswith("kernel.") for path in self.paths], dtype=np.bool_)

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Where in the entry these numbers are."""
        return tuple(f"{path}." for path in dict.fromkeys(self.paths) if path)


def operating_points(
    gpu: GpuFacts,
    kinds: Sequence[KernelKind],
    shared: GpuPower,
    level: Level,
    *,
    like_copies: npt.NDArray[np.bool_] | None = None,
) -> OperatingPoints:
    """Read the entry, each uncertain share at the end that ``level`` asks for (see ``analytic_model``).

    A kernel of fewer blocks than the GPU has SMs leaves SMs idle: it draws that much less above
    idle. ``like_copies`` (n_kinds,): kernels to be described as copies, whatever their category.
    Raises InputError if a kernel is said to draw less than the idle GPU.
    """
    paths = tuple(_path(gpu, kind) for kind in kinds)
    if like_copies is not None:
        paths = tuple(_COPY if like else path for path, like in zip(paths, like_copies, strict=True))
    points = {path: _point(gpu, path, level) for path in dict.fromkeys(paths)}
    for path, (sm_mhz, power_w, *_) in points.items():
        idle_w = float(shared.idle_w(sm_mhz, gpu.default_memory_mhz))
        if power_w < idle_w:
            raise InputError(
                f"gpu {gpu.slug}: {path}.power_w is {power_w:g}; more than the idle {idle_w:.0f} W is right"
            )
    table = np.array([points[path] for path in paths], dtype=np.float64).reshape(len(paths), 5)
    constant = [kind.op_class != "kernel" or kind.category == "communication" for kind in kinds]
    idle = shared.idle_w(table[:, 0], gpu.default_memory_mhz)
    occupancy = _occupancy(gpu, kinds)
    return OperatingPoints(
        paths=paths,
        sm_mhz=table[:, 0],
        power_w=idle + occupancy * (table[:, 1] - idle),
        compute_share=np.where(constant, np.nan, table[:, 2]),
        fixed_share=table[:, 3],
        work_share=table[:, 4],
        occupancy=occupancy,
    )


def uses_tensor_units(kinds: Sequence[KernelKind]) -> npt.NDArray[np.bool_]:
    """(n_kinds,), by category: a recording does not say."""
    return np.array([kind.category in TENSOR_CATEGORIES for kind in kinds], dtype=np.bool_)


def _occupancy(gpu: GpuFacts, kinds: Sequence[KernelKind]) -> Floats:
    """Share of the SMs that have a block; 1 where the launch geometry or the number of SMs is unknown."""
    n_sm = gpu.value("rates.n_sm", 1.0)
    n_blocks = np.array([math.inf if kind.grid is None else math.prod(kind.grid) for kind in kinds])
    return np.clip(n_blocks / n_sm, 0.0, 1.0)


def _path(gpu: GpuFacts, kind: KernelKind) -> str:
    if kind.op_class == "kernel":
        for pattern in gpu.kernel_patterns:
            if fnmatchcase(kind.name, pattern):
                return f"kernel.{pattern}"
    # only memory operations within the device load its memory; the others wait for a link
    on_device = kind.op_class == "memset" or "DtoD" in kind.name
    over_host_link = kind.op_class == "memcpy" and ("HtoD" in kind.name or "DtoH" in kind.name)
    if over_host_link and gpu.get(f"{_HOST_LINK}.power_w") is not None:
        return _HOST_LINK
    category = kind.category if kind.op_class == "kernel" else "copy" if on_device else "communication"
    path = f"category.{category}"
    return path if gpu.get(f"{path}.power_w") is not None else ""


def _point(gpu: GpuFacts, path: str, level: Level) -> tuple[float, float, float, float, float]:
    if not path:
        return gpu.auto_ceiling_mhz, np.nan, np.nan, 1.0, 0.0
    compute = gpu.get(f"{path}.compute_share")
    fixed = gpu.get(f"{path}.fixed_share")
    work = gpu.get(f"{path}.work_share")
    return (
        gpu.value(f"{path}.sm_mhz", gpu.auto_ceiling_mhz),
        gpu.need(f"{path}.power_w").value,
        np.nan if compute is None else compute.at(level),
        0.0 if fixed is None else fixed.at(_OPPOSITE[level]),
        1.0 if work is None else work.at(level),
    )
