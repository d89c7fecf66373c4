"""What launches may run at: the cost table's word and, under ``local`` aggregation, the time rule that each
of them keeps by itself."""

from __future__ import annotations

import numpy as np

from kdvfs_sim.core.problem import Problem
from kdvfs_sim.optimize.additive import Bools, Cells, Floats, Ints, cells_of, fold
from kdvfs_sim.optimize.baselines import locked


def free_choices(problem: Problem, group: Ints) -> Bools:
    """What each group may run at, (n_groups, n_rows): one rule for bound, model and descent.

    Under ``local`` a group's time includes its gaps, at the least that they are.
    """
    rows = np.arange(problem.costs.n_clocks)
    groups = fold(cells_of(problem.chain, problem.costs, rows, at_least=True), group)
    if problem.aggregation == "local":
        groups = groups.only(_locally_allowed(problem, groups.time_ns, rows))
    return groups.allowed


def restricted(problem: Problem, cells: Cells, rows: Ints) -> Cells:
    """Under ``local`` aggregation: only the clocks at which a launch keeps the time rule by itself."""
    if problem.aggregation != "local":
        return cells
    times = np.rint(cells.duration_ns[:, None] * cells.ratio[cells.kind])
    return cells.only(_locally_allowed(problem, times, rows))


def _locally_allowed(problem: Problem, time_ns: Ints | Floats, rows: Ints) -> Bools:
    """Where a group's own time is within the slack that the whole is given over AUTO."""
    auto = problem.costs.auto
    judged = problem.evaluate(locked(problem, problem.costs.clocks[auto]))
    limit_s = problem.objective.max_time_s
    if limit_s is None or not judged.time_s:
        return np.ones(time_ns.shape, dtype=np.bool_)
    allowed: Bools = time_ns <= time_ns[:, rows == auto] * (limit_s / judged.time_s)
    return allowed
