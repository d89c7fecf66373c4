"""Options that the verbs of ``kdvfs hw`` share."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from kdvfs_sim.cli.options import number_from
from kdvfs_sim.core.errors import UsageError

DeviceOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="GPU",
        help="GPU-UUID, cuda:N, pci:BUS_ID or emulated:NAME[,FAULT[=VALUE]...]. "
        "Default: the only GPU that CUDA shows.",
    ),
]
AllowOption: TypeAlias = Annotated[
    bool,
    typer.Option("--allow-clock-control", help="You may change this GPU's clocks, and want to."),
]
JsonOption: TypeAlias = Annotated[
    bool, typer.Option("--json", help="JSON on stdout; what a workload prints there goes to stderr.")
]
OutOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--out-dir", metavar="DIR", help="Write record.jsonl, record.md and, for kernels, tables there."
    ),
]
WorkloadOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--workload",
        metavar="NAME",
        help="gpt3xl-layer, gpt3xl-model, gpt3xl-decode (sizes: gpt3xl-layer,batch=4), MODULE:ATTRIBUTE or "
        "FILE.py:ATTRIBUTE.",
    ),
]


def refuse_given(context: typer.Context, names: Collection[str], why: str) -> None:
    """Raises UsageError for an option that was typed and would be passed over. ``names``: of parameters."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in names and source is not None and source.name == "COMMANDLINE":
            raise UsageError(f"{parameter.opts[0]} says nothing here: {why}")


def check_times(
    *, seconds: float, settle: float, repeats: int, at_least: int, kernel_seconds: float | None = None
) -> None:
    """Raises UsageError for readings that nobody can take or wait for."""
    number_from(seconds, "--seconds", 0.05, 3600, "s")
    if kernel_seconds is not None:
        number_from(kernel_seconds, "--kernel-seconds", 0.05, 3600, "s")
    number_from(settle, "--settle", 0, 3600, "s")
    number_from(repeats, "--repeats", at_least, 1000, "readings")
