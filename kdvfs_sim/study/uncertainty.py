"""Switching times are not constant: what a plan keeps then, and plans that keep their budget all the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from kdvfs_sim.core.errors import NotApplicableError
from kdvfs_sim.core.problem import Objective, Solution
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.core.switching import SwitchDraws, SwitchProtocol
from kdvfs_sim.gpu.switching import LATENCY_SPREAD
from kdvfs_sim.optimize.baselines import static_lock, static_mix
from kdvfs_sim.optimize.solve import solve
from kdvfs_sim.replay.fast import FastEvaluator
from kdvfs_sim.study.scene import Scene

N_REPLAYS: Final = 2000
N_STEPS: Final = 8  # plans tried
CLOSE: Final = 2e-4  # of the budget: no plan is looked for this near to one that is not sure
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


def scattered(
    scene: Scene,
    solution: Solution,
    protocol: SwitchProtocol,
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
    return Scatter(time_s=results.time_ns.astype(np.float64) * 1e-9, energy_j=results.energy_j)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SurePlan:
    """``solution``: planned for a tighter time budget, metrics at the median latencies (an upper bound on
    what it saves). ``scatter``: fresh replays, not those it was chosen by."""

    solution: Solution
    scatter: Scatter
    kept: float


def sure_plan(
    scene: Scene,
    protocol: SwitchProtocol,
    objective: Objective,
    *,
    probability: float = 0.95,
    luck: Luck | None = None,
    n_replays: int = N_REPLAYS,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> SurePlan | None:
    """The best plan found that keeps a time budget with ``probability``; None if no lock keeps it.

    Plans for a time budget that is tighter by as much as the plan before overran the real one, at the
    quantile wanted and a little more; once a plan is sure, halfway back. The best is replayed afresh. Where
    no such plan saves more, the answer is static or static-mix, which keep theirs for certain. Raises
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
    best = min((s for s in (lock, static_mix(locks)) if s.metrics is not None), key=_energy_j)
    wanted = probability + SURER * (1 - probability)
    budget_s, broken_s = most_s, math.inf  # the smallest budget whose plan was not sure
    for step in range(N_STEPS):
        progress(f"plan {step + 1} of at most {N_STEPS}")
        plan = solve(
            scene.problem(replace(objective, max_time_s=budget_s), protocol, evaluate=judge), seed=seed
        )
        if plan.schedule is None:
            break
        tried = scattered(scene, plan, protocol, luck=luck, n_replays=n_replays, seed=seed + 1)
        over_s = float(np.quantile(tried.time_s, wanted)) - most_s
        if over_s > 0:
            broken_s = budget_s
            budget_s -= over_s
        else:
            best = min(best, plan, key=_energy_j)
            if broken_s - budget_s < CLOSE * most_s or broken_s == math.inf:
                break
            budget_s = (budget_s + broken_s) / 2
    fresh = scattered(scene, best, protocol, luck=luck, n_replays=n_replays, seed=seed + 2)
    return SurePlan(solution=best, scatter=fresh, kept=fresh.kept(objective))


def _energy_j(solution: Solution) -> float:
    assert solution.metrics is not None
    return math.inf if solution.metrics.energy_j is None else solution.metrics.energy_j
