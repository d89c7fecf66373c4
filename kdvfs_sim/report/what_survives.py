"""Writes docs/explanation/what-survives.md: ``python -m kdvfs_sim.report.what_survives FILE``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from kdvfs_sim.core.files import atomic_write
from kdvfs_sim.core.processes import usable_cores
from kdvfs_sim.core.units import format_duration
from kdvfs_sim.gpu.catalogue import load_gpu
from kdvfs_sim.gpu.facts import Fact, GpuFacts
from kdvfs_sim.report.switching_page import best_at
from kdvfs_sim.study.plans import Budget
from kdvfs_sim.study.scene import build_scene
from kdvfs_sim.study.switching_study import CHARGED, SwitchingStudy, switching_study
from kdvfs_sim.study.workload import read_workload

WORKLOADS: Final = {
    "gpt3xl_3080ti_paper": "One iteration of GPT-3 XL, 897 kernels, on an RTX 3080 Ti (published surfaces)",
    "h200_gpt3xl_layer_train": "Three steps of one GPT-3 XL layer, 192 operations, on an H200",
    "h200_gpt3xl_full_train": "One step of the whole GPT-3 XL model, on an H200",
}
SLACKS_PCT: Final = (0.6, 5.0)
GENERATIONS: Final = {
    "Turing": ("quadro-rtx-6000",),
    "Ampere": ("rtx-3080-ti", "a100-sxm-80gb"),
    "Hopper": ("h200",),
    "Blackwell": ("rtx-5090", "b200"),
}
INTRODUCTION: Final = """\
Per-kernel clocks save most when a change costs nothing. This page says what is left when it costs what GPUs
of four generations are said to need. All of it is replayed; nothing was run on hardware with locked clocks.
Energy is in per cent of AUTO's within the same time budget; negative is saved. `static` is the best single
lock, `static-mix` two locks in turn over iterations: neither switches inside an iteration, so only what goes
beyond them is earned by switching. `drain` empties the GPU for a change, `follow` asks at a kernel boundary
and runs on, `lookahead` asks so early that the change lands on the boundary (an upper bound: no landing
error).

Written by `python -m kdvfs_sim.report.what_survives docs/explanation/what-survives.md`."""
ASSUMED: Final = """
## What is assumed

Costs are those of the GPU that each workload ran on; of the other GPUs only the switching is taken. The way
back is charged: an iteration ends at the clocks it began with. The published iteration also has memory
clocks to choose; GPUs with one memory clock (A100, B200) are taken to change it as slowly as the SM clock.
Switching of the SM clock:

| GPU | call | until the new clock | kind | source |
|---|---|---|---|---|"""
LATENCIES_NS: Final = (10_000, 100_000, 1_000_000, 6_000_000, 25_000_000, 150_000_000)


def main() -> None:
    """Solve everything and write the page; says on stderr where it is."""
    path = Path(sys.argv[1])
    n_workers = usable_cores()
    with ProcessPoolExecutor(n_workers, mp_context=get_context("spawn")) as pool:
        studies = [
            (name, study_of(name, slack_pct, pool, n_workers))
            for name in WORKLOADS
            for slack_pct in SLACKS_PCT
        ]
    with atomic_write(path) as file:
        file.write(("\n".join(page(studies)) + "\n").encode())


def study_of(name: str, slack_pct: float, pool: Executor | None, n_workers: int) -> SwitchingStudy:
    """One workload at one slack, with the switching of every generation."""
    workload = read_workload(name)
    print(f"{name}, {slack_pct:g} %", file=sys.stderr)
    return switching_study(
        {1: build_scene(workload.trace, costs=workload.costs)},
        budget=Budget(slack_pct=slack_pct),
        gpus=[load_gpu(slug) for slugs in GENERATIONS.values() for slug in slugs],
        latencies_ns=LATENCIES_NS,
        executor=pool,
        n_workers=n_workers,
    )


def page(studies: Sequence[tuple[str, SwitchingStudy]]) -> Iterator[str]:
    """The page, line by line."""
    yield "# What survives switching"
    yield ""
    yield INTRODUCTION
    for name, title in WORKLOADS.items():
        yield f"\n## {title}"
        for key, study in studies:
            if key == name:
                yield from _section(study)
    yield from _assumed(studies[0][1].gpus)


def _section(study: SwitchingStudy) -> Iterator[str]:
    static, mix, ideal = (study.baselines[name][1] for name in ("static", "static-mix", "ideal"))
    yield f"\n### {study.budget.slack_pct:g} % more time\n"
    yield f"static {static:+.2f} %, static-mix {mix:+.2f} %, ideal (free switching) {ideal:+.2f} %.\n"
    yield "| every change takes | time in runs longer than it | drain | follow | lookahead |"
    yield "|---|---|---|---|---|"
    curves = [list(study.curve(protocol)) for protocol in CHARGED]
    for i, (latency_ns, share) in enumerate(study.schedulable):
        cells = " | ".join(f"{curve[i].energy_pct:+.2f}" for curve in curves)
        yield f"| {format_duration(latency_ns)} | {share:.0%} | {cells} |"
    yield "\n| switching as of | fastest believable | nominal | slowest believable | in words |"
    yield "|---|---|---|---|---|"
    gpus = {gpu.slug: gpu for gpu in study.gpus}
    for generation, slugs in GENERATIONS.items():
        for slug in slugs:
            rows = {level: best_at(study, gpus[slug], level) for level in ("low", "nominal", "high")}
            cells = " | ".join(
                f"{row.energy_pct:+.2f} ({row.protocol})" if row.switches_pay else f"{row.energy_pct:+.2f}"
                for row in rows.values()
            )
            yield f"| {generation}: {gpus[slug].name} | {cells} | {_verdict(study, gpus[slug])} |"
            yield from _free_call(study, gpus[slug])


def _free_call(study: SwitchingStudy, gpu: GpuFacts) -> Iterator[str]:
    """Where the claim may include the call: the nominal latency with a call that costs nothing."""
    rows = [
        row
        for row in study.rows
        if row.scenario.gpu is not None
        and row.scenario.gpu.slug == gpu.slug
        and row.scenario.host_call_ns == 0
    ]
    if rows:
        best = min(rows, key=lambda row: row.energy_pct)
        yield f"| {gpu.name}, call included in the claim | | {best.energy_pct:+.2f} ({best.protocol}) | | |"


def _verdict(study: SwitchingStudy, gpu: GpuFacts) -> str:
    low, nominal, high = (best_at(study, gpu, level) for level in ("low", "nominal", "high"))
    if not low.switches_pay:
        return "switching saves nothing beyond static-mix, however fast it is believed to be"
    said = f"at best {low.surviving_pct:.0f} % of what free switching adds to static-mix"
    if not nominal.switches_pay:
        return f"{said}; nothing at the nominal latency"
    left = f"{high.surviving_pct:.0f} %" if high.switches_pay else "nothing"
    return f"{said}; {nominal.surviving_pct:.0f} % at the nominal latency, {left} at the slowest"


def _assumed(gpus: Sequence[GpuFacts]) -> Iterator[str]:
    yield ASSUMED
    for gpu in gpus:
        call, latency = (gpu.need(f"switching.sm.{name}") for name in ("host_call_ns", "switching_ns"))
        yield f"| {gpu.name} | {_span(call)} | {_span(latency)} | {latency.kind} | {latency.source} |"


def _span(fact: Fact) -> str:
    nominal, low, high = (format_duration(ns) for ns in (fact.value, fact.at("low"), fact.at("high")))
    return f"{nominal} ({low} to {high})"


if __name__ == "__main__":
    main()
