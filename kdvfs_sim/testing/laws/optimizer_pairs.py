"""Laws of an Optimizer that compare its answers to two problems: what must not matter or not be worse.

They reach beyond what brute force can try. Where they compare values, both answers claim to be optimal.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import polars as pl
from hypothesis import strategies as st

from kdvfs_sim.core.clocks import AUTO, Clocks
from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.core.problem import Objective, Problem
from kdvfs_sim.core.protocols import Optimizer
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.core.switching import DRAIN, FOLLOW, FREE, SwitchTable
from kdvfs_sim.testing.judge import Judge
from kdvfs_sim.testing.law import assume, law, require
from kdvfs_sim.testing.laws.answers import (
    CLAIMED,
    altered,
    at_most,
    claimed,
    found,
    measured,
    require_equal,
    require_same,
    small,
    solve,
    tempted,
    ties,
    value,
    wide,
    words,
)
from kdvfs_sim.testing.strategies.problems import chains, problems
from kdvfs_sim.trace.table import Trace

# -- two answers ---------------------------------------------------------------------------------------


@law("optimizer", lambda _: st.tuples(small | wide, st.sampled_from([1.5, 1.05, 4.0])))
def more_slack_is_never_worse(optimizer: Optimizer, case: tuple[Problem, float]) -> None:
    """A looser budget never makes an answer worse that claims to be optimal."""
    problem, factor = case
    objective = problem.objective
    assume(objective.max_time_s is not None or objective.max_energy_j is not None)
    times = None if objective.max_time_s is None else objective.max_time_s * factor
    joules = None if objective.max_energy_j is None else objective.max_energy_j * factor
    looser = replace(problem, objective=replace(objective, max_time_s=times, max_energy_j=joules))
    loose, strict = claimed(optimizer, looser), solve(optimizer, problem)
    own = value(problem, found(strict).metrics)
    require(
        at_most(loose, own, CLAIMED),
        f"{loose:.12g} {objective.unit} is called optimal at {factor} times the budget of an answer of "
        f"{own:.12g} {objective.unit}",
    )


@law("optimizer", lambda _: st.tuples(ties | ties | small, st.integers(1, 5)))
def names_do_not_matter(optimizer: Optimizer, case: tuple[Problem, int]) -> None:
    """Kernel kinds by other names, in another alphabetical order, and another stream number: the same
    answer."""
    problem, stream = case
    judge = problem.evaluate
    assert isinstance(judge, Judge)
    trace, n = judge.trace, problem.costs.n_kinds
    names = tuple(f"z{n - i}" for i in range(n))
    ops = trace.ops.with_columns(stream=trace.ops["stream"] + stream)
    renamed = altered(
        problem,
        recording=replace(trace, ops=ops, kinds=tuple(KernelKind(name=name) for name in names)),
        table=replace(problem.costs, kinds=names),
        stream=(problem.chain.device, problem.chain.stream + stream),
    )
    before, after = solve(optimizer, problem), solve(optimizer, renamed)
    for name in ("schedule", "alternate"):
        schedule = getattr(after, name)
        if schedule is not None:
            requests = tuple(
                r if r.stream is None else replace(r, stream=r.stream - stream) for r in schedule.requests
            )
            after = replace(after, **{name: replace(schedule, requests=requests)})
    require_same(before, after, "by other names")


@law("optimizer", lambda _: wide)
def duplicated_kinds_do_not_matter(optimizer: Optimizer, problem: Problem) -> None:
    """Every kernel kind listed twice, every other launch of it under the second name: the same optimum."""
    judge = problem.evaluate
    assert isinstance(judge, Judge)
    trace, costs, n = judge.trace, problem.costs, problem.costs.n_kinds
    second = np.arange(trace.n_ops) % 2 * n
    twice = replace(
        costs,
        kinds=(*costs.kinds, *(f"{name} again" for name in costs.kinds)),
        duration_ns=np.vstack([costs.duration_ns] * 2),
        power_w=np.vstack([costs.power_w] * 2),
        effective=np.vstack([costs.effective] * 2),
    )
    doubled = altered(
        problem,
        recording=replace(
            trace,
            ops=trace.ops.with_columns(kind=(trace.ops["kind"].to_numpy() + second).astype(np.uint32)),
            kinds=(*trace.kinds, *(KernelKind(name=f"{kind.name} again") for kind in trace.kinds)),
        ),
        table=twice,
    )
    require_equal(claimed(optimizer, problem), claimed(optimizer, doubled), "with every kind listed twice")


@law(
    "optimizer",
    lambda _: problems(recordings=chains(min_launches=6, max_launches=10), protocols=(FREE, DRAIN)),
)
def a_dominated_clock_changes_nothing(optimizer: Optimizer, problem: Problem) -> None:
    """A clock that is slower and draws more for every kind, idle included, and costs as much to reach as the
    dearest: the same optimum."""
    costs, n, old = problem.costs, problem.costs.n_clocks, problem.switching
    through = old.switching_ns[:, :, None] + old.switching_ns[None, :, :]
    assume(bool((through >= old.switching_ns[:, None, :]).all()))  # no detour is shorter: the triangle

    def wider(table: Any) -> Any:
        most = table.max() if table.size else 0
        square = np.full((n + 1, n + 1), most, dtype=table.dtype)
        square[:n, :n] = table
        square[n, n] = 0
        return square

    appended = altered(
        problem,
        table=replace(
            costs,
            clocks=(*costs.clocks, Clocks(100, AUTO)),
            duration_ns=np.column_stack([costs.duration_ns, 2 * costs.duration_ns.max(axis=1)]),
            power_w=np.column_stack([costs.power_w, 2 * costs.power_w.max(axis=1)]),
            effective=np.column_stack([costs.effective, np.full(costs.n_kinds, n, dtype=np.int32)]),
            idle_power_w=np.append(costs.idle_power_w, 2 * costs.idle_power_w.max() + 1),
            requestable=np.append(costs.requestable, True),
        ),
        switches=SwitchTable(
            **{f.name: wider(getattr(old, f.name)) for f in fields(SwitchTable) if f.name != "assumed"}
        ),
    )
    require_equal(
        claimed(optimizer, problem), claimed(optimizer, appended), "with a dominated clock appended"
    )


@law("optimizer", lambda _: tempted | problems(minimize=("energy", "time", "edp")))
def twice_the_power_is_twice_the_energy(optimizer: Optimizer, problem: Problem) -> None:
    """All powers, idle and switching energy included, doubled: the same schedule, at twice the energy."""
    costs, switching, objective = problem.costs, problem.switching, problem.objective
    budget_j = None if objective.max_energy_j is None else 2 * objective.max_energy_j
    doubled = altered(
        problem,
        table=replace(costs, power_w=2 * costs.power_w, idle_power_w=2 * costs.idle_power_w),
        switches=replace(switching, extra_energy_j=2 * switching.extra_energy_j),
        objective=replace(objective, max_energy_j=budget_j),
    )
    before, after = found(solve(optimizer, problem)), solve(optimizer, doubled)
    require(
        (before.schedule, before.alternate, before.status) == (after.schedule, after.alternate, after.status),
        f"another schedule at twice the power: {words(after.schedule)} instead of {words(before.schedule)}",
    )


@law(
    "optimizer",
    lambda _: st.tuples(
        problems(
            recordings=chains(min_launches=3, max_launches=6),
            protocols=(FREE, DRAIN),
            boundaries=("one-shot",),
            granularities=("launch",),
        ),
        chains(min_launches=3, max_launches=6),
        st.sampled_from([0.0, 0.006, 0.1, 1.0]),
    ),
)
def two_traces_joined_are_no_worse(optimizer: Optimizer, case: tuple[Problem, Any, float]) -> None:
    """Plans for two traces, the second from the clocks at which the first ends, make a plan for the two in a
    row: an optimal answer for those is no worse than the sum."""
    first, recording, slack = case
    judge = first.evaluate
    assert isinstance(judge, Judge)
    one = found(solve(optimizer, first))
    assert one.schedule is not None
    last = one.schedule.requests[-1].clocks if one.schedule.requests else judge.start
    second = altered(first, recording=recording, start=first.costs.index(last))
    alone = second.evaluate(Schedule(requests=(), protocol=first.protocol.name, boundary="one-shot"))
    second = replace(second, objective=Objective(max_time_s=alone.time_s * (1 + slack)))
    two = found(solve(optimizer, second))
    assume(one.alternate is None and two.alternate is None)
    budget_s = measured(first, one).time_s + measured(second, two).time_s
    joined = replace(
        altered(first, recording=_joined(judge.trace, recording)),
        objective=Objective(max_time_s=budget_s * (1 + 1e-12)),
    )
    both = claimed(optimizer, joined)
    parts = value(first, measured(first, one)) + value(second, measured(second, two))
    require(
        at_most(both, parts, CLAIMED),
        f"{both:.12g} J is called optimal for both in a row; apart they take {parts:.12g} J",
    )


def _joined(first: Trace, second: Trace) -> Trace:
    """The second right after the first: no gap, so that nothing is idle at the joint."""
    end = (first.ops["start_ns"] + first.ops["duration_ns"]).to_numpy().max()
    moved = second.ops.with_columns(start_ns=second.ops["start_ns"] + end)
    return replace(first, ops=pl.concat([first.ops, moved]))


# -- latency at its limits -----------------------------------------------------------------------------


@law("optimizer", lambda _: problems(protocols=(DRAIN,), slacks=(0.1, 1.0, 0.0)))
def changes_that_cost_nothing_are_free(optimizer: Optimizer, problem: Problem) -> None:
    """Where a drained change costs no time and no energy, the answer is no worse than under ``free``."""
    protocol = problem.protocol.with_timing(relaunch_ns=0)
    nothing = SwitchTable.zero(problem.costs.n_clocks)
    drained = altered(problem, switches=nothing, protocol=protocol)
    free = altered(problem, switches=nothing, protocol=FREE)
    own, least = solve(optimizer, drained), found(solve(optimizer, free))
    a, b = value(problem, own.metrics), value(problem, least.metrics)
    unit = problem.objective.unit
    require(at_most(a, b, CLAIMED), f"{a:.12g} {unit} under drain at no cost, {b:.12g} {unit} under free")


@law("optimizer", lambda _: problems(protocols=(DRAIN, FOLLOW), slacks=(0.1, 1.0, 0.0)))
def changes_that_never_land_are_not_asked_for(optimizer: Optimizer, problem: Problem) -> None:
    """Where a change takes far longer than the trace, the answer is one lock, or a mix of two."""
    longest = SwitchTable.uniform(problem.costs.n_clocks, host_call_ns=0, switching_ns=10**12)
    solution = found(solve(optimizer, altered(problem, switches=longest)))
    for schedule in filter(None, (solution.schedule, solution.alternate)):
        n = len(schedule.normalized().requests)
        require(n <= 1, f"{n} requests where no change can land within the trace: {words(schedule)}")
