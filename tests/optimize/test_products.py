"""EDP and ED2P within a budget: least inside it, or near its edge."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kdvfs_sim.core.problem import Minimize, Objective, Problem
from kdvfs_sim.core.switching import Boundary, SwitchProtocol
from kdvfs_sim.optimize.solve import CLOSED, solve
from kdvfs_sim.testing.judge import best_by_trying_all
from tests.optimize.problems import BOUNDARIES, CHARGED, random_problem, static


def within(problem: Problem, minimize: Minimize, random: np.random.Generator) -> Problem:
    """Under a budget that may bind: of time, or of energy."""
    auto = problem.evaluate(static(problem, problem.costs.auto))
    assert auto.energy_j is not None
    if random.random() < 0.5:
        objective = Objective(minimize=minimize, max_time_s=auto.time_s * float(random.uniform(0.95, 1.3)))
    else:
        objective = Objective(
            minimize=minimize, max_energy_j=auto.energy_j * float(random.uniform(0.6, 1.05))
        )
    return replace(problem, objective=objective)


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("protocol", CHARGED, ids=lambda protocol: protocol.name)
def test_a_product_within_a_budget_is_the_least(protocol: SwitchProtocol, boundary: Boundary) -> None:
    n_met = 0
    for seed in range(150):
        random = np.random.default_rng(seed)
        minimize: Minimize = "edp" if seed % 2 else "ed2p"
        made = within(
            random_problem(seed, protocol=protocol, boundary=boundary, max_launches=4), minimize, random
        )
        best, _ = best_by_trying_all(made)
        answer = solve(made, seed=0)
        if answer.metrics is None or not np.isfinite(best):
            continue
        value = made.objective.value_of(answer.metrics)
        assert value <= best * 1.001 + 1e-300, seed
        assert answer.lower_bound is None or answer.lower_bound <= best * (1 + CLOSED), seed
        n_met += value < best * (1 + CLOSED)
    assert n_met > 30
