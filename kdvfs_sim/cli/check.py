"""``kdvfs check``: the laws of a plug-in, tried on generated cases."""

from __future__ import annotations

from typing import Annotated

import typer

from kdvfs_sim.cli.options import JsonOption

BROKEN = 5


def command(
    plugin: Annotated[str, typer.Argument(metavar="MODULE:OBJECT", help="The plug-in, or FILE.py:OBJECT.")],
    kind: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="Kind of plug-in, where its methods do not tell: optimizer, search, latency, power, ...",
        ),
    ] = None,
    examples: Annotated[int, typer.Option(metavar="N", min=1, help="Cases to try for each law.")] = 100,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the cases.")] = 0,
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

    Exit code 5 if a law is broken that was not known to be.

    Example: kdvfs check my_optimizer.py:MyOptimizer
    """
    import time

    from kdvfs_sim.cli.console import print_json, say
    from kdvfs_sim.core.errors import UsageError
    from kdvfs_sim.testing import check, laws_of, report
    from kdvfs_sim.testing.plugins import kinds_of, load, made

    found = load(plugin)
    kinds = kinds_of(found, kind)
    names = {law.name for each in kinds for law in laws_of(each)}
    reasons = dict(_reason(text) for text in known or ())
    for name in (*(only or ()), *reasons):
        if name not in names:
            raise UsageError(f"no law {name!r}; there are: {', '.join(sorted(names))}")
    began = time.monotonic()
    verdicts = []
    for each in kinds:
        subject, called = made(found, each)
        own = {law.name for law in laws_of(each)}
        setup = _setup(plugin, called)
        for verdict in check(
            subject,
            each,
            only=[name for name in only if name in own] if only else (),
            known={name: reason for name, reason in reasons.items() if name in own},
            n_examples=examples,
            seed=seed,
        ):
            verdicts.append((each, verdict))
            if json:
                say(f"{verdict.outcome:<10} {verdict.law.name}")
            else:
                typer.echo(report(verdict, setup=setup))
    counts = {
        outcome: sum(verdict.outcome == outcome for _, verdict in verdicts)
        for outcome in ("held", "broken", "known", "not judged")
    }
    seconds = time.monotonic() - began
    if json:
        print_json(
            {
                "plugin": plugin,
                "seed": seed,
                "examples": examples,
                "time_s": seconds,
                **{outcome.replace(" ", "_"): n for outcome, n in counts.items()},
                "laws": [
                    {
                        "kind": each,
                        "law": v.law.name,
                        "says": v.law.says,
                        "outcome": v.outcome,
                        "n_judged": v.n_judged,
                        "time_s": v.time_s,
                        "found": v.found,
                        "reason": v.reason,
                        "code": v.code(_setup(plugin, isinstance(found, type))),
                    }
                    for each, v in verdicts
                ],
            }
        )
    else:
        words = ", ".join(f"{n} {outcome}" for outcome, n in counts.items() if n)
        typer.echo(f"{words} ({examples} cases a law, seed {seed}, {seconds:.0f} s)")
    # a plug-in of which nothing could be judged has not passed
    passed = not counts["broken"] and (counts["held"] or counts["known"])
    return 0 if passed else BROKEN


def _reason(text: str) -> tuple[str, str]:
    from kdvfs_sim.core.errors import UsageError

    name, separator, reason = text.partition("=")
    if not separator or not reason.strip():
        raise UsageError(f"--known {text!r}: write LAW=REASON")
    return name.strip(), reason.strip()


def _setup(plugin: str, called: bool) -> list[str]:
    """The lines that make ``plugin`` in a counterexample's code."""
    from pathlib import Path

    place, _, attribute = plugin.rpartition(":")
    module = Path(place).stem if place.endswith(".py") else place
    first = attribute.partition(".")[0]
    return [f"from {module} import {first}", f"plugin = {attribute}{'()' if called else ''}"]
