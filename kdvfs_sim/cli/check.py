"""``kdvfs check``: the laws of a plug-in, tried on generated cases."""

from __future__ import annotations

from typing import Annotated

import typer

from kdvfs_sim.cli.options import JsonOption, SeedOption

MAX_EXAMPLES = 10**9


def command(
    plugin: Annotated[str, typer.Argument(metavar="MODULE:OBJECT", help="The plug-in, or FILE.py:OBJECT.")],
    kind: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="Kind of plug-in, where its methods do not tell: optimizer, search, latency, power, ...",
        ),
    ] = None,
    examples: Annotated[
        int, typer.Option(metavar="N", min=1, max=MAX_EXAMPLES, help="Cases to try for each law.")
    ] = 100,
    seed: SeedOption = 0,
    only: Annotated[
        list[str] | None, typer.Option(metavar="LAW", help="Only this law; may be repeated.")
    ] = None,
    known: Annotated[
        list[str] | None,
        typer.Option(metavar="LAW=REASON", help="A law known to fail, and why; may be repeated."),
    ] = None,
    json: JsonOption = False,
) -> int:
    """Try the laws that hold of every plug-in of a kind on yours, and show the smallest case that breaks one.

    Exit code 5 if a law is broken that was not known to be, or if none could be judged.

    Example: kdvfs check my_optimizer.py:MyOptimizer
    """
    import time
    from dataclasses import asdict

    from kdvfs_sim.cli.console import print_json, say
    from kdvfs_sim.core.errors import PluginError
    from kdvfs_sim.testing import check_apart

    began = time.monotonic()
    tried = []
    for each in check_apart(
        plugin,
        kind=kind,
        only=only or (),
        known=dict(_reason(text) for text in known or ()),
        n_examples=examples,
        seed=seed,
    ):
        tried.append(each)
        if json:
            say(f"{each.outcome:<10} {each.law}")
        else:
            typer.echo(each.report)
    counts = {
        outcome: sum(each.outcome == outcome for each in tried)
        for outcome in ("held", "broken", "known", "not judged")
    }
    n_raised = sum(each.n_raised for each in tried)
    n_never = sum(each.outcome == "not judged" and each.n_raised > 0 for each in tried)
    seconds = time.monotonic() - began
    if json:
        print_json(
            {
                "plugin": plugin,
                "seed": seed,
                "examples": examples,
                "time_s": seconds,
                **{outcome.replace(" ", "_"): n for outcome, n in counts.items()},
                "n_raised": n_raised,
                "laws": [
                    {name: value for name, value in asdict(each).items() if name != "report"}
                    for each in tried
                ],
            }
        )
    else:
        words = ", ".join(f"{n} {outcome}" for outcome, n in counts.items() if n)
        typer.echo(f"{words} ({examples} cases a law, seed {seed}, {seconds:.0f} s)")
        if n_raised:
            never = f", and no other case of {n_never} law{'s' * (n_never != 1)} was left" if n_never else ""
            typer.echo(f"the plug-in raised in {n_raised} cases that were not judged therefore{never}")
    # a plug-in of which nothing could be judged has not passed, whatever was known of it beforehand
    passed = not counts["broken"] and (counts["held"] or not counts["not judged"])
    return 0 if passed else PluginError.exit_code


def _reason(text: str) -> tuple[str, str]:
    from kdvfs_sim.core.errors import UsageError

    name, separator, reason = text.partition("=")
    if not separator or not reason.strip():
        raise UsageError(f"--known {text!r}: write LAW=REASON")
    return name.strip(), reason.strip()
