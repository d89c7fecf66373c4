"""JSON and TOML that somebody else may have written: what cannot be read raises ValueError, nothing else."""

from __future__ import annotations

import json
import tomllib
from typing import Any

_DEEP = "it is nested too deeply"


def json_of(data: bytes | str) -> Any:
    """What a JSON text says. Raises ValueError for any other bytes."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError(_DEEP) from None


def toml_of(data: bytes) -> dict[str, Any]:
    """What a TOML file says. Raises ValueError for any other bytes."""
    try:
        return tomllib.loads(data.decode())
    except RecursionError:
        raise ValueError(_DEEP) from None
