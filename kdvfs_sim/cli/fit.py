"""``kdvfs fit``: a clock sweep to models, a GPU entry, and what to measure next."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kdvfs_sim.cli.options import SLACK, JsonOption, number_from, slack_from
from kdvfs_sim.core.errors import InputError, UsageError

MAX_LIMIT_W = 100_000


def command(
    sweep: Annotated[
        Path,
        typer.Argument(
            metavar="SWEEP", help="CSV or Parquet: kernel, sm_mhz, mem_mhz, time_s, power_w or energy_j."
        ),
    ],
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu", metavar="NAME", help="Entry that the fit completes: its idle power, its clocks."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="GPU entry to write, for --gpu.")
    ] = None,
    suggest: Annotated[
        int | None,
        typer.Option("--suggest", metavar="N", min=1, help="Name the N readings most worth taking next."),
    ] = None,
    slack: Annotated[
        str | None,
        typer.Option(
            "--slack",
            metavar="PCT",
            help=f"Goal: at most this much more time per kernel. Default: {SLACK}.",
            show_default=False,
        ),
    ] = None,
    margin: Annotated[
        str | None,
        typer.Option("--margin", metavar="P", help="Keep the goal this surely: p95 for 95 %. Default: p50."),
    ] = None,
    power_limit: Annotated[
        float | None,
        typer.Option("--power-limit", metavar="W", help="Use the readings under this limit only."),
    ] = None,
    min_sm_mhz: Annotated[
        int | None,
        typer.Option("--min-sm-mhz", metavar="MHZ", min=1, help="Leave out readings at lower SM clocks."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Fit time and power of every kernel of a clock sweep, and say what is wrong with the sweep.

    Example: kdvfs fit sweep.csv --gpu a100 -o mine.toml --suggest 10
    """
    import polars as pl

    from kdvfs_sim.cli.console import print_json, say, working
    from kdvfs_sim.gpu.catalogue import check_target, load_gpu, write_gpu
    from kdvfs_sim.gpu.fit.entry import fitted_entry
    from kdvfs_sim.gpu.fit.fit import fit_sweep
    from kdvfs_sim.gpu.fit.plan import Goal
    from kdvfs_sim.gpu.fit.sweep import read_sweep
    from kdvfs_sim.report.fit_page import fit_page

    slack_pct = slack_from(slack)
    try:
        goal = Goal(slack_pct=slack_pct, margin=margin)
    except InputError as error:
        raise UsageError(f"--margin: {error}") from None
    if output is not None and gpu is None:
        raise UsageError("-o needs --gpu NAME: an entry with the idle power and the limits of this GPU")
    if power_limit is not None:
        number_from(power_limit, "--power-limit", 1, MAX_LIMIT_W, "W")
    if output is not None:
        check_target(output)
    facts = None if gpu is None else load_gpu(gpu)
    readings = read_sweep(sweep)
    if power_limit is not None:
        readings = readings.where_rows(pl.col("power_limit_w") == power_limit)
    if min_sm_mhz is not None:
        readings = readings.where_rows(pl.col("sm_mhz").is_null() | (pl.col("sm_mhz") >= min_sm_mhz))
    with working(f"fitting {sweep} ..."):
        fit = fit_sweep(readings)
        entry = None
        if output is not None and facts is not None:
            entry = fitted_entry(facts, fit, source=f"kdvfs fit of {sweep.name}")
        page = fit_page(fit, goal, gpu=facts, entry=entry, n_suggestions=suggest)
    if output is not None and entry is not None:
        write_gpu(entry, output)
    if json:
        print_json(page.to_json())
    else:
        page.show()
    for warning in filter(None, (page.warning, page.priced.warning if page.priced else "")):
        say(f"warning: {warning}")
    if output is not None:
        say(f"written: {output}")
