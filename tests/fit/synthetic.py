"""A GPU that is exactly what the forms say, for fits that must find it."""

from __future__ import annotations

import numpy as np
import polars as pl

from kdvfs_sim.gpu.fit.readings import Floats, Readings, merge_repeats
from kdvfs_sim.gpu.fit.sweep import Sweep, sweep_from_rows
from kdvfs_sim.gpu.fit.voltage import relative_voltage
from kdvfs_sim.gpu.latency import p_norm

SM_MHZ = np.arange(600, 1501, 60)
KNEE_MHZ, RISE, FLOOR_W = 1080.0, 0.25, 50.0


def sweep(
    *,
    n_kernels: int = 8,
    mem_mhz: tuple[int, ...] = (5000,),
    noise: float = 0.0,
    n_repeats: int = 1,
    cap_w: float = np.inf,
    exponent: float = 4.0,
    seed: int = 0,
) -> Sweep:
    """Kernels from memory-bound to SM-bound; power ``floor + b V^2 f + e V^2 / t``, the SM clock capped."""
    rng = np.random.default_rng(seed)
    sm, mem = (axis.ravel().astype(float) for axis in np.meshgrid(SM_MHZ, mem_mhz))
    rows = []
    for k, share in enumerate(np.linspace(0.1, 0.95, n_kernels)):
        fixed, work, peak_w = 0.02 + 0.1 * (k % 3), 0.2 + 0.2 * (k % 4), 120.0 + 25.0 * k
        time, power = kernel(sm, mem, share, fixed, work, peak_w, exponent)
        if np.isfinite(cap_w):
            fine = np.arange(SM_MHZ[0], SM_MHZ[-1] + 1.0)
            for i, (mhz, memory) in enumerate(zip(sm, mem, strict=True)):
                t, w = kernel(fine, np.full_like(fine, memory), share, fixed, work, peak_w, exponent)
                at = np.flatnonzero((fine <= mhz) & (w <= cap_w))[-1]
                time[i], power[i] = t[at], w[at]
        for _ in range(n_repeats):
            rows += [
                {"kernel": f"kernel {k}", "sm_mhz": int(s), "mem_mhz": int(m), "time_s": t, "power_w": w}
                for s, m, t, w in zip(
                    sm,
                    mem,
                    1e-3 * (k + 1) * time * np.exp(noise * rng.standard_normal(time.shape)),
                    power * np.exp(noise * rng.standard_normal(time.shape)),
                    strict=True,
                )
            ]
    return sweep_from_rows(pl.DataFrame(rows), source="synthetic")


def kernel(
    sm: Floats, mem: Floats, share: float, fixed: float, work: float, peak_w: float, exponent: float = 4.0
) -> tuple[Floats, Floats]:
    """Relative time and power of one kernel."""
    time = (1 - fixed) * p_norm(share * 1500.0 / sm, (1 - share) * 5000.0 / mem, exponent) + fixed
    top = float(p_norm(np.array([share]), np.array([1 - share]), exponent)[0] * (1 - fixed) + fixed)
    square = relative_voltage(sm, KNEE_MHZ, RISE, 1500.0) ** 2
    full = (1 + RISE) ** 2
    power = FLOOR_W + peak_w * (
        (1 - work) * square * sm / (full * 1500.0) + work * square / full * top / time
    )
    return time, power


def readings(**kwargs: object) -> Readings:
    return merge_repeats(sweep(**kwargs))  # type: ignore[arg-type]
