"""``kdvfs import``: any readable recording to our own single-file format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kdvfs_sim.cli.options import JsonOption, RecordedClocksOption, TraceArgument, recorded_from


def command(
    trace: TraceArgument,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Parquet file to write.")],
    recorded_clocks: RecordedClocksOption = None,
    json: JsonOption = False,
) -> None:
    """Read a recording and write it as one Parquet file.

    Example: kdvfs import profile.json.gz -o profile.parquet
    """
    from kdvfs_sim.cli.console import print_json, working
    from kdvfs_sim.report.trace_page import summary_json, summary_lines
    from kdvfs_sim.study.workload import read_workload
    from kdvfs_sim.trace.parquet import check_target, write_parquet

    clocks = recorded_from(recorded_clocks)
    check_target(output)
    with working(f"reading {trace} ..."):
        recording = read_workload(trace, recorded_clocks=clocks).trace
    write_parquet(recording, output)
    if json:
        print_json(summary_json(recording))
    else:
        for line in summary_lines(recording):
            typer.echo(line)
        typer.echo(f"written: {output}")
