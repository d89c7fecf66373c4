"""The verbs, and those that other packages mount from the entry-point group ``kdvfs.commands``."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

import typer

from kdvfs_sim.cli import check, fit, gpus, import_, inspect, optimize, replay, study


def build() -> Any:
    """The command, ready to be called with ``args`` and ``standalone_mode``."""
    app = typer.Typer(
        name="kdvfs",
        help="Per-kernel GPU clock schedules, with the cost of switching included.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
    )
    app.callback()(_options)
    app.command("import")(import_.command)
    app.command("inspect")(inspect.command)
    app.command("gpus")(gpus.command)
    app.command("fit")(fit.command)
    app.command("replay")(replay.command)
    app.command("optimize")(optimize.command)
    app.add_typer(study.app, name="study")
    app.command("check")(check.command)
    for point in entry_points(group="kdvfs.commands"):
        app.add_typer(point.load(), name=point.name)
    return typer.main.get_command(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        from kdvfs_sim.core.version import __version__

        typer.echo(f"kdvfs {__version__}")
        raise typer.Exit


def _options(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    """A TRACE is any readable recording or the name of a shipped one.

    Exit codes: 0 done, 2 usage, 3 input, 4 infeasible, 5 plug-in, 6 device, 70 our bug.
    """
