"""Very many cases of every law on everything built in: ``python -m kdvfs_sim.testing.soak``.

Every law gets the same share of the time, so that cheap laws try more cases than dear ones, and none is tried
less than ``--least`` times on any plug-in. A round of cases has its own seed, counted from ``--seed``: what
is found is found again. Exit code 0 if nothing broke and as many cases were judged as asked for, else 1.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import cache
from typing import Final, TypeAlias

from kdvfs_sim.core.processes import usable_cores

ROUND_S: Final = 4.0  # what a round of cases should take, so that the last rounds end together
FIRST_ROUND: Final = 50  # cases, before it is known how long they take

Task: TypeAlias = tuple[str, str, str]  # subject, kind, law


@dataclass(slots=True)
class Tally:
    """What became of one law of one subject."""

    n_cases: int = 0
    n_rounds: int = 0
    time_s: float = 0.0
    running: bool = False
    done: bool = False  # every case there is was tried, or none says anything
    reports: list[str] = field(default_factory=list)


def tasks(also: Sequence[str]) -> list[Task]:
    """Every law of every built-in, and of plug-ins named as KIND=MODULE:OBJECT."""
    from kdvfs_sim.testing.builtin import subjects
    from kdvfs_sim.testing.law import laws_of
    from kdvfs_sim.testing.plugins import kinds_of

    named = [(subject.name, subject.kind) for subject in subjects()]
    for text in also:
        kind, _, name = text.partition("=")
        named.append((name, kinds_of(None, kind)[0]))
    # a law on one fixed case has nothing to try a second time
    return [(name, kind, law.name) for name, kind in named for law in laws_of(kind) if not law.once]


@cache
def _subject(name: str, kind: str) -> object:
    from kdvfs_sim.testing.builtin import subjects
    from kdvfs_sim.testing.plugins import kinds_of, load, made

    for subject in subjects():
        if (subject.name, subject.kind) == (name, kind):
            return subject.make()
    return made(load(name), kinds_of(None, kind)[0])[0]


@cache
def _known(name: str, kind: str) -> dict[str, str]:
    from kdvfs_sim.testing.builtin import subjects

    return next((dict(s.known) for s in subjects() if (s.name, s.kind) == (name, kind)), {})


def round_of(task: Task, n_examples: int, seed: int) -> tuple[Task, int, float, str, bool]:
    """One round in a worker: cases judged, seconds, a report if the law broke, and whether that was all."""
    from kdvfs_sim.testing.law import laws_of
    from kdvfs_sim.testing.plugins import kinds_of
    from kdvfs_sim.testing.run import report, run_law

    name, kind, law_name = task
    law = next(law for law in laws_of(kinds_of(None, kind)[0]) if law.name == law_name)
    reason = _known(name, kind).get(law_name, "")
    try:
        verdict = run_law(law, _subject(name, kind), n_examples=n_examples, seed=seed, reason=reason)
    except Exception as error:  # ours, and no reason to forget what the other rounds found
        text = f"{name}: {law_name}: {error!r} while it was judged: {n_examples} examples, seed {seed}"
        return task, 0, 0.0, text, True
    text = f"{name}: {report(verdict)}" if verdict.outcome == "broken" else ""
    # Hypothesis ends early where it has seen every case, or too few that say anything
    return task, verdict.n_judged, verdict.time_s, text, not text and verdict.n_judged < n_examples // 4


def warm_up() -> None:
    """Compile once, before many processes do it side by side; they find the compiled code on disk."""
    from kdvfs_sim.testing.builtin import subjects
    from kdvfs_sim.testing.law import laws_of
    from kdvfs_sim.testing.run import run_law

    for subject in subjects():
        if subject.kind in ("optimizer", "search", "evaluator"):
            for law in laws_of(subject.kind)[:2]:
                run_law(law, subject.make(), n_examples=60, shrink=False)


def soak(
    *,
    n_examples: int,
    n_processes: int,
    seconds: float,
    seed: int,
    least: int = 200,
    also: Sequence[str] = (),
    progress: bool = True,
) -> dict[Task, Tally]:
    """Judge at least ``n_examples`` cases within ``seconds``; stops at whichever comes first."""
    began = time.monotonic()
    warm_up()
    if progress:
        print(f"compiled after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    tallies = {task: Tally() for task in tasks(also)}
    said = began
    with ProcessPoolExecutor(n_processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        running: dict[Future[tuple[Task, int, float, str, bool]], tuple[Task, int, int]] = {}
        while True:
            elapsed = time.monotonic() - began
            n_cases = sum(tally.n_cases for tally in tallies.values())
            done = n_cases >= n_examples and all(t.n_cases >= least or t.done for t in tallies.values())
            if not done and elapsed < seconds:
                for task in _next(tallies, 2 * n_processes - len(running)):
                    tally = tallies[task]
                    tally.running = True
                    rate = tally.n_cases / tally.time_s if tally.time_s else FIRST_ROUND / ROUND_S
                    n = max(FIRST_ROUND, int(min(ROUND_S, max(0.5, seconds - elapsed)) * rate))
                    round_seed = seed + tally.n_rounds
                    running[pool.submit(round_of, task, n, round_seed)] = (task, n, round_seed)
            if not running:
                return tallies
            finished = wait(running, timeout=5.0, return_when=FIRST_COMPLETED).done
            if any(isinstance(future.exception(), BrokenProcessPool) for future in finished):
                for (name, kind, law), n, round_seed in running.values():
                    tallies[name, kind, law].reports.append(
                        f"{name}: {law}: a process ended in this or another of {len(running)} rounds; "
                        f"judge it alone: {n} examples, seed {round_seed}"
                    )
                return tallies
            for future in finished:
                del running[future]
                task, n_judged, took_s, text, no_more = future.result()
                tally = tallies[task]
                tally.running, tally.done = False, tally.done or no_more
                tally.n_cases, tally.time_s = tally.n_cases + n_judged, tally.time_s + took_s
                tally.n_rounds += 1
                tally.reports += [text] if text else []
            if progress and time.monotonic() - said > 15:
                said = time.monotonic()
                print(f"{n_cases} cases, {elapsed:.0f} s", file=sys.stderr, flush=True)


def _next(tallies: dict[Task, Tally], n: int) -> Iterator[Task]:
    """What was never tried, then the laws that had least time, and of each the plug-in that had least."""
    spent: dict[tuple[str, str], float] = {}
    for (_, kind, law), tally in tallies.items():
        spent[kind, law] = spent.get((kind, law), 0.0) + tally.time_s
    waiting = [task for task, tally in tallies.items() if not tally.running and not tally.done]
    waiting.sort(key=lambda task: (tallies[task].n_rounds > 0, spent[task[1:]], tallies[task].time_s))
    yield from waiting[: max(0, n)]


def main(argv: Sequence[str] | None = None) -> int:
    """The command; its exit code is 1 if a law is broken or fewer cases were tried than asked for."""
    parser = argparse.ArgumentParser(prog="python -m kdvfs_sim.testing.soak", description=__doc__)
    parser.add_argument("--examples", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--processes", type=int, default=usable_cores(), metavar="N")
    parser.add_argument("--seconds", type=float, default=3600.0, metavar="S")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--least", type=int, default=200, metavar="N", help="cases for every law")
    parser.add_argument("--also", action="append", default=[], metavar="KIND=MODULE:OBJECT")
    options = parser.parse_args(argv)
    os.environ.setdefault("POLARS_MAX_THREADS", "1")  # every process is one thread's worth of work
    began = time.monotonic()
    tallies = soak(
        n_examples=options.examples,
        n_processes=options.processes,
        seconds=options.seconds,
        seed=options.seed,
        least=options.least,
        also=options.also,
    )
    took_s = time.monotonic() - began
    by_law: dict[tuple[str, str], list[Tally]] = {}
    for (_, kind, law), tally in tallies.items():
        by_law.setdefault((kind, law), []).append(tally)
    print(f"{'cases':>9} {'s':>7} {'cases/s':>8}  law")
    for (kind, law), parts in by_law.items():
        n, spent_s = sum(p.n_cases for p in parts), sum(p.time_s for p in parts)
        print(f"{n:>9} {spent_s:>7.1f} {n / max(spent_s, 1e-9):>8.0f}  {kind}: {law}")
    for task, tally in tallies.items():
        if not tally.n_cases:
            print(f"{'said nothing' if tally.n_rounds else 'not tried'}: {task[2]} of {task[0]}")
    reports = [text for tally in tallies.values() for text in tally.reports]
    print(*reports, sep="\n")
    n_cases = sum(tally.n_cases for tally in tallies.values())
    n_plugins = len({task[:2] for task in tallies})
    print(
        f"seed {options.seed}: {n_cases} cases of {len(by_law)} laws on {n_plugins} plug-ins, "
        f"{len(reports)} failures, {took_s:.0f} s on {options.processes} processes, "
        f"Python {sys.version.split()[0]}"
    )
    return 1 if reports or n_cases < options.examples else 0


if __name__ == "__main__":
    sys.exit(main())
