"""One replay, for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kdvfs_sim.core.units import format_duration
from kdvfs_sim.report.page import in_words
from kdvfs_sim.report.policy_page import metrics_json
from kdvfs_sim.study.single import SingleReplay


def replay_json(result: SingleReplay) -> dict[str, Any]:
    """The run and what it is compared with; percentages against AUTO, null where there is no model."""
    return {
        "setting": result.setting,
        **metrics_json(result.run.metrics),
        "switching_s": result.run.metrics.switching_s,
        "time_pct": result.time_pct,
        "energy_pct": result.energy_pct,
        "baseline": None if result.baseline is None else metrics_json(result.baseline),
        "baseline_reason": result.reason,
        "assumed": list(result.assumed),
        "flags": list(dict.fromkeys((*result.flags, *result.run.metrics.flags))),
    }


def replay_lines(result: SingleReplay) -> Iterator[str]:
    """The same for people."""
    metrics, base = result.run.metrics, result.baseline
    yield f"on      {result.setting}"
    yield f"time    {format_duration(metrics.time_s * 1e9)}{_against(result.time_pct)}"
    if metrics.energy_j is None:
        yield f"energy  unknown: {metrics.energy_reason}"
    else:
        power = f", {metrics.mean_power_w:.1f} W" if metrics.mean_power_w is not None else ""
        yield f"energy  {metrics.energy_j:.4g} J{power}{_against(result.energy_pct)}"
    if metrics.n_switches:
        yield f"changes {metrics.n_switches}, in flight for {format_duration(metrics.switching_s * 1e9)}"
    if base is None:
        yield f"no baseline: {result.reason}"
    for flag in dict.fromkeys((*result.flags, *metrics.flags)):
        yield f"note: {in_words(flag)}"
    if result.assumed and metrics.energy_j is not None:
        yield f"rests on {len(result.assumed)} assumed numbers (--json lists them)"


def schedule_notes(about: dict[str, Any], source: str, gpu: str | None) -> list[str]:
    """What a schedule file says of itself that bears on this replay."""
    notes = []
    share = about.get("share_of_iterations")
    if isinstance(share, float):
        notes.append(
            f"this schedule is for {share:.1%} of the iterations of a mix; the other file has the rest: time "
            "and energy of the mix are the means of both replays, weighted by these shares"
        )
    made_for = about.get("trace")
    if isinstance(made_for, str) and Path(made_for).name != Path(source).name:
        notes.append(f"this schedule was made for {Path(made_for).name}")
    for_gpu = about.get("gpu")
    if isinstance(for_gpu, str) and gpu is not None and Path(for_gpu).name.removesuffix(".toml") != gpu:
        notes.append(f"this schedule was made for GPU {for_gpu}")
    return notes


def _against(pct: float | None) -> str:
    return "" if pct is None else f"  ({pct:+.2f} % against AUTO)"
