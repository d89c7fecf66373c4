"""Any problem to its best schedule: which method applies, what is judged, what is promised.

Every candidate is judged by ``problem.evaluate``; the answer is never worse than the best baseline.
The lower bound comes from a relaxation that never looks at a candidate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np

from kdvfs_sim.core.errors import InputError, InvariantError, NotApplicableError
from kdvfs_sim.core.problem import Objective, Problem, Solution, Status
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.optimize.additive import Bools, Ints, group_launches
from kdvfs_sim.optimize.allowed import free_choices, restricted
from kdvfs_sim.optimize.assignment import as_rows
from kdvfs_sim.optimize.baselines import Judged, best_mix, best_of, judge, locks, static_lock
from kdvfs_sim.optimize.charged import Charged
from kdvfs_sim.optimize.critical import CriticalPaths, explore_paths
from kdvfs_sim.optimize.free import Free
from kdvfs_sim.optimize.frontier import Frontier
from kdvfs_sim.optimize.replayed import improve, may_descend, rows_by_group
from kdvfs_sim.optimize.target import Outcome, Target

GAP = 1e-4  # relative: how far from its bound an answer may stay
CLOSED = 1e-9  # relative: the gap below which an answer is called optimal
N_JUDGED = 12  # outcomes placed and judged a round
LONG = 100_000  # launches from which on fewer are judged
N_BEYOND = 3  # of them beyond the budget, to be mixed over iterations
N_REPAIRS = 6  # rounds of tightening the budget when the judge finds it broken


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactOptimizer:
    """The methods of this room as a ``core.protocols.Optimizer``."""

    gap: float = GAP

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        return solve(problem, seed=seed, gap=self.gap)


def solve(
    problem: Problem, *, seed: int, gap: float = GAP, mixes: bool = True, also: Sequence[Schedule] = ()
) -> Solution:
    """The best schedule found, judged, with a lower bound. Deterministic; ``seed`` is only recorded.

    ``gap`` (relative) is what the search aims at; the answer tells what it came to. ``mixes``: under the
    periodic boundary the answer may be two schedules in turn over iterations. ``also``: plans for the same
    launches, made for another protocol or with less freedom; they are judged too, with requests placed as
    this protocol asks. Infeasible and not applicable are statuses. Raises nothing but what
    ``problem.evaluate`` raises, ScheduleError for a plan in ``also`` that drives other launches, and
    InvariantError for an answer below its bound: our bug.
    """
    may_mix = mixes and problem.boundary == "periodic" and problem.aggregation == "global"
    return _solve(problem, seed, gap, may_mix=may_mix, also=also)


def pass_plan(problem: Problem, *, seed: int, gap: float = GAP) -> Solution:
    """The best plan with one setting for each pass: a baseline, so never replaced by another one but
    a single lock, which is such a plan too."""
    return _solve(replace(problem, granularity="pass"), seed, gap, may_mix=False)


class Method(Protocol):
    """What knows a problem's bounds, in the objective's unit, and candidates on both sides of a budget.

    ``bound`` holds for every schedule, ``mixed_bound`` for mixes of them over iterations, too: wherever the
    sum over the chain bounds anything.
    """

    bound: float
    mixed_bound: float

    def outcomes(self, target: Target) -> list[Outcome]: ...

    def schedule(self, outcome: Outcome) -> Schedule | None: ...

    def placed(self, rows: Ints) -> Schedule | None:
        """One row of the cost table for every launch as a schedule; None if that cannot be had."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bounds:
    """What no schedule lies below, and no mix of schedules over iterations; in the objective's unit."""

    single: float
    mixed: float

    @classmethod
    def of(cls, problem: Problem, method: Method) -> _Bounds:
        if _adds_up(problem):
            return cls(single=method.bound, mixed=method.mixed_bound)
        nothing = cls(single=-np.inf, mixed=-np.inf)
        return (
            nothing.raised_by(method.waiting(), problem.objective) if isinstance(method, Charged) else nothing
        )

    def raised_by(self, paths: Frontier, objective: Objective) -> _Bounds:
        if not paths.outcomes:
            return self
        return _Bounds(
            single=max(self.single, paths.bound(Target.of(objective))),
            mixed=max(self.mixed, paths.bound(Target.of_mean(objective))),
        )

    def speaking_of(self, answer: Solution) -> float:
        return self.single if answer.alternate is None else self.mixed


def _solve(
    problem: Problem, seed: int, gap: float, *, may_mix: bool, also: Sequence[Schedule] = ()
) -> Solution:
    objective = problem.objective
    singles = locks(problem)
    best_static = best_of(objective, singles)
    if problem.granularity == "static":
        return replace(static_lock(problem, singles), seed=seed)
    try:
        method = _method(problem, gap)
    except NotApplicableError as error:
        return Solution(status="not applicable", message=str(error), seed=seed)
    bounds = _Bounds.of(problem, method)
    found = _judged(problem, method)
    n_evaluations = len(singles) + len(found)
    answer = _better(objective, best_of(objective, found), best_static)

    explores = _may_hide(problem, bounds) and _open(objective, answer, bounds.single, gap)
    if also or explores:
        group = group_launches(problem.chain, problem.granularity)
        allowed = free_choices(problem, group)
        plans = [as_rows(problem, schedule) for schedule in also]
        if explores:
            target = Target.of(objective)
            paths = explore_paths(CriticalPaths(problem, group, allowed), target, gap=gap)
            bounds = bounds.raised_by(paths, objective)
            plans += [outcome.choice[group] for outcome in _nearest(paths.outcomes, target)]
        planned = _judged_plans(problem, method, plans, group, allowed)
        n_evaluations += len(planned)
        answer = _better(objective, answer, best_of(objective, planned))
        improved: list[Judged] = []
        if explores and may_descend(problem) and _open(objective, answer, bounds.single, gap):
            improved, n_replayed = improve(problem, group, allowed, [*found, *singles, *planned])
            n_evaluations += n_replayed
            answer = _better(objective, answer, best_of(objective, improved))
        found += planned + improved

    if may_mix:
        answer = _better(objective, answer, best_mix(objective, singles))
        if _open(objective, answer, bounds.speaking_of(answer), gap):
            answer = _better(objective, answer, best_mix(objective, singles + found))
    answer = replace(answer, n_evaluations=n_evaluations, seed=seed)
    bound = bounds.speaking_of(answer)
    if problem.aggregation == "local" and best_static.metrics is not None:
        # A lock need not keep the time rule launch by launch. What is stated then holds for locks as well:
        # all of them were tried.
        bound = min(bound, objective.value_of(best_static.metrics))
    return _stated(problem, answer, bound)


def _method(problem: Problem, gap: float) -> Method:
    if not problem.protocol.charged:
        return Free(problem, gap)
    return Charged(problem, partial(restricted, problem), gap)


def _adds_up(problem: Problem) -> bool:
    """Does the sum over the chain, with gaps at their least, bound anything?

    Not where something runs beside it. Nor where a change lands after a time of its own: in a longer gap it
    may have landed before the next launch begins, which after the least gap runs on at dear clocks; a call
    that holds up the thread that launches makes such gaps in any chain that has a host. Nor where
    it is not known what the device draws when idle, but a change may have landed before it is.
    """
    chain, protocol, costs = problem.chain, problem.protocol, problem.costs
    if protocol.charged:
        met = costs.requestable.copy()
        met[costs.auto if problem.start is None else problem.start] |= problem.boundary == "one-shot"
        if np.isnan(costs.idle_power_w[met]).any():
            return False
    calls = protocol.issuer == "launch_thread" and problem.switching.host_call_ns.any()
    if protocol.charged and not protocol.drains and calls and chain.precedence is not None:
        return False
    if chain.additive:
        return True
    if chain.floor_ns is None:
        return False
    if not protocol.charged or protocol.drains:
        return True
    return chain.floors_exact and not problem.switching.stall_ns.any()


def _may_hide(problem: Problem, bounds: _Bounds) -> bool:
    """May gaps hide a part of launches, so that sums over the chain neither bound nor find all there is?"""
    return problem.chain.precedence is not None and not (problem.chain.additive and bounds.single > -np.inf)


def _stated(problem: Problem, answer: Solution, bound: float) -> Solution:
    """The answer with its bound, its status, and in words where it came from.

    Raises InvariantError for an answer below a bound that speaks of it, InputError if its energy is below 0.
    """
    if answer.metrics is None or answer.schedule is None:
        proven = bound == np.inf
        message = "no schedule keeps the budget" if proven else "no schedule within the budget was found"
        return replace(answer, status="infeasible", message=message)
    value = problem.objective.value_of(answer.metrics)
    if value < bound * (1 - CLOSED):
        if answer.metrics.energy_j is not None and answer.metrics.energy_j < 0:
            raise InputError(
                f"optimize: the answer takes {answer.metrics.energy_j:.4g} J: kernels that run at once draw "
                "less than nothing in the cost table; power_w at least as idle_power_w at its clocks is right"
            )
        raise InvariantError(
            f"optimize: {problem.protocol.name}, {problem.boundary}, {problem.granularity}: the answer "
            f"{value!r} ({answer.message}) lies below its own lower bound {bound!r}"
        )
    bound = float(min(bound, value))  # rounding; a Python number, as every number of an answer
    status: Status = "optimal" if value <= bound * (1 + CLOSED) else "feasible"
    schedules = [answer.schedule] if answer.alternate is None else [answer.schedule, answer.alternate]
    notes = [answer.message] if len(schedules) > 1 else []
    if all(schedule.is_static for schedule in schedules):
        kind = "static" if answer.alternate is None else "static-mix"
        closed = value <= bound * (1 + GAP)
        pays = "switching does not pay" if closed else "no switching was found that pays"
        notes = [f"{pays}; {kind}: {answer.message}"]
    if not problem.chain.additive:
        status = "not exact"
        notes.append(problem.chain.reason)
    return replace(
        answer,
        status=status,
        message="; ".join(notes),
        lower_bound=bound if np.isfinite(bound) else None,
    )


def _judged(problem: Problem, method: Method) -> list[Judged]:
    """What the judge says of the candidates, within the budget or not.

    Where prediction and judge disagree, the budget is tightened by as much as the best candidate
    broke it, and the method asked again.
    """
    first = target = Target.of(problem.objective)
    first_j = first.max_energy_j if problem.objective.max_energy_j is None else problem.objective.max_energy_j
    found: list[Judged] = []
    for _ in range(N_REPAIRS):
        broken: Judged | None = None
        outcomes = sorted(method.outcomes(target), key=lambda o: target.value(*o[:2]))
        n_judged = max(2, min(N_JUDGED, N_JUDGED * LONG // len(problem.chain)))
        within = [o for o in outcomes if target.allows(o)][:n_judged]
        beyond = [o for o in outcomes if not target.allows(o)]
        beyond.sort(key=lambda o: (o.time_ns, o.energy_j))
        for outcome in (*within, *beyond[: N_BEYOND if problem.boundary == "periodic" else 0]):
            schedule = method.schedule(outcome)
            judged = None if schedule is None else judge(problem, schedule)
            if judged is None:
                continue
            found.append(judged)
            kept = problem.objective.allows(judged.time_s, judged.energy_j)
            if broken is None and target.allows(outcome) and not kept:
                broken = judged
        if broken is None:
            break
        over_ns = max(0.0, broken.time_s * 1e9 - first.max_time_ns)
        over_j = max(0.0, broken.energy_j - first_j)
        target = replace(
            target,
            max_time_ns=target.max_time_ns - 1.05 * over_ns,
            max_energy_j=min(target.max_energy_j, first_j) - 1.05 * over_j,
        )
    return found


def _nearest(outcomes: list[Outcome], target: Target) -> list[Outcome]:
    """The best of some outcomes within the budget, and those next to it beyond."""
    within = sorted((o for o in outcomes if target.allows(o)), key=lambda o: target.value(*o[:2]))
    beyond = sorted((o for o in outcomes if not target.allows(o)), key=lambda o: (o.time_ns, o.energy_j))
    return [*within[:N_JUDGED], *beyond[:N_BEYOND]]


def _judged_plans(
    problem: Problem, method: Method, plans: Sequence[Ints], group: Ints, allowed: Bools
) -> list[Judged]:
    """What the judge says of plans, a row of the cost table for every launch, that the policy allows and
    the protocol can place."""
    found = []
    for rows in plans:
        by_group = rows_by_group(rows, group, len(allowed))
        if by_group is None or not allowed[np.arange(len(by_group)), by_group].all():
            continue
        schedule = method.placed(rows)
        judged = None if schedule is None else judge(problem, schedule)
        if judged is not None:
            found.append(judged)
    return found


def _better(objective: Objective, a: Solution, b: Solution) -> Solution:
    """``a`` unless ``b`` is better; among equals ``a``."""
    return b if objective.value_of(b.metrics) < objective.value_of(a.metrics) else a


def _open(objective: Objective, answer: Solution, bound: float, gap: float) -> bool:
    """Is the answer farther from its bound than asked for?"""
    return answer.metrics is None or objective.value_of(answer.metrics) > bound * (1 + gap)
