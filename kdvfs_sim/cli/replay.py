"""``kdvfs replay``: one schedule, or one setting of the clocks, on one recording."""

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
    TraceArgument,
    boundary_from,
    clocks_from,
    node_power_from,
    protocol_name,
    recorded_from,
)
from kdvfs_sim.core.errors import UsageError


def command(
    trace: TraceArgument,
    gpu: GpuOption = None,
    clocks: Annotated[
        str | None,
        typer.Option("--clocks", metavar="CLOCKS", help="recorded (default), auto, or sm=MHZ,mem=MHZ."),
    ] = None,
    schedule: Annotated[
        Path | None, typer.Option("--schedule", metavar="FILE", help="A schedule.json instead of --clocks.")
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            "--protocol", metavar="P", help="free, drain, follow or lookahead. Default: the schedule's."
        ),
    ] = None,
    boundary: BoundaryOption = None,
    device: DeviceOption = None,
    governor: Annotated[
        str, typer.Option("--governor", metavar="KIND", help="steady, or dynamic where the GPU's is known.")
    ] = "steady",
    node_power: NodePowerOption = 0.0,
    recorded_clocks: RecordedClocksOption = None,
    timeline: Annotated[
        Path | None,
        typer.Option("-o", "--timeline", metavar="FILE", help="Write the timeline for Perfetto."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Replay a recording at other clocks or under a schedule, and compare with AUTO.

    Example: kdvfs replay h200_gpt3xl_layer_train --clocks sm=1410,mem=auto
    """
    from kdvfs_sim.cli.console import print_json, working
    from kdvfs_sim.core.files import refuse_foreign
    from kdvfs_sim.core.schedule_file import read_about, read_schedule
    from kdvfs_sim.report.perfetto import is_timeline_file, write_perfetto
    from kdvfs_sim.report.replay_page import replay_json, replay_lines, schedule_notes
    from kdvfs_sim.study.single import replay_at_recorded, replay_on_gpu
    from kdvfs_sim.study.workload import read_workload

    if clocks is not None and schedule is not None:
        raise UsageError("give --clocks or --schedule, not both")
    if governor not in ("steady", "dynamic"):
        raise UsageError(f"--governor {governor!r}: write steady or dynamic")
    wanted = None if clocks in (None, "recorded") else clocks_from(str(clocks), "--clocks")
    plan = None if schedule is None else read_schedule(schedule)
    name = protocol_name(protocol) if protocol else (plan.protocol if plan is not None else "free")
    edge = boundary_from(boundary or (plan.boundary if plan is not None else "periodic"))
    node_power = node_power_from(node_power)
    if timeline is not None:
        refuse_foreign(timeline, is_timeline_file, "a timeline")
    with working(f"reading {trace} ..."):
        workload = read_workload(trace, recorded_clocks=recorded_from(recorded_clocks))
    with working("replaying ..."):
        if wanted is None and plan is None:
            result = replay_at_recorded(workload, gpu=gpu, device=device, node_power_w=node_power)
        else:
            result = replay_on_gpu(
                workload,
                gpu=gpu,
                clocks=wanted,
                schedule=plan,
                protocol=name,
                boundary=edge,
                device=device,
                dynamic=governor == "dynamic",
                node_power_w=node_power,
            )
    if timeline is not None:
        write_perfetto(result.run.timeline, timeline, title=f"{workload.trace.source}")
    notes = (
        [] if schedule is None else schedule_notes(read_about(schedule), workload.trace.source, result.gpu)
    )
    if json:
        print_json({**replay_json(result), "notes": notes})
    else:
        for line in (*replay_lines(result), *(f"note: {note}" for note in notes)):
            typer.echo(line)
        if timeline is not None:
            typer.echo(f"written: {timeline} (open it at ui.perfetto.dev)")
