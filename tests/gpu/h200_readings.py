"""The readings of one H200 as the library takes them: operators, the layer step, the SM clock in a kernel."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from kdvfs_sim.core.clocks import AUTO
from kdvfs_sim.core.governor import DynamicGovernor
from kdvfs_sim.core.kinds import Category, KernelKind
from kdvfs_sim.gpu.build import cost_table
from kdvfs_sim.gpu.catalogue import load_gpu
from kdvfs_sim.gpu.latency import Floats
from kdvfs_sim.gpu.operators import OperatorReading
from kdvfs_sim.gpu.switching import dynamic_governor
from kdvfs_sim.replay.program import Program
from kdvfs_sim.replay.simulate import ReplayResult, replay
from kdvfs_sim.trace.assemble import assemble
from kdvfs_sim.trace.readers import read_trace

GEMM_SCOPES = ("gemm_p0.0", "gemm_p0.1", "gemm_p0.3", "gemm_p1.0")
_N_PRODUCTS = 25
TOKENS, WIDTH = 8 * 2048, 2048
# category, kernel as the recordings of this GPU name it ('' where they do not show it), multiplications
_OPERATORS: dict[str, tuple[Category, str, int | None]] = {
    "qkv_fwd": ("gemm", "nvjet_sm90_tst_192x192*_bias_TNN", TOKENS * WIDTH * 3 * WIDTH),
    "proj_fwd": ("gemm", "nvjet_sm90_tst_256x128*_bias_TNT", TOKENS * WIDTH * WIDTH),
    "fc_fwd": ("gemm", "nvjet_sm90_tst_192x192*_bias_TNN", TOKENS * WIDTH * 4 * WIDTH),
    "fc2_fwd": ("gemm", "nvjet_sm90_tst_256x128*_bias_TNT", TOKENS * WIDTH * 4 * WIDTH),
    "qkv_dgrad": ("gemm", "nvjet_sm90_tst_256x128*_NNT", TOKENS * WIDTH * 3 * WIDTH),
    "qkv_wgrad": ("gemm", "nvjet_sm90_tst_128x256*_NTN", TOKENS * WIDTH * 3 * WIDTH),
    "fc_dgrad": ("gemm", "nvjet_sm90_tst_256x128*_NNT", TOKENS * WIDTH * 4 * WIDTH),
    "fc_wgrad": ("gemm", "nvjet_sm90_tst_128x256*_NTN", TOKENS * WIDTH * 4 * WIDTH),
    "gemm8192": ("gemm", "", 8192**3),
    "sdpa_fwd": ("attention", "", None),
    "ln_fwd": ("normalization", "", None),
    "gelu_fwd": ("elementwise", "*GeluCUDAKernelImpl*", None),
    "residual_add": ("elementwise", "*CUDAFunctor_add<c10::BFloat16>*", None),
    "copy": ("copy", "", None),
    "bias_reduce": ("reduction", "", None),
}
# Launches of a training step of this layer that are one of these operators, by their position in it.
_IN_STEP = {
    0: "ln_fwd",
    2: "qkv_fwd",
    4: "sdpa_fwd",
    6: "proj_fwd",
    7: "residual_add",
    8: "ln_fwd",
    10: "fc_fwd",
    11: "gelu_fwd",
    13: "fc2_fwd",
    14: "residual_add",
    33: "fc_dgrad",
    35: "fc_wgrad",
    52: "qkv_dgrad",
    54: "qkv_wgrad",
}
_N_IN_STEP = 64


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerStep:
    """One step: readings where there are any (``looped``), medians of the settled recording elsewhere."""

    kinds: tuple[KernelKind, ...]
    duration_ns: Floats
    looped: np.ndarray
    gap_ns: float


def raw(shared: Path) -> dict[str, dict[str, float]]:
    return {entry["name"]: entry for entry in json.loads((shared / "h200" / "ops.json").read_text())}


def operators(shared: Path) -> list[OperatorReading]:
    read = raw(shared)
    return [
        OperatorReading(
            name=name,
            category=category,
            kernel=kernel,
            flops=None if products is None else 2.0 * products,
            time_s=read[name]["us"] * 1e-6,
            sm_mhz=read[name]["clk_mean"],
            power_w=read[name]["inst_mean_W"],
            capped=read[name]["thr"] == 4,
        )
        for name, (category, kernel, products) in _OPERATORS.items()
    ]


def layer_step(shared: Path) -> LayerStep:
    read = raw(shared)
    trace = read_trace("h200_gpt3xl_layer_train_100steps_gpuonly")
    kind, start, duration = (
        trace.ops[name].to_numpy().reshape(-1, _N_IN_STEP) for name in ("kind", "start_ns", "duration_ns")
    )
    assert (kind == kind[0]).all()
    gaps = start.ravel()[1:] - (start + duration).ravel()[:-1]
    durations = np.median(duration, axis=0)
    looped = np.zeros(_N_IN_STEP, dtype=np.bool_)
    for position, name in _IN_STEP.items():
        durations[position], looped[position] = read[name]["us"] * 1e3, True
    return LayerStep(
        kinds=tuple(trace.kinds[i] for i in kind[0]),
        duration_ns=durations,
        looped=looped,
        gap_ns=float(np.median(gaps)) * _N_IN_STEP,
    )


def scope(shared: Path, name: str) -> tuple[Floats, Floats]:
    """SM clock in MHz every 40 us while the load ran, and durations of its kernels in ns."""
    with tarfile.open(shared / "h200" / "scopes.tgz") as archive:
        member = archive.extractfile(f"scope_{name}.npz")
        assert member is not None
        arrays = np.load(io.BytesIO(member.read()))
    time_ms, sm_mhz, duration_ms = (arrays[key].astype(np.float64) for key in ("t", "f", "d"))
    falls = np.flatnonzero(sm_mhz < 1970)
    begin = time_ms[falls[0]] if falls.size else time_ms[0]
    busy = (time_ms >= begin) & (time_ms <= begin + duration_ms.sum())
    return sm_mhz[busy], duration_ms * 1e6


def replay_scope(shared: Path, name: str, governor: DynamicGovernor) -> ReplayResult:
    """Back-to-back 8192^3 products of the recorded durations, 1.5 us apart.

    A product is 2048 tiles on 132 SMs: 15 full waves and one of 68 tiles, which leaves half of the
    SMs idle for its last 90 us. What clock the full waves sustain depends on the operands: as read.
    """
    sm_mhz, durations = scope(shared, name)
    durations = durations[200 : 200 + _N_PRODUCTS]
    gpu = load_gpu("h200")
    sustained = replace(gpu.need("category.gemm.sm_mhz"), value=float(np.median(sm_mhz)), low=None, high=None)
    gpu = gpu.with_facts({"category.gemm.sm_mhz": sustained})
    kinds = [KernelKind(name=f"product {n}", category="gemm", grid=(n, 1, 1)) for n in (132, 68)]
    ns = np.stack([durations * 15 / 16, durations / 16], axis=1).round().astype(np.int64)
    gaps = np.tile([0, 1500], _N_PRODUCTS)
    start = np.concatenate([[0], np.cumsum(ns.ravel() + gaps)[:-1]])
    kind = np.tile([0, 1], _N_PRODUCTS)
    trace = assemble(
        source=name,
        kinds=kinds,
        ops={
            "kind": kind,
            "device": 0 * kind,
            "stream": 0 * kind,
            "start_ns": start,
            "duration_ns": ns.ravel(),
        },
    )
    costs = cost_table(gpu, kinds, np.median(ns, axis=0))
    return replay(Program.from_trace(trace), costs=costs, governor=governor, boundary="one-shot")


def percentiles(result: ReplayResult) -> tuple[float, float]:
    """5th and 95th percentile of the SM clock over time."""
    timeline = result.timeline
    (intervals,) = timeline.intervals_of
    rows = timeline.states.effective[intervals.state]
    sm_mhz = np.array([1980 if c.sm_mhz is AUTO else c.sm_mhz for c in timeline.clocks], dtype=float)[rows]
    order = np.argsort(sm_mhz, kind="stable")
    share = np.cumsum((intervals.end_ns - intervals.start_ns)[order])
    low, high = np.searchsorted(share, share[-1] * np.array([0.05, 0.95]))
    return float(sm_mhz[order][low]), float(sm_mhz[order][high])


def h200_governor(overshoot: float | None = None) -> DynamicGovernor:
    governor = dynamic_governor(load_gpu("h200"))
    assert governor is not None
    return governor if overshoot is None else replace(governor, overshoot=overshoot)
