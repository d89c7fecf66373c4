"""Annotated ranges: which pass and which iteration an operation belongs to.

A range is open on the host while the code inside it launches work, so an operation belongs to the ranges
open when it was *launched*, not when it ran. Autograd launches the backward pass from a thread of its own
while the annotation stands on the main thread; hence passes and iterations hold for launches of every
thread, all other ranges for those of their own thread.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from kdvfs_sim.trace.intervals import Int64s, innermost

_EVERY_LANE: Final = ("every lane",)

_PASS_WORDS: Final = {"forward": 0, "fwd": 0, "backward": 1, "bwd": 1, "optimizer": 2, "optim": 2}
_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_ITERATION: Final = re.compile(
    r"\W*(?:profiler|train(?:ing)?)?[\W_]*(?:step|iter(?:ation)?)[\W_]*(\d+)\W*", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Annotation:
    """One annotated range. ``lane`` is the host thread, or for a range on the GPU its (device, stream)."""

    name: str
    lane: Hashable
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class Marks:
    """The moments at which operations count as inside a range, with the lane of each: host thread and start
    of their launches, or stream and start of the operations themselves. ``row`` is the row of ops."""

    row: Int64s
    moment_ns: Int64s
    lane: Sequence[Hashable]


def pass_of(name: str) -> int:
    """Index into PASSES, -1 if the name tells none or several.

    ``## forward ##``, ``DistributedDataParallel.forward``, ``bwd`` and ``Optimizer.step#Adam.step`` tell one;
    ``forward_backward`` does not.
    """
    found = {_PASS_WORDS[word] for word in map(str.lower, _WORD.findall(name)) if word in _PASS_WORDS}
    return found.pop() if len(found) == 1 else -1


def step_of(name: str) -> int | None:
    """The number in ``ProfilerStep#3``, ``iteration 3``, ``train_step_3``; None for another name."""
    match = _ITERATION.fullmatch(name)
    return int(match[1]) if match else None


def innermost_marked(annotations: Sequence[Annotation], value: Mapping[str, int], marks: Marks) -> Int64s:
    """For each mark the ``value`` of the innermost range around it whose name has one; else -1."""
    known = [annotation for annotation in annotations if annotation.name in value]
    found = innermost([a.start_ns for a in known], [a.end_ns for a in known], marks.moment_ns)
    values = np.asarray([value[a.name] for a in known] + [-1], dtype=np.int64)  # the last is for -1
    return values[found]


def pass_values(annotations: Iterable[Annotation]) -> dict[str, int]:
    """Pass by name of range, for the names that tell one."""
    return {a.name: index for a in annotations if (index := pass_of(a.name)) >= 0}


def iteration_values(annotations: Iterable[Annotation]) -> dict[str, int]:
    """0-based iteration by name of range, counted in order of start."""
    by_start = sorted(annotations, key=lambda a: a.start_ns)
    names = dict.fromkeys(a.name for a in by_start if step_of(a.name) is not None)
    return {name: index for index, name in enumerate(names)}


def spans(
    annotations: Sequence[Annotation], marks: Marks, start_ns: Int64s, end_ns: Int64s
) -> dict[str, list[Any]]:
    """Columns of RANGES_SCHEMA: each annotation that holds an operation, with the span of those on the GPU.

    ``start_ns`` and ``end_ns`` are those of the operations, by row of ops.
    """
    columns: dict[str, list[Any]] = {"name": [], "start_ns": [], "end_ns": []}
    lanes: dict[Hashable, list[int]] = {}
    for index in np.argsort(marks.moment_ns, kind="stable").tolist():
        lanes.setdefault(marks.lane[index], []).append(index)
        lanes.setdefault(_EVERY_LANE, []).append(index)
    by_lane = {lane: np.asarray(indices) for lane, indices in lanes.items()}
    for annotation in annotations:
        general = pass_of(annotation.name) >= 0 or step_of(annotation.name) is not None
        inside = by_lane.get(_EVERY_LANE if general else annotation.lane)
        if inside is None:
            continue
        first, stop = np.searchsorted(marks.moment_ns[inside], [annotation.start_ns, annotation.end_ns])
        rows = marks.row[inside[first:stop]]
        if rows.size:
            columns["name"].append(annotation.name)
            columns["start_ns"].append(int(start_ns[rows].min()))
            columns["end_ns"].append(int(end_ns[rows].max()))
    return columns
