"""What the commands share: JSON on stdout, everything else on stderr, and a word when work takes long."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any


def print_json(document: Any) -> None:
    """One JSON document on stdout; a number that is not finite becomes null."""
    json.dump(_finite(document), sys.stdout, indent=1, allow_nan=False)
    sys.stdout.write("\n")


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


@contextmanager
def others_on_stderr(wanted: bool = True) -> Iterator[None]:
    """Whatever is printed in the block, by Python code, C libraries or processes started, goes to stderr.

    For code and commands that are not ours, where stdout is to hold one JSON document.
    """
    if not wanted:
        yield
        return
    try:
        sys.stdout.flush()
        ours = os.dup(1)
    except OSError:  # the caller closed stdout
        yield
        return
    try:
        os.dup2(2, 1)
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(ours, 1)
        os.close(ours)


def say(text: str) -> None:
    """A line for the person watching: stderr, never mixed into results."""
    print(text, file=sys.stderr, flush=True)


def say_files(written: Iterable[Path], removed: Iterable[Path] = ()) -> None:
    """What a run left, and what it took away, in its folder."""
    for path in written:
        say(f"written: {path}")
    for path in removed:
        say(f"removed: {path} (of an earlier run; this one has none)")


@contextmanager
def working(text: str) -> Iterator[None]:
    """Says ``text`` on stderr if the block takes longer than a second."""
    timer = threading.Timer(1.0, say, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@cache
def say_when_compiling() -> None:
    """Says on stderr, once in this process, when it compiles: on a first run that looks like slow work.

    Imports numba: for commands that need it anyway.
    """
    from kdvfs_sim.core.compiled import at_first_compilation

    at_first_compilation(lambda: say("compiling the evaluators, once: about a minute ..."))


def steps(what: str) -> Callable[[str], None]:
    """Says steps of long work on stderr, at most one a second and none in the first."""
    begin = last = time.monotonic()

    def step(text: str) -> None:
        nonlocal last
        now = time.monotonic()
        elapsed_s = now - begin
        if now - last > 1.0:
            last = now
            say(f"{what}: {text} ({elapsed_s:.0f} s so far)")

    return step
