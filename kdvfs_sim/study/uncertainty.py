"""Switching times are not constant: what a plan keeps then, and plans that keep their budget all the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from kdvfs_sim.core.errors import NotApplicableError
from kdvfs_sim.core.problem import Metrics, Objective, Solution
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.core.switching import SwitchDraws, SwitchProtocol, SwitchTable
from kdvfs_sim.gpu.switching import LATENCY_SPREAD
from kdvfs_sim.optimize.baselines import judged_again, static_lock, static_mix
from kdvfs_sim.optimize.solve import solve
from kdvfs_sim.replay.fast import FastEvaluator
from kdvfs_sim.study.scene import Judge, Scene

N_REPLAYS: Final = 2000
GAP: Final = 1e-4  # of a plan: what it adds to a static mix may be less than 1e-3
N_STEPS: Final = 8  # plans tried
CLOSE: Final = 2e-4  # of the budget: a sure plan that leaves less than this unused is good enough
SURER: Final = 0.25  # of what a probability leaves open, kept in hand for replays not seen while planning


@dataclass(frozen=True, slots=True, kw_only=True)
class Luck:
    """How switching times scatter: the table's value times exp(``sigma`` * standard normal), a lognormal
    with that median, and a landing error between 0 and ``landing_error_ns``, uniform (a governor that looks
    every so often). Every request of every replay has its own."""

    sigma: float = LATENCY_SPREAD.value
    landing_error_ns: int = 0

    def draws(self, n_requests: int, rng: np.random.Generator) -> SwitchDraws:
        """The luck of so many requests."""
        return SwitchDraws(
            factor=np.exp(self.sigma * rng.standard_normal(n_requests)),
            late_ns=rng.integers(0, self.landing_error_ns, n_requests, endpoint=True),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scatter:
    """What replays of one schedule gave, each with its own luck: (n_replays,)."""

    time_s: npt.NDArray[np.float64]
    energy_j: npt.NDArray[np.float64]

    def kept(self, objective: Objective) -> float:
        """Share of the replays within the budget."""
        within = [objective.allows(t, e) for t, e in zip(self.time_s, self.energy_j, strict=True)]
        return float(np.mean(within))

    def in_words(self, objective: Objective, auto: Metrics) -> str:
        """How often the budget is kept, and the mean against AUTO."""
        assert auto.energy_j is not None
        return (
            f"keeps the budget in {self.kept(objective):.1%} of {len(self.time_s)} replays, on average "
            f"{100 * (self.time_s.mean() / auto.time_s - 1):+.2f} % time and "
            f"{100 * (self.energy_j.mean() / auto.energy_j - 1):+.2f} % energy"
        )

    def mean(self, objective: Objective) -> float:
        """Mean of the number to minimize."""
        return float(
            np.mean([objective.value(t, e) for t, e in zip(self.time_s, self.energy_j, strict=True)])
        )


def scattered(
    scene: Scene,
    solution: Solution,
    protocol: str | SwitchProtocol,
    *,
    luck: Luck,
    n_replays: int = N_REPLAYS,
    seed: int = 0,
) -> Scatter:
    """Replay an answer ``n_replays`` times at the nominal costs, each time with fresh luck.

    Under a periodic boundary each replay is the iteration that this luck would settle into; of a mix it is
    the mean of the two iterations. Same seed, same answer.
    """
    assert solution.schedule is not None
    protocol = scene.protocol(protocol)
    rng = np.random.default_rng(seed)
    scatter = _replayed(scene, solution.schedule, protocol, luck, n_replays, rng)
    if solution.alternate is None:
        return scatter
    other = _replayed(scene, solution.alternate, protocol, luck, n_replays, rng)
    share = solution.share
    return Scatter(
        time_s=share * scatter.time_s + (1 - share) * other.time_s,
        energy_j=share * scatter.energy_j + (1 - share) * other.energy_j,
    )


def _replayed(
    scene: Scene, schedule: Schedule, protocol: SwitchProtocol, luck: Luck, n: int, rng: np.random.Generator
) -> Scatter:
    n_requests = len(schedule)
    try:
        fast = FastEvaluator(
            scene.program,
            costs=scene.costs["nominal"],
            switching=scene.switching["nominal"],
            protocol=protocol,
            boundary=scene.boundary,
            start=scene.start,
        )
    except NotApplicableError:
        metrics = [
            scene.replay(schedule, protocol, draws=luck.draws(n_requests, rng)).metrics for _ in range(n)
        ]
        energies = [math.nan if m.energy_j is None else m.energy_j for m in metrics]
        return Scatter(time_s=np.array([m.time_s for m in metrics]), energy_j=np.array(energies))
    batch = replace(fast.arrays([schedule] * n), draws=luck.draws(n_requests * n, rng))
    results = fast.evaluate_many(batch)
    return Scatter(time_s=results.time_ns / 1e9, energy_j=results.energy_j)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SurePlan:
    """``solution``: planned for a tighter time budget, metrics at the median latencies (an upper bound on
    what it saves). ``scatter``: fresh replays, not those it was chosen by."""

    solution: Solution
    scatter: Scatter
    kept: float


def sure_plan(
    scene: Scene,
    protocol: str | SwitchProtocol,
    objective: Objective,
    *,
    probability: float = 0.95,
    luck: Luck | None = None,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> SurePlan | None:
    """The best plan found that keeps a time budget with ``probability``; None if no lock keeps it.

    Plans as if each change also stalled the GPU for what misplaced landings cost on average, and for a budget
    that is tighter by what the wanted quantile (and a little more) lies above the mean: both as seen in
    replays of the plan before. The sure plan whose replays are best on average is replayed afresh. Where none
    saves more, the answer is static or static-mix, which keep their budget for certain. Raises
    NotApplicableError for an objective without a time budget.
    """
    luck = luck or Luck()
    most_s = objective.max_time_s
    if most_s is None:
        raise NotApplicableError("a plan for a probability needs a time budget")
    judge = scene.judge(protocol)
    locks = scene.problem(objective, protocol, granularity="static", evaluate=judge)
    lock = static_lock(locks)
    if lock.metrics is None:
        return None
    replayed = partial(scattered, scene, protocol=protocol, luck=luck)
    best = min((s for s in (lock, static_mix(locks)) if s.metrics is not None), key=_energy_j)
    least = replayed(best, seed=seed + 1).mean(objective)
    wanted = probability + SURER * (1 - probability)
    budget_s, penalty_s = most_s, 0.0
    for step in range(N_STEPS):
        progress(f"plan {step + 1} of at most {N_STEPS}")
        problem = scene.problem(
            replace(objective, max_time_s=max(0.0, budget_s)),
            protocol,
            switching=_stalling(scene.switching["nominal"], penalty_s),
        )
        plan = _at_median(solve(problem, seed=seed, gap=GAP), judge)
        if plan.metrics is None or not plan.metrics.n_switches:
            break
        tried = replayed(plan, seed=seed + 1)
        mean_s, quantile_s = float(tried.time_s.mean()), float(np.quantile(tried.time_s, wanted))
        if quantile_s <= most_s:
            if tried.mean(objective) < least:  # at the median a plan may look better than it is
                best, least = plan, tried.mean(objective)
            if most_s - quantile_s < CLOSE * most_s:
                break
            budget_s = min(most_s, budget_s + most_s - quantile_s)
        else:
            penalty_s += max(0.0, mean_s - plan.metrics.time_s) / plan.metrics.n_switches
            budget_s -= quantile_s - (mean_s if step == 0 else most_s)
    fresh = replayed(best, seed=seed + 2)
    return SurePlan(solution=best, scatter=fresh, kept=fresh.kept(objective))


def _stalling(table: SwitchTable, penalty_s: float) -> SwitchTable:
    """The same changes, each with so much of its time spent without progress."""
    penalty_ns = np.where(table.switching_ns > 0, round(penalty_s * 1e9), 0)
    return replace(table, stall_ns=np.minimum(table.switching_ns, table.stall_ns + penalty_ns))


def _at_median(plan: Solution, judge: Judge) -> Solution:
    """A plan with the metrics of the real switching at its median instead of those it was planned with."""
    if plan.schedule is None:
        return plan
    return replace(plan, metrics=judged_again(plan, judge), lower_bound=None)


def _energy_j(solution: Solution) -> float:
    assert solution.metrics is not None
    return math.inf if solution.metrics.energy_j is None else solution.metrics.energy_j
