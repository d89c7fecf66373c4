"""Per-kernel GPU clock schedules with the cost of switching included.

``import kdvfs_sim`` is light: every name below is loaded from its room on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from kdvfs_sim.core.version import __version__

_HOME: Final[dict[str, str]] = {
    "AUTO": "kdvfs_sim.core.clocks",
}

if TYPE_CHECKING:
    from kdvfs_sim.core.clocks import AUTO as AUTO


def __getattr__(name: str) -> Any:
    try:
        home = _HOME[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*_HOME, "__version__"])


__all__ = ["__version__", *sorted(_HOME)]
