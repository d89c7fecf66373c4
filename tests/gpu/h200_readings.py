"""The readings of one H200 as the library takes them: operators, the layer step, the SM clock in a kernel."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from scipy.optimize import least_squares, minimize_scalar

from kdvfs_sim.core.clocks import AUTO
from kdvfs_sim.core.kinds import Category, KernelKind
from kdvfs_sim.gpu.build import cost_table
from kdvfs_sim.gpu.catalogue import load_gpu
from kdvfs_sim.gpu.facts import Fact, GpuFacts
from kdvfs_sim.gpu.latency import Floats
from kdvfs_sim.gpu.model import analytic_model, memory_clock
from kdvfs_sim.gpu.operators import OperatorReading
from kdvfs_sim.gpu.switching import dynamic_governor
from kdvfs_sim.replay.program import Program
from kdvfs_sim.replay.simulate import ReplayResult, replay
from kdvfs_sim.trace.assemble import assemble
from kdvfs_sim.trace.readers import read_trace

MEAN_POWER = Path(__file__).resolve().parents[2] / "docs" / "validation" / "h200" / "mean_power"
LOADS = ("gelu", "sine", "sine_and_multiply")
AGAIN = "gelu_another_run"
LOAD_BEGINS_S, LOAD_S = 0.1, 2.75  # the longest that all three lasted
GEMM_SCOPES = ("gemm_p0.0", "gemm_p0.1", "gemm_p0.3", "gemm_p1.0")
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


def _raw_scope(shared: Path, name: str) -> tuple[Floats, Floats, Floats]:
    """Time in ms and SM clock in MHz every 40 us, and durations of the kernels in ms."""
    with tarfile.open(shared / "h200" / "scopes.tgz") as archive:
        member = archive.extractfile(f"scope_{name}.npz")
        assert member is not None
        arrays = np.load(io.BytesIO(member.read()))
    time_ms, sm_mhz, duration_ms = (arrays[key].astype(np.float64) for key in ("t", "f", "d"))
    return time_ms, sm_mhz, duration_ms


def scope(shared: Path, name: str) -> tuple[Floats, Floats]:
    """SM clock in MHz every 40 us while the load ran, and durations of its kernels in ns."""
    time_ms, sm_mhz, duration_ms = _raw_scope(shared, name)
    falls = np.flatnonzero(sm_mhz < 1970)
    begin = time_ms[falls[0]] if falls.size else time_ms[0]
    busy = (time_ms >= begin) & (time_ms <= begin + duration_ms.sum())
    return sm_mhz[busy], duration_ms * 1e6


@cache
def own_times(shared: Path, name: str) -> dict[str, float]:
    """Facts of the latency form that say best how long a scope's kernels took at the clocks they ran at.

    Medians over 50 MHz. The clock that a kernel saw is the mean of the samples in it.
    """
    time_ms, sm_mhz, duration_ms = _raw_scope(shared, name)
    begin_ms = time_ms[np.flatnonzero(sm_mhz < 1970)[0]]
    edges = np.searchsorted(time_ms, begin_ms + np.append(0.0, np.cumsum(duration_ms)))
    seen = np.flatnonzero(np.diff(edges))
    summed = np.append(0.0, np.cumsum(sm_mhz))[edges]
    clock = np.diff(summed)[seen] / np.diff(edges)[seen]
    bins = (clock / 50).round()
    read = [(np.median(clock[bins == b]), np.median(duration_ms[seen][bins == b])) for b in np.unique(bins)]
    at_mhz, took_ms = np.array(read).T

    def missed(x: Floats) -> Floats:
        sm_ms, memory_ms, exponent = np.exp(x)
        found = memory_ms * (1 + (sm_ms / memory_ms * 1800 / at_mhz) ** exponent) ** (1 / exponent)
        errors: Floats = found / took_ms - 1
        return errors

    sm_ms, memory_ms, exponent = np.exp(least_squares(missed, np.log([took_ms.min(), took_ms.min(), 4.0])).x)
    return {"compute_share": sm_ms / (sm_ms + memory_ms), "exponent": exponent}


def replay_load(
    gpu: GpuFacts, kinds: Sequence[KernelKind], ns: Sequence[int], n_times: int, gap_ns: int = 1500
) -> ReplayResult:
    """Kernels of given durations in this order, then a gap, again and again, on a chip that has rested."""
    duration_ns = np.tile(np.asarray(ns, dtype=np.int64), n_times)
    gaps = np.tile([0] * (len(kinds) - 1) + [gap_ns], n_times)
    kind = np.tile(np.arange(len(kinds)), n_times)
    trace = assemble(
        source="load",
        kinds=kinds,
        ops={
            "kind": kind,
            "device": 0 * kind,
            "stream": 0 * kind,
            "start_ns": np.concatenate([[0], np.cumsum(duration_ns + gaps)[:-1]]),
            "duration_ns": duration_ns,
        },
    )
    return replay(
        Program.from_trace(trace),
        costs=cost_table(gpu, kinds, ns),
        governor=dynamic_governor(gpu),
        boundary="one-shot",
    )


def changed(gpu: GpuFacts, values: Mapping[str, float]) -> GpuFacts:
    """The entry with other numbers, by path."""
    return gpu.with_facts(
        {path: replace(gpu.need(path), value=value, low=None, high=None) for path, value in values.items()}
    )


def with_point(gpu: GpuFacts, category: Category, **fields: float) -> GpuFacts:
    """The entry with other numbers for a category."""
    return changed(gpu, {f"category.{category}.{field}": value for field, value in fields.items()})


def burst_w(gpu: GpuFacts, of: str = "burst") -> float:
    return gpu.need(f"governor.budget.{of}").value * gpu.need("power.limit_w").value


def replay_scope(
    shared: Path, name: str, *, overshoot: float | None = None, times: Literal["own", "entry"] = "own"
) -> ReplayResult:
    """As many kernels as were recorded, each as long as the median one.

    ``times``: how long the sines and cosines take at other clocks: as recorded in the scope, or as the
    entry has it for any element-wise kernel.

    What clock a load holds depends on its operands: as read, the median. It is held at the power that the
    governor lets such a load draw in the first second, most of a scope.
    An 8192^3 product is 2048 tiles on 132 SMs: 15 full waves and one of 68 tiles, which leaves half
    of the SMs idle for its last 90 us.
    """
    sm_mhz, durations = scope(shared, name)
    gpu, held_mhz, one_ns = load_gpu("h200"), float(np.median(sm_mhz)), float(np.median(durations))
    if overshoot is not None:
        gpu = changed(gpu, {"governor.overshoot": overshoot})
    if name in GEMM_SCOPES:
        gpu = with_point(gpu, "gemm", sm_mhz=held_mhz, power_w=burst_w(gpu, "gemm_burst"))
        kinds = [KernelKind(name=f"product {n}", category="gemm", grid=(n, 1, 1)) for n in (132, 68)]
        ns = [round(one_ns * 15 / 16), round(one_ns / 16)]
    elif name == "copy":
        kinds, ns = [KernelKind(name=name, category="copy")], [round(one_ns)]
    else:
        gpu = with_point(gpu, "elementwise", sm_mhz=held_mhz, power_w=burst_w(gpu))
        if times == "own":
            own = own_times(shared, name)
            gpu = with_point(gpu, "elementwise", compute_share=own["compute_share"], fixed_share=0.0)
            exponent = Fact(value=own["exponent"], source="scope", kind="measured")
            gpu = gpu.with_facts({"latency.exponent": exponent})
        kinds, ns = [KernelKind(name=name, category="elementwise")], [round(one_ns)]
    return replay_load(gpu, kinds, ns, len(durations))


def load_clock(name: str) -> tuple[Floats, Floats]:
    """Seconds since a load began on a rested chip, and the SM clock in MHz, every 20 ms."""
    table = pl.read_csv(MEAN_POWER / f"clock_{name}.csv.gz")
    t_s = table["t_ns"].to_numpy() * 1e-9 - LOAD_BEGINS_S
    sm_mhz = table["sm_mhz"].to_numpy()
    end_s = (LOAD_S if name in LOADS else 2.2) - 0.02
    ticks = np.arange(0.0, end_s, 0.02)
    return ticks, np.array([np.median(sm_mhz[(t_s >= t) & (t_s < t + 0.02)]) for t in ticks])


def load_power(name: str, begin_s: float, end_s: float) -> float:
    """Mean device power, W, between two moments of a load; a reading lags by 20 ms."""
    table = pl.read_csv(MEAN_POWER / f"power_{name}.csv.gz")
    t_s = table["t_ns"].to_numpy() * 1e-9 - LOAD_BEGINS_S - 0.02
    return float(table["power_w"].to_numpy()[(t_s >= begin_s) & (t_s < end_s)].mean())


def levels(name: str) -> list[tuple[float, float]]:
    """(SM clock, power) where both stood still: before the mean met the limit, and in two falls."""
    t_s, sm_mhz = load_clock(name)
    return [
        (float(sm_mhz[(t_s >= begin_s) & (t_s < end_s)].mean()), load_power(name, begin_s, end_s))
        for begin_s, end_s in ((0.2, 0.75), (0.86, 0.96), (1.85, 1.93))
    ]


@cache
def work_share(name: str) -> float:
    """Share of dynamic power that follows the work rate: the best for the falls of this load."""
    gpu = load_gpu("h200")
    (held_mhz, held_w), *falls = levels(name)

    def miss(share: float) -> float:
        at = with_point(gpu, "elementwise", sm_mhz=held_mhz, power_w=held_w, work_share=share)
        model = analytic_model(at, [KernelKind(name=name, category="elementwise")], [1e5])
        powers = model.at(memory_clock(at, AUTO))[1][0]
        errors = [np.interp(mhz, at.sm.values_mhz, powers) / power_w - 1 for mhz, power_w in falls]
        return float(np.square(errors).sum())

    return float(minimize_scalar(miss, bounds=(0.0, 1.0), method="bounded").x)


def replay_watched(name: str, gpu: GpuFacts | None = None) -> ReplayResult:
    """A load watched from its first moment, with the clock at which its power met the burst level and
    its fall of power as read."""
    load, one_ns = "gelu" if name == AGAIN else name, 150_000
    (held_mhz, _), *_ = levels(load)
    gpu = with_point(
        gpu or load_gpu("h200"),
        "elementwise",
        sm_mhz=held_mhz,
        power_w=burst_w(load_gpu("h200")),
        work_share=work_share(load),
    )
    kind = KernelKind(name=name, category="elementwise")
    return replay_load(gpu, [kind], [one_ns], round(LOAD_S * 1e9) // one_ns)


def clock_at(result: ReplayResult, t_s: Floats) -> Floats:
    """SM clock in MHz at moments of a replay."""
    (intervals,) = result.timeline.intervals_of
    rows = result.timeline.states.effective[intervals.state]
    at = np.searchsorted(intervals.end_ns, t_s * 1e9, side="right")
    sm_mhz = [1980 if c.sm_mhz is AUTO else c.sm_mhz for c in result.timeline.clocks]
    return np.asarray(sm_mhz, dtype=np.float64)[rows[np.minimum(at, rows.size - 1)]]


def falling_steps() -> list[tuple[float, float, float]]:
    """Milliseconds of a training step while the mean of power is low, at the slowest five steps, and after:
    as recorded, and of the median step again and again on a chip that has rested."""
    trace = read_trace("h200_gpt3xl_layer_train_100steps_gpuonly")
    kind, start, duration = (
        trace.ops[name].to_numpy().reshape(-1, _N_IN_STEP) for name in ("kind", "start_ns", "duration_ns")
    )
    gap_ns = round(float(np.median(start.ravel()[1:] - (start + duration).ravel()[:-1])) * _N_IN_STEP)
    step_ns = np.median(duration, axis=0).round().astype(int).tolist()
    kinds = [trace.kinds[i] for i in kind[0]]
    replayed = replay_load(load_gpu("h200"), kinds, step_ns, 130, gap_ns)
    speeds = []
    for begins in (start[:, 0], replayed.timeline.start_ns[::_N_IN_STEP]):
        step_ms = np.diff(begins) * 1e-6
        five = np.convolve(step_ms, np.full(5, 0.2), mode="valid")
        after = int(five.argmax()) + 15
        speeds.append((step_ms[10:40].mean(), five.max(), step_ms[after : after + 15].mean()))
    return speeds


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
