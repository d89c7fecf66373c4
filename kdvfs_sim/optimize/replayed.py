"""Descent on true replays, for chains whose times do not simply add.

Where the host binds, or several streams do, a slower launch may hide in a gap, and what the gap loses depends
on all launches before it. No model of this room says that exactly, but the judge does. So what the models
found is improved step by step, each step judged: one group, one kind, one run of equal clocks or one stretch
is given other clocks, and keeps them if that is better.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from kdvfs_sim.core.problem import Problem
from kdvfs_sim.optimize.additive import Bools, Ints
from kdvfs_sim.optimize.assignment import as_rows, as_schedule
from kdvfs_sim.optimize.baselines import Judged, judge

N_STARTS = 3
BETTER = 1e-9  # relative: less is rounding
# Launches replayed by the descents of one answer: about a second each. Floors are known of what the compiled
# evaluator walks, one stream whose launches follow one another; anything else is replayed event by event.
COMPILED_STEPS = 600_000
REPLAYED_STEPS = 150_000


class _Best(NamedTuple):
    value: float
    rows: Ints  # by group


def may_descend(problem: Problem) -> bool:
    """Is there anything that only a replay knows, and do steps lead to schedules that bounds speak of?

    With changes that take time, a step moves where they land, beside the boundaries that they were meant for.
    """
    return not (problem.chain.additive or problem.protocol.charged)


def improve(
    problem: Problem, group: Ints, allowed: Bools, found: Sequence[Judged]
) -> tuple[list[Judged], int]:
    """What descents from the best of ``found`` met, each better than the last, and how many were judged.

    ``group`` (n_launches,); ``allowed`` (n_groups, n_rows of the cost table). Bounded by launches
    replayed, so that the answer does not depend on the machine.
    """
    starts = _starts(problem, group, allowed, found)
    n = max(len(group), 1)
    steps = REPLAYED_STEPS if problem.chain.floor_ns is None else COMPILED_STEPS
    n_most = steps // n
    n_judged = 0
    better: list[Judged] = []
    for start in starts:  # the best first: what it leaves is for the others
        n_used, improved = _descend(problem, group, allowed, start, n_most - n_judged)
        n_judged += n_used
        better += improved
    return better, n_judged


def _starts(problem: Problem, group: Ints, allowed: Bools, found: Sequence[Judged]) -> list[_Best]:
    """The best of what was found, the best lock and the fastest one: those that the policy may choose."""
    objective = problem.objective
    within = [one for one in found if objective.allows(one.time_s, one.energy_j)]
    within.sort(key=lambda one: (objective.value(one.time_s, one.energy_j), one.time_s))
    locks = [one for one in within if one.schedule.is_static]
    fastest = sorted(locks, key=lambda one: (one.time_s, one.energy_j))
    starts: list[_Best] = []
    for one in (*within[:1], *locks[:1], *fastest[:1], *within[1:]):
        if len(starts) == N_STARTS:
            break
        rows = rows_by_group(as_rows(problem, one.schedule), group, len(allowed))
        if rows is None or not allowed[np.arange(len(rows)), rows].all():
            continue
        if any((rows == other.rows).all() for other in starts):
            continue
        starts.append(_Best(objective.value(one.time_s, one.energy_j), rows))
    return starts


def rows_by_group(rows: Ints, group: Ints, n_groups: int) -> Ints | None:
    """One row for every group; None if its launches do not agree."""
    by_group = np.zeros(n_groups, dtype=np.int64)
    by_group[group] = rows
    return by_group if (by_group[group] == rows).all() else None


def _descend(
    problem: Problem, group: Ints, allowed: Bools, best: _Best, n_most: int
) -> tuple[int, list[Judged]]:
    """Evaluations used, at most ``n_most``, and every improvement, in order."""
    improved: list[Judged] = []
    seen = {best.rows.tobytes()}
    n_used = 0
    while n_used < n_most:
        before = best.value
        for move in _moves(problem, group, best.rows):
            for row in _candidates(allowed, best.rows, move):
                rows = best.rows.copy()
                rows[move] = row
                if rows.tobytes() in seen:
                    continue
                if n_used == n_most:
                    return n_used, improved
                n_used += 1
                seen.add(rows.tobytes())
                judged = judge(problem, as_schedule(problem, rows[group]))
                if judged is None or not problem.objective.allows(judged.time_s, judged.energy_j):
                    continue
                value = problem.objective.value(judged.time_s, judged.energy_j)
                if value < best.value * (1 - BETTER):
                    best = _Best(value, rows)
                    improved.append(judged)
        if not best.value < before:
            break
    return n_used, improved


def _candidates(allowed: Bools, rows: Ints, move: Ints) -> list[int]:
    """Rows that all groups of a move may have: those in use, and nearer and nearer ones to the first's."""
    common = np.flatnonzero(allowed[move].all(axis=0))
    at = int(np.searchsorted(common, rows[move[0]]))
    near = []
    step = 1
    while step < len(common):
        near += [at - step, at + step]
        step *= 2
    wanted = [int(common[k]) for k in reversed(near) if 0 <= k < len(common)]
    in_use = [row for row in np.unique(rows).tolist() if allowed[move, row].all()]
    return list(dict.fromkeys([*in_use, *wanted]))


def _moves(problem: Problem, group: Ints, rows: Ints) -> Iterator[Ints]:
    """Groups that change together: neighbours with the same clocks; all of one kind; stretches, long ones
    first; single ones, the longest first."""
    n_groups = len(rows)
    yield from np.split(np.arange(n_groups), np.flatnonzero(np.diff(rows)) + 1)
    for kind in np.unique(problem.chain.kind).tolist():
        yield np.unique(group[problem.chain.kind == kind])
    length = 1 << max(n_groups - 1, 0).bit_length()
    while length > 1:
        for first in range(0, n_groups, length):
            yield np.arange(first, min(first + length, n_groups))
        length //= 2
    busy_ns = np.bincount(group, problem.chain.duration_ns, minlength=n_groups)
    for g in np.argsort(-busy_ns, kind="stable"):
        yield np.array([g])
