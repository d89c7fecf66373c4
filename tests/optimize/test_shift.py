"""Changes moved along a path."""

from __future__ import annotations

import numpy as np
import pytest

from kdvfs_sim.core.switching import Boundary, SwitchProtocol
from kdvfs_sim.optimize import solve as room
from kdvfs_sim.optimize.paths import ClosedPaths, OpenPaths
from kdvfs_sim.optimize.placement import Placed
from kdvfs_sim.optimize.shift import shift
from kdvfs_sim.optimize.target import Outcome, Target
from tests.optimize.problems import BOUNDARIES, CHARGED, judged_as_placed, random_problem


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("protocol", CHARGED, ids=lambda protocol: protocol.name)
def test_shifted_paths_are_what_they_say_and_no_worse(protocol: SwitchProtocol, boundary: Boundary) -> None:
    """From within a budget it stays within and saves; from beyond it comes back, sometimes."""
    n_saved = n_back = 0
    for seed in range(150):
        problem = random_problem(seed, protocol=protocol, boundary=boundary, max_launches=10)
        target = Target.of(problem.objective)
        chase = room.Charged(problem, lambda cells, _: cells, 1e-9)._chase
        assert isinstance(chase.paths, OpenPaths | ClosedPaths)
        if not target.binds or not chase.frontier.tightest(target):
            continue
        weights = chase.frontier.tightest(target)[0]
        for outcome in chase.frontier.sides(target):
            if outcome is None:
                continue
            shifted = shift(chase.paths.place, outcome, target, weights, 0.0)
            judged = judged_as_placed(problem, chase.paths, shifted)
            assert judged.energy_j == pytest.approx(shifted.energy_j, rel=1e-12)
            assert round(judged.time_s * 1e9) == shifted.time_ns
            if target.allows(outcome):
                assert target.allows(shifted)
                assert target.value(*shifted[:2]) <= target.value(*outcome[:2])
                n_saved += target.value(*shifted[:2]) < target.value(*outcome[:2])
            else:
                n_back += target.allows(shifted)
    assert n_back > 0
    assert n_saved > 0


def test_a_change_is_moved_as_far_as_a_budget_lets_it() -> None:
    """Launches of 1 ns at the fast clocks cost 2 J, of 2 ns at the slow ones 1 J."""

    def place(outcome: Outcome) -> Placed:
        n_slow, n = int(outcome.choice.sum()), len(outcome.choice)
        return Placed(
            requests=np.zeros((0, 3), dtype=np.int64), time_ns=n + n_slow, energy_j=2.0 * n - n_slow
        )

    outcome = Outcome(600, 600.0, np.repeat([0, 1], 200), (0, 0))
    for budget_ns in range(480, 720):
        target = Target(minimize="energy", max_time_ns=float(budget_ns))
        assert shift(place, outcome, target, (1.0, 1.0), 0.0).time_ns == budget_ns
