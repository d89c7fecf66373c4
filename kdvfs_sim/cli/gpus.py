"""``kdvfs gpus``: what is known of each GPU, with its source."""

from __future__ import annotations

from typing import Annotated

import typer

from kdvfs_sim.cli.options import JsonOption


def command(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One GPU, with every number.")] = None,
    json: JsonOption = False,
) -> None:
    """List the GPU catalogue, or every number of one GPU with its source and kind.

    Example: kdvfs gpus h200
    """
    from kdvfs_sim.cli.console import print_json
    from kdvfs_sim.report.gpu_page import catalogue_json, catalogue_table, gpu_json, gpu_table, show

    if name is None:
        print_json(catalogue_json()) if json else show(catalogue_table())
    else:
        print_json(gpu_json(name)) if json else show(*gpu_table(name))
