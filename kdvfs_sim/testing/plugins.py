"""From ``module:Object`` to a plug-in, and of which kinds it is."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from kdvfs_sim.core.errors import PluginError, UsageError
from kdvfs_sim.testing.law import KINDS, Kind
from kdvfs_sim.trace.recordings import find_shipped

# what the methods of a plug-in say of its kind
_METHODS: Final[dict[str, Kind]] = {
    "solve": "optimizer",
    "tell": "search",
    "duration_ns": "latency",
    "busy_power_w": "power",
    "switch": "switching",
    "can_read": "reader",
    "evaluate": "evaluator",
    "observed_clocks": "device",
}
# made anew for every case, from a problem or a program
_MADE: Final = ("search", "evaluator")


def load(name: str) -> Any:
    """The object that ``module:Object`` or ``file.py:Object`` names.

    Raises UsageError for a name of another form or of something else, PluginError if its module fails.
    """
    place, separator, attribute = name.rpartition(":")
    if separator and (not place or (place.startswith(".") and not place.endswith(".py"))):
        raise UsageError(f"{name!r}: write module:Object or file.py:Object")
    if not separator or not attribute.replace(".", "").isidentifier():
        if Path(name).exists() or find_shipped(name):
            if name.endswith(".py"):
                raise UsageError(f"{name!r}: name the object in it, as {name}:NAME")
            raise UsageError(f"{name!r} is a recording, not a plug-in; did you mean kdvfs inspect {name}?")
        raise UsageError(f"{name!r}: write module:Object or file.py:Object")
    module = _module(place)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            public = [key for key in vars(module) if not key.startswith("_")]
            raise UsageError(f"{place} has no {attribute!r}; it has: {', '.join(public)}")
        found = getattr(found, part)
    return found


def _module(place: str) -> ModuleType:
    path = Path(place)
    try:
        if path.suffix == ".py":
            if not path.is_file():
                raise UsageError(f"{place}: no such file")
            spec = importlib.util.spec_from_file_location(path.stem, path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules.setdefault(path.stem, module)
            sys.path.insert(0, str(path.parent.resolve()))
            spec.loader.exec_module(module)
            return module
        sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(place)
    except UsageError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (place == error.name or place.startswith(f"{error.name}.")):
            raise UsageError(f"no module {place!r} here or among the installed packages") from None
        raise PluginError(f"{place}: cannot be imported: {error}") from error
    except (Exception, SystemExit) as error:
        raise PluginError(f"{place}: cannot be imported: {type(error).__name__}: {error}") from error


def kinds_of(plugin: Any, wanted: str | None = None) -> tuple[Kind, ...]:
    """The kinds of plug-in that an object is, by its methods, or the one wanted.

    Raises UsageError for a kind that does not exist and for an object of no kind.
    """
    if wanted is not None:
        for kind in KINDS:
            if kind == wanted:
                return (kind,)
        raise UsageError(f"--kind {wanted!r}: one of {', '.join(KINDS)} is right")
    found = tuple(kind for method, kind in _METHODS.items() if callable(getattr(plugin, method, None)))
    if not found:
        methods = ", ".join(f"{method} ({kind})" for method, kind in _METHODS.items())
        raise UsageError(f"{plugin!r} has none of the methods that tell its kind: {methods}; or give --kind")
    return found


def made(plugin: Any, kind: Kind) -> tuple[Any, bool]:
    """The plug-in as its laws want it, and whether it was called for that: a class is made an object, except
    where an object is made for every case. Raises PluginError if making it fails."""
    if not isinstance(plugin, type) or kind in _MADE:
        return plugin, False
    try:
        return plugin(), True
    except (Exception, SystemExit) as error:
        raise PluginError(
            f"{plugin.__name__}() failed: {type(error).__name__}: {error}; name an object or a class "
            "that needs no arguments"
        ) from error
