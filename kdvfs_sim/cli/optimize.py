"""``kdvfs optimize``: the best schedule at equal slack, beside the baselines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kdvfs_sim.cli.options import (
    BoundaryOption,
    DeviceOption,
    GpuOption,
    JsonOption,
    NodePowerOption,
    RecordedClocksOption,
    SeedOption,
    SlackOption,
    TraceArgument,
    boundary_from,
    budget_from,
    node_power_from,
    number_from,
    out_dir,
    protocol_name,
    recorded_from,
)
from kdvfs_sim.core.errors import INFEASIBLE_EXIT_CODE, UsageError
from kdvfs_sim.core.units import parse_percent

MAX_LANDING_ERROR_MS = 10_000


def command(
    trace: TraceArgument,
    gpu: GpuOption = None,
    slack: SlackOption = None,
    energy_budget: Annotated[
        str | None,
        typer.Option(
            "--energy-budget",
            metavar="PCT",
            help="Instead: least time (or EDP, ED²P) with at most this share of AUTO's energy.",
        ),
    ] = None,
    protocol: Annotated[
        str,
        typer.Option(
            "--protocol", metavar="P", help="free, drain, follow, lookahead, several by comma, or all."
        ),
    ] = "all",
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            metavar="NAMES",
            help="Policies beside the baselines, which are always there: common, all, or names such as "
            "launch,kind,'launch edp'.",
        ),
    ] = "common",
    confidence: Annotated[
        str | None,
        typer.Option(
            "--confidence",
            metavar="PCT",
            help="Add plans that keep the time budget with this probability when switching times scatter.",
        ),
    ] = None,
    landing_error_ms: Annotated[
        float,
        typer.Option(
            "--landing-error",
            metavar="MS",
            help="With --confidence: changes also land up to so much later, as where a governor ticks.",
        ),
    ] = 0.0,
    boundary: BoundaryOption = None,
    device: DeviceOption = None,
    node_power: NodePowerOption = 0.0,
    recorded_clocks: RecordedClocksOption = None,
    margin: Annotated[
        str | None,
        typer.Option("--margin", metavar="p95", help="Raise times by what the GPU's fit leaves unexplained."),
    ] = None,
    seed: SeedOption = 0,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--out-dir", metavar="DIR", help="Write schedule.json, policies.json and timeline.json."
        ),
    ] = None,
    json: JsonOption = False,
) -> int:
    """Find the best clock schedule within a budget, under each switch protocol.

    Every table holds the baselines: AUTO, the best single lock, a mix of two locks, the best power limit
    alone and with a lock, one setting for each pass.

    Example: kdvfs optimize h200_gpt3xl_layer_train --slack 0.6% --out-dir out
    """
    from kdvfs_sim.cli.console import print_json, say_files, say_when_compiling, steps, working
    from kdvfs_sim.core.switching import PROTOCOLS
    from kdvfs_sim.report.policy_page import policies_json, show_policies
    from kdvfs_sim.report.results import check_targets, write_results
    from kdvfs_sim.study.equal_slack import equal_slack
    from kdvfs_sim.study.margin import with_time_margin
    from kdvfs_sim.study.plans import plans_from
    from kdvfs_sim.study.scene import build_scene
    from kdvfs_sim.study.uncertainty import Luck
    from kdvfs_sim.study.workload import read_workload

    budget = budget_from(slack, energy_budget)
    names = list(PROTOCOLS)
    if protocol != "all":
        names = list(dict.fromkeys(protocol_name(p.strip()) for p in protocol.split(",")))
    edge = boundary_from(boundary or "periodic")
    node_power = node_power_from(node_power)
    probability = None if confidence is None else _probability_from(confidence)
    if probability is not None and energy_budget is not None:
        raise UsageError("--confidence is that of a time budget: leave --energy-budget out")
    if probability is not None and names == ["free"]:
        raise UsageError(
            "--confidence: free switching has nothing that scatters; name a charged --protocol too"
        )
    landing_error_ms = number_from(landing_error_ms, "--landing-error", 0, MAX_LANDING_ERROR_MS, "ms")
    if landing_error_ms and probability is None:
        raise UsageError("--landing-error goes with --confidence, which is missing")
    plans = plans_from(policy)
    if margin not in (None, "p95"):
        raise UsageError(f"--margin {margin!r}: p95 is right, or no margin")
    target = None if folder is None else out_dir(folder)
    if target is not None:
        check_targets(target)
    say_when_compiling()
    with working(f"reading {trace} ..."):
        workload = read_workload(trace, recorded_clocks=recorded_from(recorded_clocks))
    with working("building the models ..."):
        scene = build_scene(
            workload.trace,
            costs=workload.costs,
            gpu=gpu,
            boundary=edge,
            device=device,
            node_power_w=node_power,
        )
    scene = scene if margin is None else with_time_margin(scene)
    table = equal_slack(
        scene,
        budget=budget,
        protocols=names,
        plans=plans,
        confidence=probability,
        luck=Luck(landing_error_ns=round(landing_error_ms * 1e6)),
        seed=seed,
        progress=steps("optimizing"),
    )
    settings = {
        "trace": workload.trace.source,
        "gpu": scene.gpu.file or scene.gpu.slug,
        "budget": str(budget),
        "slack_pct": budget.slack_pct,
        "energy_budget_pct": budget.energy_pct,
        "boundary": edge,
        "confidence": probability,
        "node_power_w": node_power,
        "margin": margin,
        "seed": seed,
    }
    document = policies_json(table, settings)
    if target is not None:
        say_files(*write_results(target, scene, table, document))
    if json:
        print_json(document)
    else:
        show_policies(table)
    feasible = any(row.energy_pct is not None for row in table.rows if row.name != "auto")
    return 0 if feasible else INFEASIBLE_EXIT_CODE


def _probability_from(text: str) -> float:
    """Raises UsageError."""
    right = UsageError(f"--confidence {text!r}: from 50% to less than 100% is right")
    try:
        share = parse_percent(text, "--confidence") / 100
    except UsageError:
        raise right from None
    if not 0.5 <= share < 1:
        raise right
    return share
