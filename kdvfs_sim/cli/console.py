"""What the commands share: JSON on stdout, everything else on stderr, and a word when work takes long."""

from __future__ import annotations

import json
import math
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
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
