"""``kdvfs inspect``: what a recording holds, on one screen."""

from __future__ import annotations

import typer

from kdvfs_sim.cli.options import JsonOption, RecordedClocksOption, TraceArgument, recorded_from


def command(
    trace: TraceArgument, recorded_clocks: RecordedClocksOption = None, json: JsonOption = False
) -> None:
    """Show what a recording holds: kernels, streams, time by category, what is missing.

    Example: kdvfs inspect h200_gpt3xl_layer_train
    """
    from kdvfs_sim.cli.console import print_json, working
    from kdvfs_sim.report.trace_page import inspect_json, inspect_lines
    from kdvfs_sim.study.workload import read_workload

    clocks = recorded_from(recorded_clocks)
    with working(f"reading {trace} ..."):
        recording = read_workload(trace, recorded_clocks=clocks).trace
    if json:
        print_json(inspect_json(recording))
    else:
        for line in inspect_lines(recording):
            typer.echo(line)
