"""Exploring the frontier with oracles that are exact, or nearly so."""

from __future__ import annotations

import numpy as np
import pytest

from kdvfs_sim.core.switching import SwitchProtocol
from kdvfs_sim.optimize.frontier import Frontier, explore
from kdvfs_sim.optimize.paths import ClosedPaths
from kdvfs_sim.optimize.target import Outcome, Target
from tests.optimize.problems import CHARGED
from tests.optimize.test_sweep import random_model

NOTHING = np.zeros(0, dtype=np.int64)


class Points:
    """Minimizes over some points; off by up to ``gap``, in what it says and in the point it gives."""

    def __init__(
        self, time_ns: np.ndarray, energy_j: np.ndarray, gap: float, rng: np.random.Generator
    ) -> None:
        self._time_ns, self._energy_j, self._gap, self._rng = time_ns, energy_j, gap, rng
        self.asked: list[tuple[float, float]] = []

    def __call__(self, energy_weight: float, time_weight: float, /) -> tuple[float, Outcome | None]:
        self.asked.append((energy_weight, time_weight))
        cost = energy_weight * self._energy_j + time_weight * self._time_ns
        near = np.flatnonzero(cost <= cost.min() * (1 + self._gap / 2))
        k = self._rng.choice(near)
        outcome = Outcome(int(self._time_ns[k]), float(self._energy_j[k]), NOTHING)
        return float(cost.min()) * (1 - self._gap / 2 * self._rng.uniform()), outcome


@pytest.mark.parametrize("gap", [0.0, 1e-3, 1e-2])
def test_no_weights_are_asked_for_twice_and_the_bound_is_one(gap: float) -> None:
    """An oracle that is nearly exact gives points that are no corners of the hull."""
    for seed in range(200):
        rng = np.random.default_rng(seed)
        time_ns = rng.integers(900, 1100, 300) * 1000
        energy_j = 1e8 / time_ns**0.8 * (1 + 0.02 * rng.uniform(size=300))
        target = Target(minimize="energy", max_time_ns=float(rng.integers(950, 1050) * 1000))
        oracle = Points(time_ns, energy_j, gap, rng)
        seeds = ((1.0, float(energy_j.mean() / time_ns.mean() * rng.uniform(0.3, 3))),) * int(rng.integers(2))
        found = explore(oracle, target, near=1e-4, seeds=seeds)
        assert len(oracle.asked) == len(set(oracle.asked)) < 60
        best = energy_j[time_ns <= target.max_time_ns].min()
        assert found.bound(target) <= best
        mixed = mix_at(time_ns, energy_j, target.max_time_ns)
        assert found.bound(target) >= mixed * (1 - 2e-4 - 1.3 * gap)  # as near as the oracle lets it


def mix_at(time_ns: np.ndarray, energy_j: np.ndarray, limit_ns: float) -> float:
    """The cheapest mix of two points at a time, all tried."""
    within, beyond = time_ns <= limit_ns, time_ns > limit_ns
    least = float(energy_j[within].min())
    for t, e in zip(time_ns[within], energy_j[within], strict=True):
        share = (limit_ns - t) / (time_ns[beyond] - t)
        least = min(least, float((e + share * (energy_j[beyond] - e)).min(initial=np.inf)))
    return least


def test_around_is_the_cheapest_mix() -> None:
    for seed in range(100):
        rng = np.random.default_rng(seed)
        outcomes = [Outcome(int(t), float(e), NOTHING) for t, e in rng.integers(1, 9, (6, 2))]
        limit_ns = float(rng.integers(1, 9))
        left, right = Frontier(outcomes=outcomes).around(limit_ns)
        assert (left is None) == all(o.time_ns > limit_ns for o in outcomes)
        assert (right is None) == all(o.time_ns <= limit_ns for o in outcomes)
        if left is not None and right is not None:
            share = (limit_ns - left.time_ns) / (right.time_ns - left.time_ns)
            mixed = left.energy_j + share * (right.energy_j - left.energy_j)
            times, energies = np.array([o[:2] for o in outcomes]).T
            edges = [
                e0 + (limit_ns - t0) / (t1 - t0) * (e1 - e0)
                for t0, e0 in zip(times, energies, strict=True)
                for t1, e1 in zip(times, energies, strict=True)
                if t0 <= limit_ns < t1
            ]
            assert mixed == pytest.approx(min(edges))


@pytest.mark.parametrize("protocol", CHARGED, ids=lambda protocol: protocol.name)
def test_what_was_asked_before_does_not_move_a_minimum(
    protocol: SwitchProtocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Round and round, the first guess comes from other weights: bounds stay bounds, and close ones."""
    gap = 1e-4
    for seed in range(25):
        model = random_model(seed, protocol, "periodic", monkeypatch)
        rng, warm = np.random.default_rng(seed), ClosedPaths(model=model, gap=gap)
        for time_weight in 1e-6 * np.exp(rng.uniform(-1, 1, 5)):
            bound, outcome = warm(1.0, float(time_weight))
            alone, best = ClosedPaths(model=model)(1.0, float(time_weight))
            if best is None or outcome is None:
                assert (bound, outcome) == (alone, best)
                continue
            cost, least = (o.energy_j + time_weight * o.time_ns for o in (outcome, best))
            assert bound <= least
            assert alone <= cost
            if least <= alone * (1 + 1e-9):  # the best round is one iteration long
                assert cost <= bound * (1 + 2 * gap)
