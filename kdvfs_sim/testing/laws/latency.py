"""What has to hold of a LatencyModel (core.protocols)."""

from __future__ import annotations

import math
import pickle
from typing import Any

from hypothesis import strategies as st

from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.core.errors import UnknownKernelError
from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.core.objects import theirs
from kdvfs_sim.core.protocols import LatencyModel
from kdvfs_sim.testing.domain import Point, declares_kinds, points, strangers
from kdvfs_sim.testing.law import Raised, ask, assume, law, require
from kdvfs_sim.testing.notation import same


def duration(model: LatencyModel, kind: KernelKind, clocks: Clocks) -> float:
    return float(ask(model.duration_ns, kind, clocks))


@law("latency", points, total=True)
def durations_are_positive(model: LatencyModel, point: Point) -> None:
    """For every kind and every pair of numeric clocks: a finite number of nanoseconds above 0."""
    ns = ask(model.duration_ns, *point)
    fine = isinstance(ns, int | float) and not isinstance(ns, bool) and math.isfinite(ns) and ns > 0
    require(fine, f"duration_ns returned {ns!r}; a finite number above 0 is right")


@law("latency", lambda model: st.tuples(points(model), st.lists(points(model), max_size=4)))
def same_answer_in_any_order(model: LatencyModel, case: tuple[Point, list[Point]]) -> None:
    """The same question has the same answer, whatever was asked in between."""
    point, others = case
    before = duration(model, *point)
    for other in others:
        duration(model, *other)
    after = duration(model, *point)
    require(same(before, after), f"{before!r} ns first, {after!r} ns when asked again")


@law("latency", lambda model: st.tuples(strangers(model), points(model)))
def an_unknown_kernel_is_refused(model: LatencyModel, case: tuple[KernelKind, Point]) -> None:
    """A model that lists its ``kinds`` raises UnknownKernelError for any other, and answers no number."""
    assume(declares_kinds(model))
    stranger, (_, clocks) = case
    require_unknown(model.duration_ns, stranger, clocks)


@law("latency", points)
def a_copy_answers_the_same(model: LatencyModel, point: Point) -> None:
    """The model can be sent to another process: pickled and loaded it gives the same answers."""
    copy: LatencyModel = sent(model)
    here, there = duration(model, *point), duration(copy, *point)
    require(same(here, there), f"{here!r} ns here, {there!r} ns after pickling")


def sent(model: Any) -> Any:
    """The model after a round trip through pickle."""
    try:
        return pickle.loads(pickle.dumps(model))
    except BaseException as error:
        if not theirs(error):
            raise
        require(False, f"it cannot be pickled: {type(error).__name__}: {error}")


def require_unknown(function: Any, stranger: KernelKind, clocks: Clocks) -> None:
    try:
        answer = ask(function, stranger, clocks)
    except Raised as raised:
        fine = isinstance(raised.error, UnknownKernelError)
        require(fine, f"{raised}; UnknownKernelError is right for a kind that it does not list")
    else:
        require(False, f"it answered {answer!r} for a kind that it does not list")
