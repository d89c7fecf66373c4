"""Compile numeric functions with numba: imported only by modules whose loops need it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.core import event

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """``numba.njit``, kept on disk where a cache can be written and in memory where it cannot.

    Division by zero follows IEEE, like numpy's; the interpreter lock is released. Callees are not
    part of numba's cache key: functions that call one another belong in one module, or the caches
    (``__pycache__/*.nb*``) are stale after an edit of the callee's module alone.
    """
    try:
        return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy")(function))
    except RuntimeError:  # numba found no folder it may write its cache to
        return cast(F, numba.njit(nogil=True, error_model="numpy")(function))


class _First(event.Listener):
    """Calls back once, at the first function that is compiled and not loaded from the cache."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self.tell: Callable[[], None] | None = tell

    def on_start(self, event: Any) -> None:
        tell, self.tell = self.tell, None
        if tell is not None:
            tell()

    def on_end(self, event: Any) -> None:
        pass


def at_first_compilation(tell: Callable[[], None]) -> None:
    """Call ``tell`` once, when this process compiles anything: never where the cache on disk has it all."""
    event.register("numba:compile", _First(tell))  # type: ignore[no-untyped-call]
