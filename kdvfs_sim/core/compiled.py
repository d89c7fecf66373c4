"""Compile numeric functions with numba: imported only by modules whose loops need it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")
HEARING_S = 0.1  # between two looks for an interrupt


def compiled(function: F) -> F:
    """``numba.njit``, kept on disk where a cache can be written and in memory where it cannot.

    Division by zero follows IEEE, like numpy's; the interpreter lock is released. Callees are not
    part of numba's cache key: functions that call one another belong in one module, or the caches
    (``__pycache__/*.nb*``) are stale after an edit of the callee's module alone.
    """
    return _compiled(function)


def borrowing(function: F) -> F:
    """Like ``compiled``, for functions that make no arrays: they only borrow those that they are given.

    Numba counts references to every array of a tuple at every call, which costs small functions in loops
    many times what they do; here it does not. An array made inside would never be freed.
    """
    return _compiled(function, _nrt=False)


def interruptible(function: Callable[..., R], *arguments: object) -> R:
    """Call a compiled function that may take long, and hear of interrupts meanwhile.

    It runs in a thread of its own. After an interrupt it still runs to its end, if the process does not
    end before, and nobody hears of what it found.
    """
    if threading.current_thread() is not threading.main_thread():
        return function(*arguments)
    future: Future[R] = Future()

    def run() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    while True:
        try:  # a signal that another thread gets does not end a wait, only this one's next step hears of it
            return future.result(HEARING_S)
        except TimeoutError:
            if future.done():
                return future.result()


def _compiled(function: F, **options: bool) -> F:
    njit: Callable[..., Any] = numba.njit
    jit = partial(njit, nogil=True, error_model="numpy", **options)
    try:
        return cast(F, jit(cache=True)(function))
    except RuntimeError:  # numba found no folder it may write its cache to
        return cast(F, jit()(function))
