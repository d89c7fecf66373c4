"""What a user names as ``module:Object`` or ``file.py:Object``, and whose fault it is if that raises."""

from __future__ import annotations

import importlib
import importlib.util
import signal
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from kdvfs_sim.core.errors import PluginError, UsageError

_OURS: Final = str(Path(__file__).resolve().parents[1])


def load_object(place: str, attribute: str) -> Any:
    """The object of this name in the module or file ``place``.

    Raises UsageError if there is no such module, file or object, PluginError if the module fails.
    """
    module = _module(place)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            public = [key for key in vars(module) if not key.startswith("_")]
            raise UsageError(f"{place} has no {attribute!r}; it has: {', '.join(public)}")
        found = getattr(found, part)
    return found


def theirs(error: BaseException) -> bool:
    """Whether a user's code raised it. An interrupt is the user's own, except where interrupts are ignored:
    there nobody else can have raised it."""
    return not isinstance(error, KeyboardInterrupt) or signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def words(error: BaseException) -> str:
    """The exception in one line, with file and line of the user's code."""
    name = type(error).__name__
    if isinstance(error, SyntaxError):
        return f"{name}: {error.msg} ({error.filename}, line {error.lineno})"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(("<", _OURS)) and "importlib" not in frame.filename
    ]
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    said = " ".join(str(error).split())
    return (f"{name}: {said}" if said else name) + where


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
        raise PluginError(f"{place}: cannot be imported: {words(error)}") from error
    except BaseException as error:
        if not theirs(error):
            raise
        raise PluginError(f"{place}: cannot be imported: {words(error)}") from error
