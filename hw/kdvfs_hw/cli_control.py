"""The verbs of ``kdvfs hw`` that may change clocks: ``validate`` and ``sweep``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kdvfs_hw.cli_options import (
    AllowOption,
    DeviceOption,
    JsonOption,
    OutOption,
    WorkloadOption,
    check_times,
    refuse_given,
)
from kdvfs_sim.cli.options import SLACK, SeedOption, slack_from

_OF_A_RUN = ("mode", "device", "seconds", "repeats", "settle", "seed", "allow", "out")
_OF_A_PLAN = ("workload", "trace", "protocol", "slack")


def validate(
    context: typer.Context,
    subjects: Annotated[
        list[str],
        typer.Argument(
            metavar="SCHEDULE...",
            help="Schedules of one trace (kdvfs optimize --out-dir); or a trace, optimized first; or "
            "a folder that kdvfs hw observe --kernels wrote.",
        ),
    ],
    mode: Annotated[
        list[str] | None,
        typer.Option("--mode", help="observe (default, changes nothing), isolated, live; may be repeated."),
    ] = None,
    device: DeviceOption = None,
    workload: WorkloadOption = None,
    trace: Annotated[
        str | None, typer.Option("--trace", metavar="TRACE", help="The schedules' trace, if elsewhere now.")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", metavar="NAME", help="Model to predict with. Default: the trace's.")
    ] = None,
    protocol: Annotated[
        str | None, typer.Option("--protocol", help="drain, follow or lookahead. Default: the schedule's.")
    ] = None,
    slack: Annotated[
        str | None,
        typer.Option(
            "--slack",
            metavar="PCT",
            help=f"Time budget, for optimizing and for choosing. Default: {SLACK}.",
            show_default=False,
        ),
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", help="Length of one reading or block.")] = 1.0,
    repeats: Annotated[int, typer.Option("--repeats", help="At most so many rounds (at least 3).")] = 10,
    settle: Annotated[float, typer.Option("--settle", help="Longest warm-up, seconds.")] = 30.0,
    seed: SeedOption = 0,
    allow: AllowOption = False,
    bundle: Annotated[
        Path | None,
        typer.Option(
            "--bundle", metavar="DIR", help="Measure nothing: write the experiment for another machine."
        ),
    ] = None,
    out: OutOption = None,
    json: JsonOption = False,
) -> int:
    """Say whether a prediction holds on a GPU: time and energy each agree, disagree, or lack data.

    Example: kdvfs hw validate out/schedule.json --mode isolated --mode live --workload gpt3xl-layer
    --allow-clock-control --out-dir run
    """
    from kdvfs_hw.runs.record import LINES, Record
    from kdvfs_hw.runs.validate import CONTROLLED, MODES, Settings, outcome_lines
    from kdvfs_hw.runs.validate import validate as run
    from kdvfs_sim.cli.console import others_on_stderr, print_json, say
    from kdvfs_sim.core.errors import UsageError

    if len(subjects) == 1 and (Path(subjects[0]) / LINES).is_file():
        refuse_given(context, (*_OF_A_RUN, *_OF_A_PLAN, "bundle"), "the readings are those in the folder")
        return _compare(Path(subjects[0]), gpu, json)
    if bundle is not None:
        refuse_given(context, _OF_A_RUN, "a bundle measures nothing; its run.sh says how to run it")
    modes = tuple(dict.fromkeys(mode or ["observe"]))
    wrong = next((each for each in modes if each not in MODES), None)
    if wrong is not None:
        raise UsageError(f"--mode {wrong!r}: one of {', '.join(MODES)} is right")
    check_times(seconds=seconds, settle=settle, repeats=repeats, at_least=3)
    if protocol not in (None, "drain", "follow", "lookahead"):
        raise UsageError(
            f"--protocol {protocol!r}: no GPU switches for free; write drain, follow or lookahead"
        )
    controlling = [each for each in modes if each in CONTROLLED]
    if not allow and bundle is None and controlling:
        raise UsageError(f"--mode {controlling[0]} changes clocks: it needs --allow-clock-control")
    from contextlib import ExitStack

    from kdvfs_hw.devices import EMULATED, open_device
    from kdvfs_hw.lock_record import refuse_locked
    from kdvfs_hw.runs.plan import make_plan
    from kdvfs_hw.runs.subject import emulated_spec, emulated_workload, load_subject
    from kdvfs_hw.workloads.resolve import workload_from

    slack_pct = slack_from(slack)
    scene, schedules, planned = load_subject(
        subjects,
        trace=trace,
        gpu=gpu,
        protocol=protocol,
        slack_pct=slack_pct,
        optimize=bundle is not None or bool(controlling),
        say=say,
    )
    plan = make_plan(scene, schedules, protocol="follow" if planned == "free" else planned)
    if bundle is not None:
        from kdvfs_hw.runs.bundle import write_bundle

        if workload is None:
            raise UsageError("a bundle runs on a real GPU: name its --workload")
        files = write_bundle(
            bundle, plan=plan, trace=scene.trace, schedules=schedules, gpu=scene.gpu, workload=workload
        )
        typer.echo(f"wrote {bundle}: {', '.join(path.name for path in files)}")
        return 0
    if workload is None and not (device or "").startswith(EMULATED):
        raise UsageError("a real GPU needs the --workload that the trace was recorded from")
    settings = Settings(
        modes=modes,
        seconds=seconds,
        kernel_seconds=seconds,
        max_settle_s=settle,
        repeats=repeats,
        slack=slack_pct / 100,
        seed=seed,
    )
    spec = emulated_spec(scene) if workload is None else None
    with others_on_stderr(json), Record(out) as record, open_device(device, spec=spec) as opened:
        refuse_locked(opened.record_folders, opened.device.uuid)
        if workload is not None:
            work = workload_from(workload)
        else:
            assert opened.emulated is not None
            work = emulated_workload(scene, opened.emulated)
        with ExitStack() as stack:
            control = None
            if controlling:
                from kdvfs_hw.guardian import guarded_clocks

                control = stack.enter_context(guarded_clocks(opened, allowed=allow, say=say))
            outcome = run(opened.device, plan, work, record, settings, control=control, say=say)
    if json:
        print_json(outcome.to_json())
    else:
        for line in outcome_lines(plan, outcome):
            typer.echo(line)
    return outcome.exit_code


def _compare(folder: Path, gpu: str | None, json: bool) -> int:
    from kdvfs_hw.runs.compare import compare_record, comparison_lines
    from kdvfs_sim.cli.console import print_json

    found = compare_record(folder, gpu=gpu)
    if json:
        print_json(found.verdict.to_json())
    else:
        for line in comparison_lines(found):
            typer.echo(line)
    return 0


def sweep(
    points: Annotated[
        Path, typer.Argument(metavar="POINTS", help="CSV with kernel,sm_mhz,mem_mhz; kernel * is every one.")
    ],
    workload: WorkloadOption = None,
    device: DeviceOption = None,
    seconds: Annotated[float, typer.Option("--seconds", help="Length of one reading.")] = 1.0,
    repeats: Annotated[int, typer.Option("--repeats", help="Readings of each point.")] = 10,
    settle: Annotated[float, typer.Option("--settle", help="Longest warm-up, seconds.")] = 30.0,
    seed: SeedOption = 0,
    allow: AllowOption = False,
    out: OutOption = None,
    json: JsonOption = False,
) -> int:
    """Read kernels at a list of clocks; writes costs.csv, which kdvfs fit reads.

    Example: kdvfs hw sweep points.csv --workload gpt3xl-layer --allow-clock-control --out-dir sweep
    """
    from dataclasses import asdict

    from kdvfs_hw.devices import open_device
    from kdvfs_hw.guardian import guarded_clocks
    from kdvfs_hw.measure.loop import settle as settle_workload
    from kdvfs_hw.measure.observer import Observer
    from kdvfs_hw.runs.record import Record
    from kdvfs_hw.runs.sweep import best_clocks, check_points, read_points
    from kdvfs_hw.runs.sweep import sweep as run
    from kdvfs_hw.workloads.resolve import for_emulated, workload_from
    from kdvfs_sim.cli.console import others_on_stderr, print_json, say
    from kdvfs_sim.core.errors import UsageError

    check_times(seconds=seconds, settle=settle, repeats=repeats, at_least=1)
    if not allow:
        raise UsageError("a sweep changes clocks: it needs --allow-clock-control")
    asked = read_points(points)
    with others_on_stderr(json), Record(out) as record, open_device(device) as opened:
        work = workload_from(workload) if workload is not None else for_emulated(opened)
        if work is None:
            raise UsageError("a real GPU needs a --workload whose kernels are read")
        todo = check_points(asked, work, opened.device)
        record.begin(opened.device, "sweep", workload=dict(work.describe()), seed=seed)
        with (
            guarded_clocks(opened, allowed=allow, say=say) as control,
            Observer(opened.device, alone=True) as observer,
        ):
            observer.await_period()
            settle_workload(work, observer, max_s=settle, beat=control.beat)
            readings = run(
                todo, work, observer, control, record, repeats=repeats, seconds=seconds, seed=seed, say=say
            )
            record.counter_updates(observer.updates)
        best = list(best_clocks(readings))
        record.add("best", found=[{**asdict(each), "clocks": str(each.clocks)} for each in best])
    if json:
        print_json(record.lines)
    else:
        for each in best:
            typer.echo(
                f"{each.part}: least energy at {each.clocks}: {each.time_pct:+.2f} % time, "
                f"{each.energy_pct:+.2f} % energy against AUTO (chosen on one half, reported on the other)"
            )
        typer.echo(f"{len(todo)} points, {sum(map(len, readings.values()))} readings")
    return 0
