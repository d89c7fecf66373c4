"""Options that the verbs of ``kdvfs hw`` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

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
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]
OutOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--out-dir", metavar="DIR", help="Write record.jsonl, record.md and tables there."),
]
WorkloadOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--workload",
        metavar="NAME",
        help="gpt3xl-layer, gpt3xl-model, gpt3xl-decode (sizes: gpt3xl-layer,batch=4), or MODULE:ATTRIBUTE.",
    ),
]
