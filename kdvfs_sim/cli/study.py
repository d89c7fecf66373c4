"""``kdvfs study``: questions that take many solutions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kdvfs_sim.cli.options import (
    DeviceOption,
    JsonOption,
    NodePowerOption,
    RecordedClocksOption,
    SeedOption,
    SlackOption,
    TraceArgument,
    budget_from,
    node_power_from,
    out_dir,
    protocol_name,
    recorded_from,
)
from kdvfs_sim.core.errors import DeviceError, UsageError

app = typer.Typer(help="Questions that take many solutions.", no_args_is_help=True, rich_markup_mode=None)
MAX_ITERATIONS = 1000
MAX_WORKERS = 1024


@app.callback()
def _study() -> None:
    """Questions that take many solutions."""


@app.command()
def switching(
    trace: TraceArgument,
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu",
            metavar="NAMES",
            help="GPUs whose switching to show, by comma. Default: the trace's own. Where the trace does not "
            "name its GPU, the first is taken to be it; one that is for it (your own entry) gives the costs.",
        ),
    ] = None,
    slack: SlackOption = None,
    protocol: Annotated[
        str, typer.Option("--protocol", metavar="P", help="drain, follow, lookahead, or all.")
    ] = "all",
    iterations: Annotated[
        str,
        typer.Option(
            "--iterations",
            metavar="N,N,...",
            help="Also try schedules that repeat after so many iterations, at each GPU's nominal switching.",
        ),
    ] = "1,2,4",
    device: DeviceOption = None,
    node_power: NodePowerOption = 0.0,
    recorded_clocks: RecordedClocksOption = None,
    seed: SeedOption = 0,
    workers: Annotated[
        int,
        typer.Option(
            "--workers", metavar="N", min=0, max=MAX_WORKERS, help="Processes. Default: one per core."
        ),
    ] = 0,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--out-dir",
            metavar="DIR",
            help="Write study.json and, with kdvfs-sim[plots], study.png and study.html.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """What is left of the ideal saving when a clock change costs 1 us to 1 s, and how each GPU switches.

    Example: kdvfs study switching h200_gpt3xl_layer_train --gpu h200,b200 --slack 0.6%
    """
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import active_children, get_context

    from kdvfs_sim.cli.console import print_json, say, say_files, say_when_compiling, steps, working
    from kdvfs_sim.core.processes import end_with_parent, let_interrupts_in, usable_cores
    from kdvfs_sim.gpu.catalogue import load_gpu
    from kdvfs_sim.report.switching_page import show_study, study_json
    from kdvfs_sim.report.switching_plot import plots_lack
    from kdvfs_sim.report.switching_results import check_targets, write_study
    from kdvfs_sim.study.scene import build_scene, recorded_gpu_name
    from kdvfs_sim.study.switching_study import CHARGED, switching_study
    from kdvfs_sim.study.workload import read_workload
    from kdvfs_sim.trace.repeat import repeated

    budget = budget_from(slack)
    names = list(CHARGED) if protocol == "all" else [protocol_name(protocol)]
    if names == ["free"]:
        raise UsageError("--protocol free: nothing to study; drain, follow, lookahead or all is right")
    periods = _iterations_from(iterations)
    node_power = node_power_from(node_power)
    if gpu is not None and not all(name.strip() for name in gpu.split(",")):
        raise UsageError(f"--gpu {gpu!r}: names by comma, none of them empty")
    gpus = None if gpu is None else [load_gpu(name.strip()) for name in gpu.split(",")]
    target = None if folder is None else out_dir(folder)
    if target is not None:
        check_targets(target)
        lack = plots_lack()
        if lack is not None:
            say(f"note: {lack}; only study.json is written")
    say_when_compiling()
    with working(f"reading {trace} ..."):
        workload = read_workload(trace, recorded_clocks=recorded_from(recorded_clocks))
    with working("building the models ..."):
        scenes = {
            n: build_scene(
                repeated(workload.trace, n),
                gpu=_priced_by(gpu, recorded_gpu_name(workload.trace, device)),
                costs=workload.costs,
                device=device,
                node_power_w=node_power,
            )
            for n in periods
        }
    n_workers = workers or usable_cores()
    # spawned: forked workers would inherit the threads of compiled code
    pool = None
    if n_workers > 1:
        pool = ProcessPoolExecutor(n_workers, mp_context=get_context("spawn"), initializer=end_with_parent)
    let_interrupts_in()
    try:
        study = switching_study(
            scenes,
            budget=budget,
            gpus=gpus or [scenes[1].gpu],
            protocols=names,
            executor=pool,
            n_workers=n_workers,
            seed=seed,
            progress=steps("studying"),
        )
    except BaseException as error:  # the case that a worker is at may take minutes: nobody waits for it
        for process in active_children():
            process.terminate()
        if isinstance(error, BrokenProcessPool):
            raise DeviceError(
                f"one of {n_workers} worker processes was killed, perhaps for want of memory; fewer may go "
                "through: --workers 1"
            ) from error
        raise
    finally:
        if pool is not None:
            pool.shutdown(cancel_futures=True)
    if target is not None:
        say_files(*write_study(target, study))
    if json:
        print_json(study_json(study))
    else:
        show_study(study)


def _priced_by(names: str | None, recorded_name: str) -> str | None:
    """Which of the GPUs named gives the costs; None for the catalogue's entry of the one recorded."""
    from kdvfs_sim.gpu.catalogue import load_gpu
    from kdvfs_sim.study.scene import is_for

    each = [] if names is None else [name.strip() for name in names.split(",")]
    if not recorded_name:
        return each[0] if each else None
    return next((name for name in each if is_for(load_gpu(name), recorded_name)), None)


def _iterations_from(text: str) -> list[int]:
    """Raises UsageError. 1 is always among them."""
    found = {1}
    for part in text.split(","):
        if not part.strip().isascii() or not part.strip().isdigit() or not 1 <= int(part) <= MAX_ITERATIONS:
            raise UsageError(f"--iterations {text!r}: whole numbers from 1 to {MAX_ITERATIONS}, by comma")
        found.add(int(part))
    return sorted(found)
