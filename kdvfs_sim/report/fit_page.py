"""A fitted sweep, for people and as JSON: findings, errors, voltage, choices and what to read next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from rich.table import Table

from kdvfs_sim.gpu.facts import GpuFacts
from kdvfs_sim.gpu.fit.entry import residual_p95
from kdvfs_sim.gpu.fit.entry_errors import EntryErrors, entry_errors
from kdvfs_sim.gpu.fit.fit import SweepFit, check_gpu, fit_sweep, planning_clocks
from kdvfs_sim.gpu.fit.halves import Held, held_out, split_repeats
from kdvfs_sim.gpu.fit.latency_fit import LatencyFit, n_parameters, why_assumed
from kdvfs_sim.gpu.fit.plan import Choice, Goal, Suggestion, choose, suggest
from kdvfs_sim.gpu.fit.power_fit import PowerFit
from kdvfs_sim.gpu.fit.residuals import ErrorSummary, summarize
from kdvfs_sim.report.page import wide_console

_NAME: Final = 60
_ROWS: Final = 40
LARGE_RESIDUAL: Final = 0.1  # of the time: far beyond what any budget of slack leaves room for
_UNKNOWN: Final = "error unknown, no kernel was read at more clock pairs than the form has coefficients"


@dataclass(frozen=True, kw_only=True)
class FitPage:
    """``suggestions``: None where none were asked for. ``held``: of ``choices``, empty without repeats.
    ``residual_p95``: as ``gpu.fit.entry.residual_p95`` says. ``priced``: errors of the entry made of the fit,
    None where none was."""

    fit: SweepFit
    goal: Goal
    residual_p95: float | None = None
    choices: Sequence[Choice] = ()
    held: Sequence[Held] = ()
    suggestions: Sequence[Suggestion] | None = None
    priced: EntryErrors | None = None

    def to_json(self) -> dict[str, Any]:
        fit, power = self.fit, self.fit.power
        voltage = None if power is None or power.voltage is None else asdict(power.voltage)
        return {
            "sweep": fit.sweep.where,
            "n_readings": fit.sweep.rows.height,
            "n_kernels": fit.readings.n_kernels,
            "clocks": [str(pair) for pair in fit.sweep.clocks],
            "findings": [asdict(finding) for finding in fit.findings],
            "time": None if fit.latency is None else _errors(fit.latency.form.name, fit.latency.errors),
            "residual_p95": self.residual_p95,
            "warning": self.warning,
            "power": None if power is None else _errors(power.form.name, power.errors),
            "voltage": voltage,
            "entry": None if self.priced is None else {**asdict(self.priced), "warning": self.priced.warning},
            "kernels": [_kernel(fit, k) for k in range(fit.readings.n_kernels)],
            "slack_pct": self.goal.slack_pct,
            "margin": self.goal.margin,
            "choices": [_plain(choice) for choice in self.choices],
            "held_out": [_plain(held) for held in self.held],
            "suggestions": None if self.suggestions is None else [_plain(s) for s in self.suggestions],
        }

    @property
    def warning(self) -> str:
        """One line where the fit says little of the times, and what to do about it; else ""."""
        if self.residual_p95 is None or self.residual_p95 <= LARGE_RESIDUAL:
            return ""
        begin = f"a reading in 20 takes over {self.residual_p95:.0%} longer than the fit says: a plan may too"
        for finding in self.fit.findings:
            if finding.from_sm_mhz is not None:
                return (
                    f"{begin}: {finding.code}: {finding.text}; leave those out with "
                    f"--min-sm-mhz {finding.from_sm_mhz}"
                )
        codes = ", ".join(dict.fromkeys(finding.code for finding in self.fit.findings))
        if codes:
            return f"{begin}; what is said above of {codes} may be why: mend the sweep before you use the fit"
        return f"{begin}; look for kernels with a large error above and measure them again"

    def show(self) -> None:
        """Print to stdout."""
        console = wide_console()
        fit = self.fit
        console.print(
            f"{fit.sweep.where}: {fit.sweep.rows.height} readings of {fit.readings.n_kernels} kernels at "
            f"{len(fit.sweep.clocks)} clock pairs"
        )
        for finding in fit.findings:
            names = ", ".join(name[:_NAME] for name in finding.kernels[:3])
            more = "" if len(finding.kernels) <= 3 else f" and {len(finding.kernels) - 3} more"
            console.print(f"{finding.code}: {finding.text} [{names}{more}]")
        console.print(_kernel_table(fit))
        for line in (*_summary(fit, self.residual_p95), *_entry_lines(self.priced)):
            console.print(line)
        if self.choices:
            limit = f"at most {self.goal.slack_pct:g} % slower than at the highest clocks"
            sure = f", sure to {100 * self.goal.sureness:.0f} %" if self.goal.margin else ""
            console.print(f"best clocks read so far, {limit}{sure}:")
            console.print(_choice_table(self.choices, self.held))
        if self.suggestions is not None:
            console.print("to read next:" if self.suggestions else "nothing is left to read.")
            for s in self.suggestions:
                console.print(f"  {s.kernel[:_NAME]} at {s.clocks} (expected gain {s.gain_pct:.2f} %)")


def fit_page(
    fit: SweepFit,
    goal: Goal,
    *,
    gpu: GpuFacts | None = None,
    entry: GpuFacts | None = None,
    n_suggestions: int | None = None,
) -> FitPage:
    """Choices among the clocks read, where time and power of the highest clocks are known; suggestions
    among the clocks of ``gpu``, or without it among those of the sweep. ``entry``: what was made of ``fit``
    and is to be priced.

    Raises InputError where the sweep was measured at clocks that ``gpu`` does not have.

    Where clocks were read repeatedly, the choice is made on half of the repeats and held against the rest.
    """
    choices: Sequence[Choice] = ()
    held: Sequence[Held] = ()
    if fit.sweep.has_time and fit.sweep.has_power:
        halves = split_repeats(fit.sweep.numeric())
        chosen_on = fit if halves is None else fit_sweep(halves[0])
        choices = choose(chosen_on.shared, goal)
        if halves is not None:
            held = held_out(choices, halves[1], chosen_on.readings.clocks[chosen_on.readings.baseline])
    if gpu is not None:
        check_gpu(gpu, fit.readings)
    suggestions = None
    if n_suggestions is not None:
        model = fit.shared if gpu is None else fit.planned(planning_clocks(gpu))
        suggestions = suggest(model, goal, n=n_suggestions)
    return FitPage(
        fit=fit,
        goal=goal,
        residual_p95=residual_p95(fit, gpu),
        choices=choices,
        held=held,
        suggestions=suggestions,
        priced=None if entry is None else entry_errors(entry, fit),
    )


def _errors(form: str, errors: ErrorSummary) -> dict[str, Any]:
    return {"form": form, **asdict(errors), "reason": "" if errors.n_readings else _UNKNOWN}


def _kernel(fit: SweepFit, k: int) -> dict[str, Any]:
    """Errors of one kernel, and what its time is made of at the highest clocks."""
    row: dict[str, Any] = {
        "kernel": fit.readings.kernels[k],
        "category": fit.readings.categories[k],
        "n_clocks": int((fit.readings.n_repeats[k] > 0).sum()),
    }
    if fit.latency is not None:
        base = fit.readings.baseline
        sm_s = fit.latency.sm_s_mhz[k] / fit.readings.sm_mhz[base]
        memory_s = fit.latency.memory_s_mhz[k] / fit.readings.mem_mhz[base]
        assumed = why_assumed(fit.readings, fit.latency.form)[k]
        row |= _residuals("time", fit.latency, k, n_parameters(fit.latency.form))
        row["compute_share"] = float(sm_s / max(sm_s + memory_s, 1e-300))
        row["fixed_s"] = float(fit.latency.fixed_s[k])
        row["compute_share_kind"] = "assumed" if assumed else "measured"
        row["compute_share_reason"] = assumed
        row["follows_clock"] = _follows_clock(fit, k)
    if fit.power is not None and row["kernel"] in fit.power.kernels:
        of_power = fit.power.kernels.index(row["kernel"])
        row |= _residuals("power", fit.power, of_power, fit.power.n_parameters)
    return row


def _residuals(name: str, fit: LatencyFit | PowerFit, k: int, n_coefficients: int) -> dict[str, Any]:
    """Error and margin of one kernel; null, with the reason, where the fit goes through its readings."""
    if fit.determined[k]:
        return {
            name: asdict(summarize(fit.log_residual[k])),
            f"{name}_margin_pct": 100.0 * (float(fit.margin("p95")[k]) - 1.0),
            f"{name}_reason": "",
        }
    n = int((~np.isnan(fit.log_residual[k])).sum())
    reason = f"{n_coefficients} coefficients fit {n} clock {'pair' if n == 1 else 'pairs'} whatever they are"
    return {name: None, f"{name}_margin_pct": None, f"{name}_reason": reason}


def _follows_clock(fit: SweepFit, k: int) -> float:
    """Per cent longer for one per cent less SM clock, at the highest clocks: 1 is all SM, 0 no SM at all."""
    assert fit.latency is not None
    base = fit.readings.baseline
    sm_mhz, mem_mhz = fit.readings.sm_mhz[base], fit.readings.mem_mhz[base]
    at_top, below = fit.latency.time_s(sm_mhz * np.array([1.0, 0.999]), np.full(2, mem_mhz))[k]
    return float(np.log(below / at_top) / -np.log(0.999))


def _kernel_table(fit: SweepFit) -> Table:
    grid = Table(box=None, pad_edge=False, header_style="bold")
    grid.add_column("kernel")
    grid.add_column("category")
    for heading in ("clocks", "time error %", "p95", "follows clock", "power error %", "p95"):
        grid.add_column(heading, justify="right")
    for k in range(min(fit.readings.n_kernels, _ROWS)):
        row = _kernel(fit, k)
        cells = [row["kernel"][:_NAME], row["category"], str(row["n_clocks"])]
        cells += [*_pair(row.get("time")), f"{row['follows_clock']:.2f}" if "follows_clock" in row else ""]
        grid.add_row(*cells, *_pair(row.get("power")))
    if fit.readings.n_kernels > _ROWS:
        grid.add_row(f"... and {fit.readings.n_kernels - _ROWS} more (--json has all)")
    return grid


def _pair(errors: dict[str, Any] | None) -> list[str]:
    return ["", ""] if errors is None else [f"{errors['median_pct']:.2f}", f"{errors['p95_pct']:.1f}"]


def _summary(fit: SweepFit, residual_p95: float | None) -> list[str]:
    lines = []
    if fit.latency is not None:
        said = _UNKNOWN
        if residual_p95 is not None:
            said = f"error {fit.latency.errors} % (median/p95), margin p95 {100 * residual_p95:.1f} %"
        lines.append(f"time, {fit.latency.form.name}: {said}")
        lines.append("follows clock: per cent longer for one per cent less SM clock, at the highest clocks")
        reasons = why_assumed(fit.readings, fit.latency.form)
        for reason in dict.fromkeys(filter(None, reasons)):
            n = reasons.count(reason)
            kernels = f"{n} of {len(reasons)} kernels" if n < len(reasons) else "all kernels"
            lines.append(f"compute share assumed, not measured, of {kernels}: {reason}")
    if fit.power is not None:
        known = fit.power.determined.any()
        said = f"error {fit.power.errors} % (median/p95)" if known else _UNKNOWN
        lines.append(f"power, {fit.power.form.name}: {said}")
        voltage = fit.power.voltage
        if voltage is not None and voltage.identifiable:
            low, high = voltage.knee_range_mhz
            lines.append(
                f"voltage: flat to {voltage.knee_mhz:.0f} MHz ({low:.0f} to {high:.0f}), then up by "
                f"{100 * voltage.rise:.0f} % at {voltage.top_mhz:.0f} MHz"
            )
        elif voltage is not None:
            lines.append(f"voltage: not identifiable, {voltage.reason}")
    return lines


def _entry_lines(priced: EntryErrors | None) -> list[str]:
    if priced is None:
        return []
    known = [
        f"{name} error {errors} %"
        for name, errors in (("time", priced.time), ("power", priced.power))
        if errors.n_readings
    ]
    lines = [f"the entry made of it: {', '.join(known)} (median/p95)"] if known else []
    if priced.held:
        names = ", ".join(name[:_NAME] for name in priced.held[:3])
        more = "" if len(priced.held) <= 3 else f" and {len(priced.held) - 3} more"
        lines.append(f"work_share at its end, 0 or 1, by the entry's idle power and voltage: {names}{more}")
    return lines


def _choice_table(choices: Sequence[Choice], held: Sequence[Held]) -> Table:
    grid = Table(box=None, pad_edge=False, header_style="bold")
    grid.add_column("kernel")
    grid.add_column("clocks")
    headings = ["time %", "90 % range", "energy %", "90 % range"]
    for heading in headings + (["time % held back", "energy % held back"] if held else []):
        grid.add_column(heading, justify="right")
    for i, choice in enumerate(choices[:_ROWS]):
        cells = [choice.kernel[:_NAME], str(choice.clocks)]
        for value, (low, high) in (
            (choice.time_pct, choice.time_range_pct),
            (choice.energy_pct, choice.energy_range_pct),
        ):
            cells += [f"{value:+.2f}", f"{low:+.2f} .. {high:+.2f}"]
        if held:
            cells += [f"{held[i].time_pct:+.2f}", f"{held[i].energy_pct:+.2f}"]
        grid.add_row(*cells)
    return grid


def _plain(row: Choice | Held | Suggestion) -> dict[str, Any]:
    return {**asdict(row), "clocks": str(row.clocks)}
