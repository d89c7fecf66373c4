"""What has to hold of a PowerModel (core.protocols)."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.core.protocols import PowerModel
from kdvfs_sim.testing.domain import Point, declares_kinds, points, strangers
from kdvfs_sim.testing.law import ask, assume, law, require
from kdvfs_sim.testing.laws.latency import require_unknown, sent
from kdvfs_sim.testing.notation import same


def watts(model: PowerModel, point: Point) -> tuple[float, float]:
    """Busy and idle."""
    kind, clocks = point
    return float(ask(model.busy_power_w, kind, clocks)), float(ask(model.idle_power_w, clocks))


def _is_power(value: Any) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    )


@law("power", points, total=True)
def busy_power_is_a_number_of_watts(model: PowerModel, point: Point) -> None:
    """For every kind and every pair of numeric clocks: a finite number of watts, at least 0."""
    value = ask(model.busy_power_w, *point)
    require(_is_power(value), f"busy_power_w returned {value!r}; a finite number of at least 0 is right")


@law("power", points, total=True)
def idle_power_is_a_number_of_watts(model: PowerModel, point: Point) -> None:
    """At every pair of numeric clocks, with nothing running: a finite number of watts, at least 0."""
    value = ask(model.idle_power_w, point[1])
    require(_is_power(value), f"idle_power_w returned {value!r}; a finite number of at least 0 is right")


@law("power", lambda model: st.tuples(points(model), st.lists(points(model), max_size=4)))
def same_answer_in_any_order(model: PowerModel, case: tuple[Point, list[Point]]) -> None:
    """The same question has the same answer, whatever was asked in between."""
    point, others = case
    before = watts(model, point)
    for other in others:
        watts(model, other)
    after = watts(model, point)
    require(same(before, after), f"{before} W (busy, idle) first, {after} W when asked again")


@law("power", lambda model: st.tuples(strangers(model), points(model)))
def an_unknown_kernel_is_refused(model: PowerModel, case: tuple[KernelKind, Point]) -> None:
    """A model that lists its ``kinds`` raises UnknownKernelError for any other, and answers no number."""
    assume(declares_kinds(model))
    stranger, (_, clocks) = case
    require_unknown(model.busy_power_w, stranger, clocks)


@law("power", points)
def a_copy_answers_the_same(model: PowerModel, point: Point) -> None:
    """The model can be sent to another process: pickled and loaded it gives the same answers."""
    copy: PowerModel = sent(model)
    here, there = watts(model, point), watts(copy, point)
    require(same(here, there), f"{here} W (busy, idle) here, {there} W after pickling")
