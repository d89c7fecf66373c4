"""The switching study, for people and as JSON."""

from __future__ import annotations

from typing import Any, Final

from rich.table import Table

from kdvfs_sim.core.units import format_duration
from kdvfs_sim.gpu.facts import GpuFacts
from kdvfs_sim.report.page import in_words, wide_console
from kdvfs_sim.study.sentence import NOT_VALIDATED, SHOWN_PCT
from kdvfs_sim.study.switching_study import CHARGED, StudyRow, SwitchingStudy

FORMAT: Final = "kdvfs-switching-study"


def study_json(study: SwitchingStudy) -> dict[str, Any]:
    """Everything in the study; latencies in ns, percentages against AUTO."""
    return {
        "format": FORMAT,
        "workload": study.workload,
        "gpu": study.gpu,
        "budget": str(study.budget),
        "baseline": {"time_s": study.baseline.time_s, "energy_j": study.baseline.energy_j},
        "baselines": {
            name: {"time_pct": time_pct, "energy_pct": energy_pct}
            for name, (time_pct, energy_pct) in study.baselines.items()
        },
        "schedulable_share": [{"latency_ns": ns, "share": share} for ns, share in study.schedulable],
        "rows": [_row_json(row) for row in study.rows],
        "best_period": [
            {
                "gpu": gpu.slug,
                "protocol": protocol,
                "n_iterations": study.best_period(gpu, protocol).n_iterations,
            }
            for gpu in study.gpus
            for protocol in _protocols(study)
        ],
        "flags": list(study.flags),
        "sentences": sentences(study),
    }


def show_study(study: SwitchingStudy) -> None:
    """Print the quick answer, the curves, the GPUs, and one sentence for each."""
    console = wide_console()
    base = study.baseline
    console.print(
        f"{study.workload} on {study.gpu}: AUTO takes {base.time_s * 1e3:.3f} ms and {base.energy_j:.3f} J "
        f"an iteration. Budget: {study.budget}. Energy in % of AUTO's; negative is saved."
    )
    static, mix, ideal = (study.baselines[name][1] for name in ("static", "static-mix", "ideal"))
    console.print(
        f"static {static:+.2f}, static-mix {mix:+.2f}; ideal (free switching) {ideal:+.2f}"
        + (": no more than without switching, nothing to survive" if nothing_to_survive(study) else "")
    )
    console.print(_curves(study))
    if study.gpus:
        console.print(_gpus(study))
    for line in (*notes(study), *sentences(study)):
        console.print(line, soft_wrap=True)


def notes(study: SwitchingStudy) -> list[str]:
    """What the columns mean."""
    lines = [
        "schedulable: share of the time in runs, as free switching would have them, longer than the latency. "
        "A saving equal to static-mix means that switching does not pay. Above, the call returns at once. A "
        "slower change may save a trace more: its landing can be nearer to a boundary.",
        f"costs are those of {study.gpu}; of the other GPUs only the switching is taken. "
        "call: how long the caller is blocked. period: iterations, whole recordings, after which a schedule "
        "repeats.",
    ]
    return [*lines, *(f"note: {in_words(flag)}" for flag in study.flags)]


def sentences(study: SwitchingStudy) -> list[str]:
    """What each GPU's switching leaves, the best protocol at each end of what is believable. GPUs, and ends,
    of which the same is to be said share a sentence."""
    names: dict[str, list[str]] = {}
    for gpu in study.gpus:
        names.setdefault(_outcome(study, gpu), []).append(f"{gpu.title} ({_range(gpu)})")
    found = []
    for outcome, alike in names.items():
        listed = alike[0] if len(alike) == 1 else f"{', '.join(alike[:-1])} or {alike[-1]}"
        found.append(f"Switching like {listed}: {outcome}.")
    return [*found, NOT_VALIDATED]


def _outcome(study: SwitchingStudy, gpu: GpuFacts) -> str:
    worst, nominal, best = (_said(study, best_at(study, gpu, level)) for level in ("high", "nominal", "low"))
    if worst == nominal == best:
        return f"{nominal} at the nominal latency and at both ends of what is believable"
    return (
        f"{nominal} at the nominal latency, {best} at the fastest and {worst} at the slowest believable one"
    )


def _said(study: SwitchingStudy, row: StudyRow) -> str:
    if not row.switches_pay or nothing_to_survive(study):
        bound_pct = row.lower_bound_pct
        proven = bound_pct is not None and row.energy_pct - bound_pct <= SHOWN_PCT
        found = "" if proven else " was found"
        return f"nothing{found} beyond a lock or a mix of two ({row.energy_pct:+.2f} %)"
    return (
        f"{row.energy_pct:+.2f} % by {row.protocol} ({row.surviving_pct:.0f} % of what free switching adds)"
    )


def nothing_to_survive(study: SwitchingStudy) -> bool:
    """Does even free switching add nothing that a table shows to a lock or a mix of two?"""
    return study.baselines["static-mix"][1] - study.baselines["ideal"][1] <= SHOWN_PCT


def best_at(study: SwitchingStudy, gpu: GpuFacts, level: str) -> StudyRow:
    """The protocol that saves most with a GPU's switching at one end of what is believable."""
    return min(
        (
            row
            for row in study.rows
            if row.scenario.gpu is not None
            and row.scenario.gpu.slug == gpu.slug
            and row.scenario.level == level
            and row.scenario.host_call_ns is None
            and row.n_iterations == 1
        ),
        key=lambda row: row.energy_pct,
    )


def _range(gpu: GpuFacts) -> str:
    fact = gpu.need("switching.sm.switching_ns")
    nominal, low, high = (format_duration(ns) for ns in (fact.value, fact.at("low"), fact.at("high")))
    return f"{nominal}, {low} to {high}, {fact.kind}"


def _curves(study: SwitchingStudy) -> Table:
    grid = Table(box=None, pad_edge=False, header_style="bold")
    protocols = _protocols(study)
    for heading in ("switching", "schedulable", *(f"{p} %" for p in protocols), "survives", "at best %"):
        grid.add_column(heading, justify="right", no_wrap=True)
    curves = [list(study.curve(protocol)) for protocol in protocols]
    for i, (latency_ns, share) in enumerate(study.schedulable):
        rows = [curve[i] for curve in curves]
        bounds_pct = [row.lower_bound_pct for row in rows if row.lower_bound_pct is not None]
        grid.add_row(
            format_duration(latency_ns),
            f"{share:.1%}",
            *(f"{row.energy_pct:+.2f}" for row in rows),
            "-" if nothing_to_survive(study) else f"{max(row.surviving_pct for row in rows):.0f} %",
            f"{min(bounds_pct):+.2f}" if len(bounds_pct) == len(rows) else "-",
        )
    return grid


def _gpus(study: SwitchingStudy) -> Table:
    grid = Table(box=None, pad_edge=False, header_style="bold")
    protocols = _protocols(study)
    grid.add_column("switching as of")
    for heading in ("call", "latency", *(f"{p} %" for p in protocols), "best period"):
        grid.add_column(heading, justify="right", no_wrap=True)
    for name in dict.fromkeys(row.scenario.name for row in study.rows if row.scenario.name):
        rows = [row for row in study.rows if row.scenario.name == name and row.n_iterations == 1]
        scenario = rows[0].scenario
        period = ""
        if scenario.gpu is not None and scenario.is_nominal:
            best = [study.best_period(scenario.gpu, protocol) for protocol in protocols]
            periods = [f"{row.n_iterations} ({row.energy_pct:+.2f})" for row in best]
            named = (f"{protocol} {one}" for protocol, one in zip(protocols, periods, strict=True))
            period = periods[0] if len(set(periods)) == 1 else ", ".join(named)
        grid.add_row(
            scenario.name,
            format_duration(scenario.sm_call_ns),
            format_duration(scenario.switching_ns),
            *(f"{row.energy_pct:+.2f}" for row in rows),
            period,
        )
    return grid


def _protocols(study: SwitchingStudy) -> list[str]:
    used = {row.protocol for row in study.rows}
    return [protocol for protocol in CHARGED if protocol in used]


def _row_json(row: StudyRow) -> dict[str, Any]:
    scenario = row.scenario
    return {
        "scenario": scenario.name or None,
        "gpu": None if scenario.gpu is None else scenario.gpu.slug,
        "level": None if scenario.gpu is None else scenario.level,
        "switching_ns": scenario.switching_ns,
        "host_call_ns": scenario.host_call_ns,
        **{name: getattr(row, name) for name in row.__slots__ if name != "scenario"},
    }
