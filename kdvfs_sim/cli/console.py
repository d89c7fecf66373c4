"""What the commands share: JSON on stdout, everything else on stderr, and a word when work takes long."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
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


def steps(what: str) -> Callable[[str], None]:
    """Says each step of long work on stderr, from the second second on."""
    begin = time.monotonic()

    def step(text: str) -> None:
        elapsed_s = time.monotonic() - begin
        if elapsed_s > 1.0:
            say(f"{what}: {text} ({elapsed_s:.0f} s so far)")

    return step
