"""``kdvfs hw``: verbs for real and emulated GPUs. Only typer is imported before a verb runs."""

from __future__ import annotations

import typer

from kdvfs_hw import cli_control, cli_measure
from kdvfs_hw.cli_options import AllowOption, DeviceOption, JsonOption

app = typer.Typer(
    help="Real GPUs, and emulated ones: what they offer, and their clocks. Changes nothing without "
    "--allow-clock-control.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_DEVICE_EXIT = 6


@app.callback()
def _hw() -> None:
    """Real GPUs, and emulated ones: what they offer, and their clocks."""


@app.command()
def doctor(device: DeviceOption = None, json: JsonOption = False) -> int:
    """Show what this machine's GPUs offer to you, and the remedy for each no. Changes nothing.

    Example: kdvfs hw doctor --device emulated:h200
    """
    from kdvfs_hw.doctor import examine, to_json, to_lines
    from kdvfs_sim.cli.console import print_json

    findings = examine(device)
    if json:
        print_json(to_json(findings))
    else:
        for line in to_lines(findings):
            typer.echo(line)
    return 0 if findings.usable else _DEVICE_EXIT


@app.command()
def reset(device: DeviceOption = None, allow: AllowOption = False, json: JsonOption = False) -> int:
    """Leave a GPU's clocks to its driver again, when a run and its guardian were both killed.

    Without --device: every GPU that a run of yours did not finish with.

    Example: kdvfs hw reset --device emulated:h200 --allow-clock-control
    """
    from kdvfs_hw.reset import reset as reset_gpus
    from kdvfs_sim.cli.console import print_json

    outcomes = reset_gpus(device, allowed=allow)
    if json:
        print_json(
            [
                {
                    "uuid": each.uuid,
                    "complete": each.complete,
                    "outcome": str(each.release or each.error),
                }
                for each in outcomes
            ]
        )
    else:
        for each in outcomes:
            state = "released" if each.complete else "NOT RELEASED"
            typer.echo(f"{each.uuid}: {state}: {each.release or each.error}")
            if each.is_unmoved:
                typer.echo(
                    "  the driver accepted, and the clock stands where it was locked; if this GPU idles at "
                    "that clock anyway, run something on it and reset once more"
                )
        if not outcomes:
            typer.echo(
                "no unfinished run is recorded; to release a GPU's clocks anyway, name it with --device"
            )
    return 0 if all(each.complete for each in outcomes) else _DEVICE_EXIT


app.command()(cli_measure.observe)
app.command()(cli_measure.characterize)
app.command()(cli_control.sweep)
app.command()(cli_control.validate)
