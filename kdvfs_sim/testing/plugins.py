"""From ``module:Object`` to a plug-in, and of which kinds it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from kdvfs_sim.core.errors import PluginError, UsageError
from kdvfs_sim.core.objects import load_object, theirs, words
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
# what the others are called by; a device may be what opens one
_NEEDED: Final[dict[Kind, tuple[str, ...]]] = {
    "optimizer": ("solve",),
    "latency": ("duration_ns",),
    "power": ("busy_power_w", "idle_power_w"),
    "switching": ("switch",),
    "reader": ("can_read", "read"),
}


def load(name: str) -> Any:
    """The object that ``module:Object`` or ``file.py:Object`` names.

    Raises UsageError for a name of another form or of something else, PluginError if its module fails.
    """
    place, separator, attribute = name.rpartition(":")
    if separator and (not place or (place.startswith(".") and not place.endswith(".py"))):
        raise UsageError(f"{name!r}: write module:Object or file.py:Object")
    if not separator or not attribute.replace(".", "").isidentifier():
        if name and (Path(name).exists() or find_shipped(name)):
            if name.endswith(".py"):
                raise UsageError(f"{name!r}: name the object in it, as {name}:NAME")
            raise UsageError(f"{name!r} is a recording, not a plug-in; did you mean kdvfs inspect {name}?")
        raise UsageError(f"{name!r}: write module:Object or file.py:Object")
    return load_object(place, attribute)


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


def made(plugin: Any, kind: Kind, said: bool = False) -> tuple[Any, bool]:
    """The plug-in as its laws want it, and whether it was called for that: a class is made an object, except
    where an object is made for every case.

    Raises PluginError if making it fails, or if it lacks a method of its kind: UsageError if it was only
    ``said`` to be of that kind.
    """
    called = isinstance(plugin, type) and kind not in _MADE
    subject = plugin
    try:
        subject = plugin() if called else plugin
    except BaseException as error:
        if not theirs(error):
            raise
        raise PluginError(
            f"{plugin.__name__}() failed: {words(error)}; name an object or a class that needs no arguments"
        ) from error
    problem = _lacking(subject, kind)
    if problem:
        name = getattr(plugin, "__name__", repr(plugin))
        raise (UsageError if said else PluginError)(f"{name} is no {kind}: {problem}")
    return subject, called


def _lacking(subject: Any, kind: Kind) -> str:
    """What an object lacks to be of a kind, and what would be right; "" for nothing."""
    needed = _NEEDED.get(kind, ())
    for name in needed:
        if not callable(getattr(subject, name, None)):
            return f"it has no {name}(); a plug-in of this kind has {' and '.join(f'{n}()' for n in needed)}"
    if needed or callable(subject) or (kind == "device" and hasattr(subject, "observed_clocks")):
        return ""
    return "it cannot be called; name the class, or a function that makes one"


def setup_lines(plugin: str, called: bool) -> list[str]:
    """The lines that make ``plugin`` in a counterexample's code."""
    place, _, attribute = plugin.rpartition(":")
    module = Path(place).stem if place.endswith(".py") else place
    first = attribute.partition(".")[0]
    return [f"from {module} import {first}", f"plugin = {attribute}{'()' if called else ''}"]
