"""Any problem to its best schedule: which method applies, what is judged, what is promised.

Every candidate is judged by ``problem.evaluate``; the answer is never worse than the best baseline.
The lower bound comes from a relaxation that never looks at a candidate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from kdvfs_sim.core.errors import NotApplicableError
from kdvfs_sim.core.problem import Metrics, Objective, Problem, Solution, Status
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.optimize.additive import Bools, Cells, Floats, Ints, cells_of, fold, group_launches
from kdvfs_sim.optimize.baselines import locked, locks, static_lock, static_mix
from kdvfs_sim.optimize.changes import Model, model_of
from kdvfs_sim.optimize.frontier import explore
from kdvfs_sim.optimize.knapsack import Answer, solve_knapsack
from kdvfs_sim.optimize.paths import PathOracle
from kdvfs_sim.optimize.placement import place
from kdvfs_sim.optimize.target import Outcome, Target

CLOSED = 1e-9  # relative: the gap below which an answer is called optimal
N_JUDGED = 12  # outcomes placed and judged a round
N_REPAIRS = 6  # rounds of tightening the budget when the judge finds it broken


@dataclass(frozen=True, slots=True)
class ExactOptimizer:
    """The methods of this room as a ``core.protocols.Optimizer``."""

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        return solve(problem, seed=seed)


def solve(problem: Problem, *, seed: int) -> Solution:
    """The best schedule found, judged, with a lower bound. Deterministic; ``seed`` is only recorded.

    Infeasible and not applicable are statuses. Raises nothing but what ``problem.evaluate`` raises.
    """
    return _solve(problem, seed, may_mix=True)


def pass_plan(problem: Problem, *, seed: int) -> Solution:
    """The best plan with one setting for each pass: a baseline, so never replaced by another one but
    a single lock, which is such a plan too."""
    return _solve(replace(problem, granularity="pass"), seed, may_mix=False)


def _solve(problem: Problem, seed: int, *, may_mix: bool) -> Solution:
    candidates = locks(problem)
    best_static = static_lock(problem, candidates)
    if problem.granularity == "static":
        return replace(best_static, seed=seed)
    try:
        schedules, bound = _charged(problem) if problem.protocol.charged else _free(problem)
    except NotApplicableError as error:
        return Solution(status="not applicable", message=str(error), seed=seed)
    found = _judged(problem, schedules, len(candidates))
    answer = _better(problem.objective, found, best_static)
    if may_mix and problem.boundary == "periodic" and problem.aggregation == "global":
        answer = _better(problem.objective, answer, static_mix(problem, candidates))
    if answer.metrics is None or answer.schedule is None:
        proven = not np.isfinite(bound)
        message = "no schedule keeps the budget" if proven else "no schedule within the budget was found"
        return Solution(status="infeasible", message=message, n_evaluations=found.n_evaluations, seed=seed)
    return _stated(problem, answer, found, bound, seed)


def _stated(problem: Problem, answer: Solution, found: Solution, bound: float, seed: int) -> Solution:
    """The answer with its bound, its status, and in words where it came from."""
    value = _value(problem.objective, answer)
    notes = []
    if answer is not found:
        # a baseline, which may lie outside what the policy's bound speaks of
        bound = min(bound, value)
        kind = "static" if answer.alternate is None else "static-mix"
        notes.append(f"switching does not pay; {kind}: {answer.message}")
    status: Status = "optimal" if value <= bound * (1 + CLOSED) else "feasible"
    if not problem.chain.additive:
        status = "not exact"
        notes.append(problem.chain.reason)
    return replace(
        answer,
        status=status,
        message="; ".join(notes),
        lower_bound=bound,
        n_evaluations=found.n_evaluations,
        seed=seed,
    )


# -- free switching ------------------------------------------------------------------------------------


def _free(problem: Problem) -> tuple[Callable[[Target], list[Schedule]], float]:
    group = group_launches(problem.chain, problem.granularity)

    def answer(target: Target, *, minimum_gaps: bool) -> Answer:
        cells = cells_of(problem.chain, problem.costs, minimum_gaps=minimum_gaps)
        groups = fold(cells, group)
        if problem.aggregation == "local":
            groups = groups.only(_locally_allowed(problem, groups.time_ns))
        return solve_knapsack(groups, target)

    def schedules(target: Target) -> list[Schedule]:
        outcomes = answer(target, minimum_gaps=False).outcomes
        return [_assigned(problem, outcome.choice[group]) for outcome in outcomes[:N_JUDGED]]

    relaxed = answer(Target.of(problem.objective), minimum_gaps=not problem.chain.additive)
    return schedules, relaxed.bound


def _assigned(problem: Problem, rows: Ints) -> Schedule:
    return Schedule.from_assignment(
        [problem.costs.clocks[row] for row in rows],
        stream=problem.chain.stream,
        device=problem.chain.device,
        protocol=problem.protocol.name,
        boundary=problem.boundary,
    )


# -- switching that costs ------------------------------------------------------------------------------


def _charged(problem: Problem) -> tuple[Callable[[Target], list[Schedule]], float]:
    """Freedom per launch or segment: the dynamic programme. Per pass or kind: choices of the free
    problem under ever tighter budgets, bounded by the programme with freedom per launch."""
    group = group_launches(problem.chain, problem.granularity)
    start = problem.costs.auto if problem.start is None else problem.start
    every_launch = problem.granularity in ("launch", "segment")
    boundaries = np.diff(group, prepend=-1) != 0
    relaxed = _model(problem, minimum_gaps=not problem.chain.additive, may_change=boundaries)
    bound = explore(PathOracle(model=relaxed, start=start), Target.of(problem.objective)).bound(
        Target.of(problem.objective)
    )
    model = relaxed if problem.chain.additive else _model(problem, minimum_gaps=False, may_change=boundaries)
    oracle = PathOracle(model=model, start=start)
    folded = fold(_local(problem, cells_of(problem.chain, problem.costs)), group)

    def schedules(target: Target) -> list[Schedule]:
        if every_launch:
            outcomes = explore(oracle, target).outcomes
        else:
            outcomes = [
                outcome._replace(choice=outcome.choice[group], begin=(0, int(outcome.choice[group][0])))
                for outcome in solve_knapsack(folded, target).outcomes
            ]
        outcomes = sorted(
            (o for o in outcomes if o is not None), key=lambda o: target.value(o.time_ns, o.energy_j)
        )
        kept = [o for o in outcomes if target.allows(o)][:N_JUDGED]
        placed = (_placed(problem, model, outcome, start) for outcome in kept)
        return [schedule for schedule in placed if schedule is not None]

    return schedules, bound


def _model(problem: Problem, *, minimum_gaps: bool, may_change: Bools) -> Model:
    cells = _local(problem, cells_of(problem.chain, problem.costs, minimum_gaps=minimum_gaps))
    return model_of(
        cells, problem.protocol, problem.switching, problem.boundary, problem.costs.requestable, may_change
    )


def _local(problem: Problem, cells: Cells) -> Cells:
    """Under ``local`` aggregation: only the clocks at which a launch keeps the time rule by itself."""
    if problem.aggregation != "local":
        return cells
    times = np.rint(cells.duration_ns[:, None] * cells.ratio[cells.kind])
    return cells.only(_locally_allowed(problem, times))


def _locally_allowed(problem: Problem, time_ns: Ints | Floats) -> Bools:
    """Where a group's own time is within the slack that the whole is given over AUTO."""
    auto = problem.costs.auto
    judged = problem.evaluate(locked(problem, problem.costs.clocks[auto]))
    limit_s = problem.objective.max_time_s
    factor = np.inf if limit_s is None else limit_s / judged.time_s
    allowed: Bools = time_ns <= time_ns[:, [auto]] * factor
    return allowed


def _placed(problem: Problem, model: Model, outcome: Outcome, start: int) -> Schedule | None:
    begin = outcome.begin if model.rules.periodic and outcome.begin is not None else (0, start)
    placed = place(model, outcome.choice, begin)
    if placed is None:
        return None
    return placed.schedule(
        problem.costs.clocks,
        protocol=problem.protocol.name,
        boundary=problem.boundary,
        stream=problem.chain.stream,
        device=problem.chain.device,
    )


# -- judging -------------------------------------------------------------------------------------------


def _judged(problem: Problem, schedules: Callable[[Target], list[Schedule]], n_before: int) -> Solution:
    """The best schedule that the judge finds within the budget.

    Where prediction and judge disagree, the budget is tightened by as much as the best candidate broke
    it, and the method asked again.
    """
    objective = problem.objective
    target = Target.of(objective)
    best = Solution(status="infeasible", n_evaluations=n_before)
    n = n_before
    for _ in range(N_REPAIRS):
        broken = None
        for schedule in schedules(target):
            metrics = problem.evaluate(schedule)
            n += 1
            if metrics.energy_j is None:
                continue
            if objective.allows(metrics.time_s, metrics.energy_j):
                best = _better(
                    objective, best, Solution(status="feasible", schedule=schedule, metrics=metrics)
                )
            elif broken is None:
                broken = metrics
        if broken is None or broken.energy_j is None:
            break
        over_ns = max(0.0, broken.time_s * 1e9 - Target.of(objective).max_time_ns)
        over_j = max(0.0, broken.energy_j - Target.of(objective).max_energy_j)
        target = replace(
            target,
            max_time_ns=target.max_time_ns - 1.05 * over_ns,
            max_energy_j=target.max_energy_j - 1.05 * over_j,
        )
    return replace(best, n_evaluations=n)


def _better(objective: Objective, a: Solution, b: Solution) -> Solution:
    """``a`` unless ``b`` is better; among equals ``a``."""
    if b.metrics is None or b.schedule is None:
        return a
    if a.metrics is None or a.schedule is None:
        return b
    return b if _value(objective, b) < _value(objective, a) else a


def _value(objective: Objective, solution: Solution) -> float:
    metrics: Metrics | None = solution.metrics
    assert metrics is not None
    assert metrics.energy_j is not None
    return objective.value(metrics.time_s, metrics.energy_j)
