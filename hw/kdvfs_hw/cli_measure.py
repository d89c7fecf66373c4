"""The verbs of ``kdvfs hw`` that measure without changing anything, and ``characterize``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

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
from kdvfs_sim.cli.options import SeedOption

_OF_A_WORKLOAD = ("seconds", "repeats", "kernels", "kernel_seconds", "settle", "seed")


def observe(
    context: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND...]", help="A command to run and watch, after --."),
    ] = None,
    workload: WorkloadOption = None,
    device: DeviceOption = None,
    seconds: Annotated[float, typer.Option("--seconds", help="Length of one reading of the step.")] = 2.0,
    repeats: Annotated[int, typer.Option("--repeats", help="Readings of the step.")] = 5,
    kernels: Annotated[bool, typer.Option("--kernels", help="Read every kernel of the step too.")] = False,
    kernel_seconds: Annotated[
        float, typer.Option("--kernel-seconds", help="Length of one reading of a kernel.")
    ] = 1.0,
    settle: Annotated[float, typer.Option("--settle", help="Longest warm-up, seconds.")] = 30.0,
    seed: SeedOption = 0,
    out: OutOption = None,
    json: JsonOption = False,
) -> int:
    """Measure a workload, its kernels, or any command, at the clocks the driver chooses. Changes nothing.

    A command that ends with another code than 0 is read and recorded; the exit code is then 5.

    Example: kdvfs hw observe --out-dir run -- python train.py
    """
    from kdvfs_hw.devices import open_device
    from kdvfs_hw.lock_record import refuse_locked
    from kdvfs_hw.runs.observe import observe as observe_workload
    from kdvfs_hw.runs.observe import observe_command, reading_line, summary_lines
    from kdvfs_hw.runs.record import Record
    from kdvfs_hw.workloads.resolve import workload_from
    from kdvfs_sim.cli.console import others_on_stderr, print_json, say
    from kdvfs_sim.core.errors import PluginError, UsageError

    if (workload is None) == (not command):
        raise UsageError("say what to observe: either --workload NAME or -- COMMAND")
    if command:
        refuse_given(context, _OF_A_WORKLOAD, "a command runs once, as it is; it goes with --workload")
    elif not kernels:
        refuse_given(context, ("kernel_seconds",), "it goes with --kernels")
    check_times(seconds=seconds, settle=settle, repeats=repeats, at_least=1, kernel_seconds=kernel_seconds)
    with others_on_stderr(json), Record(out) as record, open_device(device) as opened:
        refuse_locked(opened.record_folders, opened.device.uuid)
        if command:
            reading, code = observe_command(opened.device, command, record, say=say)
            show: Any = [reading_line(reading)]
            if code:
                raise PluginError(f"{command[0]}: ended with code {code}; {show[0]}")
        else:
            assert workload is not None
            result = observe_workload(
                opened.device,
                workload_from(workload),
                record,
                seconds=seconds,
                repeats=repeats,
                kernels=kernels,
                kernel_seconds=kernel_seconds,
                max_settle_s=settle,
                seed=seed,
                say=say,
            )
            show = summary_lines(result)
            if kernels and out is not None and opened.emulated is None:
                show = [*show, *_compared(out)]
    if json:
        print_json(record.lines)
    else:
        for line in show:
            typer.echo(line)
    return 0


def _compared(folder: Path) -> list[str]:
    """What the kernels just read predict for the step, where the GPU is in the catalogue."""
    from kdvfs_hw.runs.compare import compare_record, comparison_lines
    from kdvfs_sim.core.errors import InputError

    try:
        return list(comparison_lines(compare_record(folder)))
    except InputError as error:
        return [f"no prediction of the step: {error}"]


def characterize(
    device: DeviceOption = None,
    workload: WorkloadOption = None,
    allow: AllowOption = False,
    clocks: Annotated[
        list[str] | None,
        typer.Option("--clocks", metavar="CLOCKS", help="Clocks whose changes are timed; give two or more."),
    ] = None,
    out: OutOption = None,
    json: JsonOption = False,
) -> int:
    """Find out what readings cost, how often counters move, and how fast clocks change.

    Without --allow-clock-control: the chip's own moves only, seen from inside a kernel.

    Example: kdvfs hw characterize --workload gpt3xl-layer --out-dir chip
    """
    from itertools import permutations

    from kdvfs_hw.characterize.characterize import characterize as run
    from kdvfs_hw.characterize.characterize import characterize_lines
    from kdvfs_hw.devices import open_device
    from kdvfs_hw.lock_record import refuse_locked
    from kdvfs_hw.runs.record import Record
    from kdvfs_hw.workloads.resolve import for_emulated, workload_from
    from kdvfs_sim.cli.console import others_on_stderr, print_json, say
    from kdvfs_sim.cli.options import clocks_from
    from kdvfs_sim.core.errors import UsageError

    wanted = [clocks_from(text, "--clocks") for text in clocks or []]
    if wanted and not allow:
        raise UsageError("--clocks names clocks to change to: it needs --allow-clock-control")
    if allow and len(wanted) < 2:
        raise UsageError("timing changes needs two or more --clocks, as in --clocks sm=1410 --clocks auto")
    with others_on_stderr(json), Record(out) as record, open_device(device) as opened:
        refuse_locked(opened.record_folders, opened.device.uuid)
        load = workload_from(workload) if workload is not None else for_emulated(opened)
        if allow and load is None:
            raise UsageError("clock changes are timed under load: name one with --workload")
        if not allow:
            found = run(opened, record, workload=load, say=say)
        else:
            from kdvfs_hw.guardian import guarded_clocks

            with guarded_clocks(opened, allowed=allow) as control:
                pairs = list(permutations(wanted, 2))
                found = run(opened, record, workload=load, control=control, pairs=pairs, say=say)
    if json:
        print_json(found)
    else:
        for line in characterize_lines(found):
            typer.echo(line)
    return 0
