"""Schedules made of the stretches of two others."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from kdvfs_sim.core.switching import LOOKAHEAD, Boundary, SwitchProtocol
from kdvfs_sim.optimize import solve as room
from kdvfs_sim.optimize.exchange import exchanges
from kdvfs_sim.optimize.paths import ClosedPaths, OpenPaths
from kdvfs_sim.optimize.target import Outcome, Target
from tests.bench.test_optimize_speed import papers_problem
from tests.optimize.problems import BOUNDARIES, CHARGED, judged_as_placed, random_problem


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("protocol", CHARGED, ids=lambda protocol: protocol.name)
def test_an_exchange_is_the_best_of_its_stretches(protocol: SwitchProtocol, boundary: Boundary) -> None:
    """Judged as predicted, within the budget, and no worse than any mixture of two outcomes that begins
    like one and goes on like the other at launches where both come by with the same clocks."""
    n_found = 0
    for seed in range(150):
        problem = random_problem(seed, protocol=protocol, boundary=boundary, max_launches=10)
        target = Target.of(problem.objective)
        chase = room.Charged(problem, lambda cells, _: cells, 1e-9)._chase
        assert isinstance(chase.paths, OpenPaths | ClosedPaths)
        outcomes = chase.frontier.outcomes
        if len(outcomes) < 2:
            continue
        weights = chase.frontier.tightest(target)[0]
        found = exchanges(chase.paths.model, outcomes, target, weights, gap=1e-9, enough=0.0)
        for outcome in found:
            n_found += 1
            judged = judged_as_placed(problem, chase.paths, outcome)
            assert judged.energy_j == pytest.approx(outcome.energy_j, rel=1e-12)
            assert round(judged.time_s * 1e9) == outcome.time_ns <= target.max_time_ns
        best = min((o.energy_j for o in (*outcomes, *found) if target.allows(o)), default=np.inf)
        for a, b in itertools.permutations(outcomes, 2):
            if boundary == "one-shot" and protocol.drains:
                assert best <= _least_joined(chase.paths, a, b, target) * (1 + 1e-9)
    assert n_found > 0


def _least_joined(paths: OpenPaths, a: Outcome, b: Outcome, target: Target) -> float:
    """Drained: all ways to take launches from either, changed only where both run at the same clocks."""
    same = np.flatnonzero(np.append(a.choice == b.choice, True)[:-1])
    joints = np.concatenate([[0], same + 1, [len(a.choice)]])
    stretches = [slice(i, j) for i, j in itertools.pairwise(np.unique(joints))]
    least = np.inf
    for takes in itertools.product([False, True], repeat=len(stretches)):
        choice = a.choice.copy()
        for stretch, take in zip(stretches, takes, strict=True):
            if take:
                choice[stretch] = b.choice[stretch]
        placed = paths.place(a._replace(choice=choice))
        if placed is not None and placed.time_ns <= target.max_time_ns:
            least = min(least, placed.energy_j)
    return least


@pytest.mark.parametrize("latency_ns", [1_000_000, 6_000_000])
def test_equal_layers_use_up_a_budget_that_no_multiplier_meets(latency_ns: int) -> None:
    answer = room.solve(papers_problem(LOOKAHEAD.name, latency_ns), seed=0, gap=2e-4)
    assert answer.metrics is not None
    assert answer.metrics.energy_j is not None
    assert answer.lower_bound is not None
    assert answer.metrics.energy_j <= answer.lower_bound * (1 + 2e-4)
