"""A sweep as arrays: one number for each kernel and clock pair, repeats merged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.core.errors import InputError
from kdvfs_sim.gpu.fit.sweep import Sweep

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Merge: TypeAlias = Literal["median", "mean", "minimum", "lower_mode"]

# Repeats that are further apart than this are two modes, not noise: quiet sets repeat to below 1 %.
MODE_GAP: Final = 0.1


@dataclass(frozen=True, kw_only=True, eq=False)
class Readings:
    """Times and powers of kernels at numeric clocks; arrays have shape (n_kernels, n_clocks).

    NaN marks what was not measured. ``sm_mhz``, ``mem_mhz`` (n_clocks,): as requested.
    ``sm_mhz_actual``: as read, NaN where not. ``n_repeats``: readings merged into one number.
    """

    kernels: tuple[str, ...]
    categories: tuple[str, ...]
    sm_mhz: Floats
    mem_mhz: Floats
    time_s: Floats
    power_w: Floats
    sm_mhz_actual: Floats
    n_repeats: Floats
    source: str = ""

    def __post_init__(self) -> None:
        shape = (len(self.kernels), self.sm_mhz.shape[0])
        for name in ("time_s", "power_w", "sm_mhz_actual", "n_repeats"):
            if getattr(self, name).shape != shape:
                raise InputError(f"Readings: {name} has shape {getattr(self, name).shape}; {shape} is right")
        if len(self.categories) != shape[0] or self.mem_mhz.shape != shape[1:]:
            raise InputError(f"Readings: categories or mem_mhz do not fit {shape} kernels and clocks")

    @property
    def n_kernels(self) -> int:
        return len(self.kernels)

    @property
    def n_clocks(self) -> int:
        return int(self.sm_mhz.shape[0])

    @property
    def clocks(self) -> tuple[Clocks, ...]:
        return tuple(Clocks(int(s), int(m)) for s, m in zip(self.sm_mhz, self.mem_mhz, strict=True))

    @property
    def effective_sm_mhz(self) -> Floats:
        """(n_kernels, n_clocks): the SM clock that was read, where it was, else the one requested."""
        return np.where(np.isnan(self.sm_mhz_actual), self.sm_mhz, self.sm_mhz_actual)

    @property
    def memory_states(self) -> Floats:
        """The distinct memory clocks, ascending."""
        return np.unique(self.mem_mhz)

    @property
    def baseline(self) -> int:
        """Column of the highest SM clock at the highest memory clock that goes with it."""
        return int(np.lexsort((self.mem_mhz, self.sm_mhz))[-1])

    def column(self, clocks: Clocks) -> int:
        """Raises InputError for clocks that were not measured."""
        try:
            return self.clocks.index(clocks)
        except ValueError:
            raise InputError(f"{self.source or 'sweep'}: no reading at {clocks}") from None

    def keep(self, mask: Bools) -> Readings:
        """The same kernels and clocks with only the readings of ``mask``, (n_kernels, n_clocks) or less."""
        return replace(
            self,
            time_s=np.where(mask, self.time_s, np.nan),
            power_w=np.where(mask, self.power_w, np.nan),
            sm_mhz_actual=np.where(mask, self.sm_mhz_actual, np.nan),
            n_repeats=np.where(mask, self.n_repeats, 0.0),
        )

    def only(self, kernels: Sequence[int]) -> Readings:
        """Some of the kernels, by row."""
        rows = np.asarray(kernels, dtype=np.int64)
        return replace(
            self,
            kernels=tuple(self.kernels[row] for row in rows),
            categories=tuple(self.categories[row] for row in rows),
            time_s=self.time_s[rows],
            power_w=self.power_w[rows],
            sm_mhz_actual=self.sm_mhz_actual[rows],
            n_repeats=self.n_repeats[rows],
        )


def merge_repeats(sweep: Sweep, how: Merge = "median") -> Readings:
    """One number for each kernel and numeric clock pair; rows at AUTO are left out.

    ``lower_mode``: the median of the lower group where repeats fall into two. Power is merged over the
    same repeats as time. Raises InputError if a kernel was measured under two power limits at a pair.
    """
    rows = sweep.numeric().rows
    keys = ["kernel", "sm_mhz", "mem_mhz"]
    limits = rows.group_by(keys, maintain_order=True).agg(pl.col("power_limit_w").n_unique().alias("limits"))
    twice = limits.filter(pl.col("limits") > 1)
    if twice.height:
        kernel, sm, mem, _ = twice.row(0)
        raise InputError(
            f"{sweep.where}: {kernel} at {Clocks(sm, mem)} was measured under several power limits; "
            "choose one"
        )
    kernels = sweep.kernels
    pairs = sorted(rows.select("mem_mhz", "sm_mhz").unique().rows())
    row_of = {kernel: i for i, kernel in enumerate(kernels)}
    column_of = {pair: i for i, pair in enumerate(pairs)}
    shape = (len(kernels), len(pairs))
    arrays = {name: np.full(shape, np.nan) for name in ("time_s", "power_w", "sm_mhz_actual")}
    n_repeats = np.zeros(shape)
    for (kernel, sm, mem), group in rows.group_by(keys, maintain_order=True):
        cell = row_of[str(kernel)], column_of[mem, sm]
        values = {name: group[name].to_numpy() for name in arrays}
        chosen = _chosen(values["time_s"], how)
        n_repeats[cell] = chosen.sum()
        for name, array in arrays.items():
            array[cell] = _MIDDLE[how](values[name][chosen])
    return Readings(
        kernels=kernels,
        categories=sweep.categories,
        sm_mhz=np.array([sm for _, sm in pairs], dtype=np.float64),
        mem_mhz=np.array([mem for mem, _ in pairs], dtype=np.float64),
        n_repeats=n_repeats,
        source=sweep.source,
        **arrays,
    )


def modes(values: Floats) -> Bools:
    """Marks the lower group of repeats; all of them where there is no gap of MODE_GAP between two."""
    order = np.argsort(values)
    ascending = values[order]
    gaps = ascending[1:] / ascending[:-1] - 1.0
    lower = np.ones(values.size, dtype=np.bool_)
    if gaps.size and gaps.max() > MODE_GAP:
        lower[order[int(gaps.argmax()) + 1 :]] = False
    return lower


def _chosen(times: Floats, how: Merge) -> Bools:
    known = ~np.isnan(times)
    chosen = np.ones(times.size, dtype=np.bool_)
    if known.all() and how == "minimum":
        chosen = times == times.min()
    elif known.all() and how == "lower_mode":
        chosen = modes(times)
    return chosen


def _middle(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if known.size else float("nan")


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


_MIDDLE: Final[dict[str, Callable[[Floats], float]]] = {
    "median": _middle,
    "mean": _mean,
    "minimum": _middle,
    "lower_mode": _middle,
}
