"""Options that several commands share, and how their texts become values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.core.errors import InputError, UsageError
from kdvfs_sim.core.switching import PROTOCOLS, Boundary

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
