"""What the fits make of every published sweep: the numbers behind docs/explanation/fidelity.md.

One function for each table, one library call for each cell; a dataset is only a name here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.gpu.fit import power_fit
from kdvfs_sim.gpu.fit.crossval import Quantity, cross_validate
from kdvfs_sim.gpu.fit.diagnoses import diagnose
from kdvfs_sim.gpu.fit.few import SharedModel, fit_shared
from kdvfs_sim.gpu.fit.latency_fit import fit_latency
from kdvfs_sim.gpu.fit.plan import Goal, choose, follow
from kdvfs_sim.gpu.fit.power_fit import fit_power
from kdvfs_sim.gpu.fit.readings import Bools, Floats, Readings, merge_repeats
from kdvfs_sim.gpu.fit.residuals import ErrorSummary, summarize

from .datasets import DATASETS, Dataset
from .tabulated import interpolated

TIME_FORMS: Final = ("sum", "max", "max+c", "p2+c", "p4+c", "p+c", "p4+c, eta")
FEW_FORMS: Final = ("sum", "max", "max+c", "p4+c")
POWER_FORMS: Final = ("a+bf", "a+bf3", "a+bV2f", "a+eV2/t", "a+bV2f+eV2/t")
# Larger sets are cross-validated on so many of their kernels, drawn at random.
CROSS_VALIDATED: Final = 40
CHOICE_CLOCKS: Final = 18
NOISE: Final = 0.003
N_DRAWS: Final = 10
CHOICES: Final = ((5.0, 6), (1.0, 6), (1.0, 8))
OVER_POINTS: Final = 0.5

Row = dict[str, Any]


def prepare(dataset: Dataset) -> Readings:
    return merge_repeats(dataset.sweep(), dataset.merge)  # type: ignore[arg-type]


def timed(readings: Readings) -> bool:
    return not np.isnan(readings.time_s).all()


def powered(readings: Readings) -> bool:
    return not np.isnan(readings.power_w).all()


def pair(errors: ErrorSummary) -> list[float]:
    return [round(errors.median_pct, 4), round(errors.p95_pct, 4)]


def all_points(readings: Readings) -> Row:
    """Every form fitted to all points; the voltage of the best power form."""
    row: Row = {"n": readings.n_kernels * readings.n_clocks, "kernels": readings.n_kernels, "time": {}}
    row |= {"clocks": readings.n_clocks, "power": {}}
    if timed(readings):
        row["time"] = {form: pair(fit_latency(readings, form).errors) for form in TIME_FORMS}
    if powered(readings):
        for form in POWER_FORMS:
            if timed(readings) or not power_fit.FORMS[form].needs_time:
                fit = fit_power(readings, form)
                row["power"][form] = pair(fit.errors)
                if fit.voltage is not None and not (timed(readings) and form != POWER_FORMS[-1]):
                    row["voltage"] = {
                        "knee_mhz": round(fit.voltage.knee_mhz),
                        "of_top": round(fit.voltage.knee_mhz / fit.voltage.top_mhz, 3),
                        "rise": round(fit.voltage.rise, 3),
                        "reason": fit.voltage.reason,
                    }
    return row


def three_clocks(readings: Readings) -> Row:
    """Times fitted at the lowest, middle and highest SM clock (and the extreme memory clocks), the rest
    predicted."""
    given = np.isin(readings.sm_mhz, _three(readings.sm_mhz))
    given &= np.isin(readings.mem_mhz, readings.memory_states[[0, -1]])
    few = readings.keep(np.broadcast_to(given, readings.time_s.shape))
    left = np.where(given, np.nan, readings.time_s)
    row = {"n_clocks": int(given.sum())}
    for form in FEW_FORMS:
        predicted = fit_latency(few, form).time_s(readings.sm_mhz, readings.mem_mhz)
        row[form] = pair(summarize(np.log(left / predicted)))  # type: ignore[assignment]
    row["shared"] = pair(summarize(np.log(left / fit_shared(few).time_s().middle)))  # type: ignore[assignment]
    return row


def _three(sm_mhz: Floats) -> Floats:
    clocks = np.unique(sm_mhz)
    chosen: Floats = clocks[[0, clocks.size // 2, -1]]
    return chosen


def table_errors(readings: Readings) -> Row:
    """The table itself: each clock inside the range interpolated from the others."""
    row: Row = {}
    for name, values in (("time", readings.time_s), ("power", readings.power_w)):
        if np.isnan(values).all():
            continue
        error = np.full(values.shape, np.nan)
        for column in range(readings.n_clocks):
            without = values.copy()
            without[:, column] = np.nan
            at = [readings.sm_mhz[column]], [readings.mem_mhz[column]]
            error[:, column] = np.log(values[:, column] / interpolated(readings, without, *at)[:, 0])
        row[name] = pair(summarize(error)) if not np.isnan(error).all() else None
    return row


def cross_validated(readings: Readings) -> Row:
    """By clock and by kernel: errors, and the 90 % interval's coverage with its p value."""
    if readings.n_kernels > CROSS_VALIDATED:
        drawn = np.random.default_rng(0).permutation(readings.n_kernels)[:CROSS_VALIDATED]
        readings = readings.only(sorted(int(row) for row in drawn))
    result: Row = {"kernels": readings.n_kernels}
    for left_out in ("clock", "kernel"):
        if left_out == "kernel" and readings.n_kernels < 3:
            continue
        found = cross_validate(readings, left_out, calibrate=True)  # type: ignore[arg-type]
        quantities: list[tuple[Quantity, bool]] = [("time", timed(readings)), ("power", powered(readings))]
        for quantity, known in quantities:
            if known:
                coverage = found.coverage(quantity)
                result[f"{left_out} {quantity}"] = {
                    "errors": pair(found.errors(quantity)),
                    "n": coverage.n_readings,
                    "share_pct": round(100 * coverage.share, 2),
                    "p_value": round(coverage.p_value, 4),
                    "width_pct": round(coverage.width_pct, 2),
                }
    return result


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Means over kernels, by the data as they are: saving, and kernels over the limit, per cent."""

    saving_pct: float
    over_pct: float


def measured_with_noise(readings: Readings, seed: int) -> Readings:
    rng = np.random.default_rng(seed)
    time, power = (NOISE * rng.standard_normal(readings.time_s.shape) for _ in range(2))
    return replace(readings, time_s=readings.time_s * np.exp(time), power_w=readings.power_w * np.exp(power))


def planned(readings: Readings, slack_pct: float, n_clocks: int, seed: int) -> SharedModel:
    """The model after ``n_clocks`` readings of each kernel, which it asked for itself; they carry NOISE."""
    noisy = measured_with_noise(readings, seed)
    row = {kernel: i for i, kernel in enumerate(readings.kernels)}

    def measure(kernel: str, clocks: Clocks) -> tuple[float, float]:
        cell = row[kernel], readings.column(clocks)
        return float(noisy.time_s[cell]), float(noisy.power_w[cell])

    return follow(
        measure,
        readings.kernels,
        readings.clocks,
        Goal(slack_pct=slack_pct),
        readings_per_kernel=n_clocks,
        categories=readings.categories,
        seed=seed,
    )


def judge(readings: Readings, model: SharedModel, goal: Goal) -> Verdict:
    """What the choices of a model come to in the readings as they are."""
    chosen = np.array([readings.column(choice.clocks) for choice in choose(model, goal)])
    rows, base = np.arange(readings.n_kernels), readings.baseline
    energy = readings.time_s * readings.power_w
    slower = readings.time_s[rows, chosen] / readings.time_s[:, base] - 1.0
    return Verdict(
        saving_pct=100 * float((1.0 - energy[rows, chosen] / energy[:, base]).mean()),
        over_pct=100 * float((100 * slower > goal.slack_pct + OVER_POINTS).mean()),
    )


def oracle_saving_pct(readings: Readings, slack_pct: float) -> float:
    """Mean over kernels of the best measured point within the limit."""
    base = readings.baseline
    energy = readings.time_s * readings.power_w
    allowed = readings.time_s <= readings.time_s[:, [base]] * (1.0 + slack_pct / 100.0)
    best = np.where(allowed, energy, np.inf).min(axis=1)
    return 100 * float((1.0 - best / energy[:, base]).mean())


def choices(readings: Readings) -> list[Row]:
    """Saving against the oracle's, mean over N_DRAWS draws of the noise, with and without margin."""
    rows = []
    for slack_pct, n_clocks in CHOICES:
        plain, sure = [], []
        for seed in range(N_DRAWS):
            model = planned(readings, slack_pct, n_clocks, seed)
            plain.append(judge(readings, model, Goal(slack_pct=slack_pct)))
            sure.append(judge(readings, model, Goal(slack_pct=slack_pct, margin="p95")))
        savings = np.array([verdict.saving_pct for verdict in plain])
        rows.append(
            {
                "slack_pct": slack_pct,
                "clocks": n_clocks,
                "kernels": readings.n_kernels,
                "oracle_pct": round(oracle_saving_pct(readings, slack_pct), 3),
                "saving_pct": round(float(savings.mean()), 3),
                "standard_error_pct": round(float(savings.std(ddof=1)) / N_DRAWS**0.5, 3),
                "over_pct": round(float(np.mean([v.over_pct for v in plain])), 3),
                "margin_saving_pct": round(float(np.mean([v.saving_pct for v in sure])), 3),
                "margin_over_pct": round(float(np.mean([v.over_pct for v in sure])), 3),
            }
        )
    return rows


def choosable(readings: Readings) -> bool:
    """Time and power at more than CHOICE_CLOCKS clocks, everywhere."""
    complete: Bools = ~np.isnan(readings.time_s * readings.power_w)
    return bool(complete.all()) and readings.n_clocks > CHOICE_CLOCKS


def of_set(name: str, say: Callable[[str], None] = lambda text: None) -> Row:
    """Every number of one set."""
    dataset = DATASETS[name]
    readings = prepare(dataset)
    row: Row = {"findings": [f"{f.code}: {f.text}" for f in diagnose(dataset.sweep())]}
    say("all points")
    row |= all_points(readings)
    if timed(readings) and readings.sm_mhz.size > 4:
        say("three clocks")
        row["three"] = three_clocks(readings)
    say("table")
    row["table"] = table_errors(readings)
    say("cross-validation")
    row["cross"] = cross_validated(readings)
    if choosable(readings):
        say("choices")
        row["choices"] = choices(readings)
    return row
