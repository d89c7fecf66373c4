"""What a sweep says, in the words of a GPU's entry: voltage, operating points and shares, each with a range.

The entry keeps what a sweep cannot know (idle power, limits, switching). A kernel's power beyond idle is
split into what follows the clock and what follows the work rate, given the entry's idle power and voltage.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from glob import escape
from typing import Final

import numpy as np
import polars as pl
from scipy.optimize import nnls

from kdvfs_sim.core.errors import InputError
from kdvfs_sim.gpu.facts import Fact, GpuFacts
from kdvfs_sim.gpu.fit.fit import SweepFit, check_gpu
from kdvfs_sim.gpu.fit.latency_fit import (
    LatencyFit,
    LatencyForm,
    fit_latency,
    n_parameters,
    why_assumed,
)
from kdvfs_sim.gpu.fit.readings import Bools, Floats
from kdvfs_sim.gpu.latency import DEFAULT_EXPONENT
from kdvfs_sim.gpu.power import gpu_power

# Half a normal distribution's 90 % range, in standard deviations.
_NINETY_PERCENT: Final = 1.645
_ENDS: Final = ("low", "high")
# No sensor is that wrong, and no limit that slow: a mean power above it is another board's, or no power in W.
_BEYOND_LIMIT: Final = 2.0
_POWER_TERMS: Final = ("clock", "work")
_SHARES_OF_TIME: Final = ("compute_share", "fixed_share")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Range:
    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, *others: float) -> _Range:
        known = [value, *(x for x in others if np.isfinite(x))]
        return cls(value=value, low=max(min(known), 0.0), high=max(known))


def fitted_entry(gpu: GpuFacts, fit: SweepFit, *, source: str) -> GpuFacts:
    """The entry with every kernel of the sweep under its name, and its categories as their medians.

    Kernels read at few clocks take the curve that the shared model gives them, and its range. Raises
    InputError if the sweep has no times, mixes units or is of another GPU, and where the entry lacks idle
    power.
    """
    if fit.latency is None:
        raise InputError(f"{fit.sweep.where}: has no time for every kernel; a GPU entry needs them")
    mixed = next((finding for finding in fit.findings if finding.code == "unit-mix-up"), None)
    if mixed is not None:
        raise InputError(f"{fit.sweep.where}: no entry is made of it: {mixed.code}: {mixed.text}")
    check_gpu(gpu, fit.readings)
    _check_powers(gpu, fit)
    facts = _voltage(gpu, fit, source) | _swept(fit, source)
    gpu = gpu.with_facts(facts)
    few = few_readings(fit, fit.latency)
    latency = entry_latency(gpu, fit, few, "middle")
    late = _late(latency, few)
    if late is not None:
        facts["latency.residual_p95"] = Fact(value=late, source=source, kind="measured")
    assumed = why_assumed(fit.readings, fit.latency.form)
    assumed_of: dict[str, list[str]] = defaultdict(list)
    points = _points(gpu, fit, latency, few)
    by_category: dict[str, list[dict[str, _Range]]] = defaultdict(list)
    for k, (name, category) in enumerate(zip(fit.readings.kernels, fit.readings.categories, strict=True)):
        facts |= _facts(gpu, f"kernel.{escape(name)}", category, points[k], source, assumed[k])
        by_category[category].append(points[k])
        assumed_of[category].append(assumed[k])
    for category, members in by_category.items():
        note = f"median and range of {len(members)} kernels"
        facts |= _facts(
            gpu, f"category.{category}", category, _common(members), source, max(assumed_of[category]), note
        )
    # the first pattern found describes a kernel: what was measured now comes before what the entry had
    kept = {path: fact for path, fact in gpu.facts.items() if path not in facts}
    return replace(gpu.with_facts(facts), facts={**facts, **kept})


def _check_powers(gpu: GpuFacts, fit: SweepFit) -> None:
    """Raises InputError for a power that no board of this kind draws."""
    limit = gpu.get("power.limit_max_w") or gpu.get("power.limit_w")
    power_w = fit.readings.power_w
    if limit is None or np.isnan(power_w).all():
        return
    k = int(np.nanargmax(power_w)) // power_w.shape[1]
    if (most := float(np.nanmax(power_w[k]))) > _BEYOND_LIMIT * limit.value:
        raise InputError(
            f"{fit.sweep.where}: {fit.readings.kernels[k]} draws {most:.4g} W; {gpu.name} takes at most "
            f"{limit.value:g} W: another GPU, or power_w in another unit"
        )


def residual_p95(fit: SweepFit, gpu: GpuFacts | None = None) -> float | None:
    """95 % of the readings take at most this much longer than the form says, relative; None without such.

    With ``gpu``: than the form of the entry that ``fitted_entry`` makes of it, which ``--margin p95`` adds.
    """
    if fit.latency is None:
        return None
    few = few_readings(fit, fit.latency)
    return _late(fit.latency if gpu is None else entry_latency(gpu, fit, few, "middle"), few)


def few_readings(fit: SweepFit, latency: LatencyFit) -> Bools:
    """(n_kernels,): read at no more clock pairs than the form has coefficients."""
    few: Bools = (~np.isnan(fit.readings.time_s)).sum(axis=1) <= n_parameters(latency.form)
    return few


def _late(latency: LatencyFit, few: Bools) -> float | None:
    """A curve through few readings leaves nothing unexplained, and says nothing of an error."""
    if few.all():
        return None
    return max(float(np.nanquantile(np.expm1(latency.log_residual[~few]), 0.95)), 0.0)


def _swept(fit: SweepFit, source: str) -> dict[str, Fact]:
    """The clocks between which there are readings; a low request that ran faster counts as what ran."""
    readings = fit.readings
    ends = {
        "clocks.swept_from_mhz": max(readings.sm_mhz.min(), np.nanmin(readings.effective_sm_mhz)),
        "clocks.swept_to_mhz": readings.sm_mhz.max(),
        "clocks.swept_memory_from_mhz": readings.mem_mhz.min(),
        "clocks.swept_memory_to_mhz": readings.mem_mhz.max(),
    }
    return {path: Fact(value=float(mhz), source=source, kind="measured") for path, mhz in ends.items()}


def _common(members: Sequence[Mapping[str, _Range]]) -> dict[str, _Range]:
    return {
        name: _Range.of(
            float(np.median([member[name].value for member in members])),
            *(end for member in members for end in (member[name].low, member[name].high)),
        )
        for name in members[0]
    }


def _facts(
    gpu: GpuFacts,
    path: str,
    category: str,
    point: Mapping[str, _Range],
    source: str,
    assumed: str,
    note: str = "",
) -> dict[str, Fact]:
    """``assumed``: why shares of time are not measured, "" where they are."""
    facts = {}
    for name, value in point.items():
        by_form = name in _SHARES_OF_TIME and bool(assumed)
        facts[f"{path}.{name}"] = Fact(
            value=value.value,
            low=value.low,
            high=value.high,
            source=source,
            kind="assumed" if by_form else "measured",
            note="; ".join(filter(None, (note, assumed if by_form else ""))),
        )
    for name in ("power_w", "work_share"):
        known = gpu.get(f"category.{category}.{name}")
        if name not in point and known is not None:
            facts[f"{path}.{name}"] = known
    return facts


def _voltage(gpu: GpuFacts, fit: SweepFit, source: str) -> dict[str, Fact]:
    """The curve where the powers determine it, its rise stated at the entry's ceiling."""
    voltage = None if fit.power is None else fit.power.voltage
    if voltage is None or not voltage.identifiable:
        return {}
    knee, ceiling = voltage.knee_mhz, float(gpu.ceiling_mhz)
    if not knee < ceiling:
        return {}
    reach = (ceiling - knee) / (voltage.top_mhz - knee)
    low, high = (reach * end for end in voltage.rise_range)
    knee_low, knee_high = voltage.knee_range_mhz
    return {
        "voltage.knee_mhz": Fact(value=knee, low=knee_low, high=knee_high, source=source, kind="measured"),
        "voltage.rise": Fact(value=reach * voltage.rise, low=low, high=high, source=source, kind="measured"),
    }


def _points(gpu: GpuFacts, fit: SweepFit, latency: LatencyFit, few: Bools) -> list[dict[str, _Range]]:
    """For each kernel the fields of its operating point, by name."""
    sm_mhz, mem_mhz = _operating_clocks(gpu, fit, latency)
    parts = _parts(latency, sm_mhz, mem_mhz)
    bands = [_parts(entry_latency(gpu, fit, few, end), sm_mhz, mem_mhz) for end in _ENDS] if few.any() else []
    powers = _powers(gpu, fit, latency, few, sm_mhz, mem_mhz) if fit.power is not None else None
    points = []
    for k in range(fit.readings.n_kernels):
        middle = parts.shares[:, k]
        ends = [band.shares[:, k] for band in bands] if few[k] else []
        if not few[k]:
            ends = [middle - parts.share_errors[:, k], middle + parts.share_errors[:, k]]
        point = {"sm_mhz": _Range.of(float(sm_mhz[k]))}
        for i, name in enumerate(("compute_share", "fixed_share")):
            point[name] = _Range.of(float(middle[i]), *(float(np.clip(end[i], 0.0, 1.0)) for end in ends))
        points.append(point if powers is None else point | powers[k])
    return points


def entry_latency(gpu: GpuFacts, fit: SweepFit, few: Bools, band: str) -> LatencyFit:
    """The form of the entry. Kernels read at too few clocks are given a band of what is predicted of them."""
    form = LatencyForm(
        name="entry",
        exponent=gpu.value("latency.exponent", DEFAULT_EXPONENT),
        capped=fit.has("cap-plateau"),
    )
    time_s = fit.readings.time_s
    if few.any():
        time_s = np.where(few[:, None], getattr(fit.calibrated.time_s(), band), time_s)
    return fit_latency(replace(fit.readings, time_s=time_s), form)


def _operating_clocks(gpu: GpuFacts, fit: SweepFit, latency: LatencyFit) -> tuple[Floats, Floats]:
    """(n_kernels,): the SM clock under AUTO, read where it was, and the memory clock with it.

    Else the highest clock swept that the board reaches, less where the kernel was capped.
    """
    readings = fit.readings
    top = np.minimum(readings.effective_sm_mhz[:, readings.baseline], gpu.auto_ceiling_mhz)
    auto = fit.sweep.rows.filter(pl.col("sm_mhz").is_null() & pl.col("sm_mhz_actual").is_not_null())
    read = dict(auto.group_by("kernel").agg(pl.col("sm_mhz_actual").median()).rows())
    highest = np.where(np.isnan(top), readings.sm_mhz[readings.baseline], np.minimum(top, latency.cap_mhz))
    sm_mhz = np.array([read.get(name, mhz) for name, mhz in zip(readings.kernels, highest, strict=True)])
    return sm_mhz, np.full(sm_mhz.shape, readings.mem_mhz[readings.baseline])


@dataclass(frozen=True, kw_only=True, eq=False)
class _Parts:
    """``shares`` (2, n_kernels): compute share and fixed share; ``share_errors``: half their 90 % ranges.

    ``time_s`` (n_kernels,): there.
    """

    time_s: Floats
    shares: Floats
    share_errors: Floats


def _parts(latency: LatencyFit, sm_mhz: Floats, mem_mhz: Floats) -> _Parts:
    """At one clock pair of each kernel, clocks of shape (n_kernels,)."""
    parts = np.stack([latency.sm_s_mhz / sm_mhz, latency.memory_s_mhz / mem_mhz])
    error = latency.standard_error[:, :3].T / np.stack([sm_mhz, mem_mhz, np.ones_like(sm_mhz)])
    error = np.where(np.isnan(error), 0.0, error)
    both = np.maximum(parts.sum(axis=0), 1e-300)
    time_s = np.diagonal(latency.time_s(sm_mhz, mem_mhz))
    compute_error = np.hypot(parts[1] * error[0], parts[0] * error[1]) / both**2
    return _Parts(
        time_s=time_s,
        shares=np.stack([parts[0] / both, latency.fixed_s / time_s]),
        share_errors=_NINETY_PERCENT * np.stack([compute_error, error[2] / time_s]),
    )


def _powers(
    gpu: GpuFacts, fit: SweepFit, latency: LatencyFit, few: Bools, sm_mhz: Floats, mem_mhz: Floats
) -> list[dict[str, _Range]]:
    """Power and work share of each kernel: b V^2 f + e V^2 / t fitted to what is drawn beyond idle."""
    shared, readings = gpu_power(gpu), fit.readings
    power_w = readings.power_w
    few = few | ((~np.isnan(power_w)).sum(axis=1) <= len(_POWER_TERMS))
    if few.any():
        power_w = np.where(few[:, None], fit.calibrated.power_w().middle, power_w)
    at = shared.voltage(sm_mhz) ** 2
    times = latency.time_s(readings.sm_mhz, readings.mem_mhz)
    time_s = np.diagonal(latency.time_s(sm_mhz, mem_mhz))
    points = []
    for k in range(readings.n_kernels):
        known = ~np.isnan(power_w[k])
        sm, power = readings.effective_sm_mhz[k, known], power_w[k, known]
        square = shared.voltage(sm) ** 2
        columns = np.stack([square * sm / (at[k] * sm_mhz[k]), square / times[k, known] * time_s[k] / at[k]])
        design = (columns / power).T
        beyond = 1.0 - shared.idle_w(sm, readings.mem_mhz[known]) / power
        clock_w, work_w = nnls(design, np.maximum(beyond, 0.0))[0]
        residual = design @ [clock_w, work_w] - beyond
        variance = float(residual @ residual) / max(sm.size - 2, 1)
        dynamic = max(clock_w + work_w, 1e-9)
        # clock and work rate of a compute-bound kernel go together: then nothing tells the terms apart
        gradient = np.array([-work_w, clock_w]) / dynamic**2
        spread = np.sqrt(gradient @ np.linalg.pinv(design.T @ design) @ gradient * variance)
        half = 1.0 if few[k] else min(_NINETY_PERCENT * float(spread), 1.0)
        watts = float(shared.idle_w(sm_mhz[k], mem_mhz[k])) + dynamic
        off = _NINETY_PERCENT * float(np.sqrt(variance)) * watts
        share = work_w / dynamic
        points.append(
            {
                "power_w": _Range.of(watts, watts - off, watts + off),
                "work_share": _Range.of(share, max(share - half, 0.0), min(share + half, 1.0)),
            }
        )
    return points
