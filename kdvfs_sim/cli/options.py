"""Options that several commands share, and how their texts become values."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.core.errors import InputError, UsageError
from kdvfs_sim.core.switching import PROTOCOLS, Boundary
from kdvfs_sim.core.units import parse_percent

if TYPE_CHECKING:
    from kdvfs_sim.study.plans import Budget

TraceArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="TRACE", help="A recording, or the name of a shipped one.")
]
GpuOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--gpu", metavar="NAME", help="GPU of the catalogue, or a TOML file. Default: the trace's."),
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="JSON on stdout, nothing else.")]
RecordedClocksOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--recorded-clocks",
        metavar="CLOCKS",
        help="Clocks during the recording, e.g. sm=1410,mem=auto. Default: as the file says, else auto.",
    ),
]
BoundaryOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--boundary",
        metavar="KIND",
        help="periodic (one iteration of many, the way back is charged) or one-shot.",
    ),
]
DeviceOption: TypeAlias = Annotated[
    int | None,
    typer.Option("--device", metavar="N", min=0, help="Device of the recording, where it holds several."),
]
NodePowerOption: TypeAlias = Annotated[
    float,
    typer.Option("--node-power", metavar="W", help="Power of the rest of the node, drawn while it runs."),
]
SeedOption: TypeAlias = Annotated[
    int, typer.Option("--seed", metavar="N", min=0, max=2**63 - 1, help="Seed of what is left to chance.")
]

MAX_NODE_W = 100_000
SLACK: Final = "0.6%"
SlackOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--slack",
        metavar="PCT",
        help=f"Time budget: at most this much more than AUTO. Default: {SLACK}.",
        show_default=False,
    ),
]


def clocks_from(text: str, option: str) -> Clocks:
    """Clocks as written on the command line. Raises UsageError naming the option."""
    try:
        return Clocks.parse(text)
    except InputError as error:
        raise UsageError(f"{option}: {error}") from None


def boundary_from(text: str) -> Boundary:
    """Raises UsageError."""
    if text == "periodic":
        return "periodic"
    if text == "one-shot":
        return "one-shot"
    raise UsageError(f"--boundary {text!r}: write periodic or one-shot")


def protocol_name(text: str) -> str:
    """Raises UsageError."""
    if text in PROTOCOLS:
        return text
    raise UsageError(f"--protocol {text!r}: write one of {', '.join(PROTOCOLS)}, or all")


def number_from(value: float, option: str, low: float, high: float, unit: str) -> float:
    """Raises UsageError for a number outside, and for what is none: NaN is outside of everything."""
    if not low <= value <= high:
        raise UsageError(f"{option} {value:g}: from {low:g} to {high:g} {unit} is right")
    return value


def node_power_from(node_power_w: float) -> float:
    """Raises UsageError."""
    return number_from(node_power_w, "--node-power", 0, MAX_NODE_W, "W")


def percent_from(text: str, option: str, *, share_below: float) -> float:
    """Per cent; says so of a number without a sign so small that a share may be meant. Raises UsageError."""
    from kdvfs_sim.cli.console import say

    value = parse_percent(text, option)
    if 0 < value < share_below and not text.strip().endswith("%"):
        whole = f"{100 * value:g}"
        say(f"note: {option} {text} is read as {value:g} %; for {whole} per cent write {whole}%")
    return value


def slack_from(text: str | None) -> float:
    """Per cent of more time, of every command that takes ``--slack``. Raises UsageError."""
    return percent_from(SLACK if text is None else text, "--slack", share_below=0.1)


def budget_from(slack: str | None, energy_budget: str | None = None) -> Budget:
    """The budget of time, or instead of energy. Raises UsageError for both."""
    from kdvfs_sim.study.plans import Budget

    if energy_budget is None:
        return Budget(slack_pct=slack_from(slack))
    if slack is not None:
        raise UsageError("--slack is a budget of time and --energy-budget one of energy: give one of them")
    return Budget(energy_pct=percent_from(energy_budget, "--energy-budget", share_below=2.0))


def recorded_from(text: str | None) -> Clocks | None:
    """None leaves what the file says."""
    return None if text is None else clocks_from(text, "--recorded-clocks")


def out_dir(path: Path) -> Path:
    """The folder, made if missing. Raises InputError before any work is done if it cannot be used."""
    import os

    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be used as a folder ({error.strerror or error})") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise InputError(f"{path}: the folder is not writable")
    return path
