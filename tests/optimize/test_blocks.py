"""Long chains cut into blocks give what whole ones give."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kdvfs_sim.core.chain import Chain
from kdvfs_sim.core.problem import Problem
from kdvfs_sim.core.switching import SwitchProtocol
from kdvfs_sim.optimize import blocks, charged
from kdvfs_sim.optimize.blocks import LongPaths
from kdvfs_sim.optimize.charged import Charged
from kdvfs_sim.optimize.paths import OpenPaths
from tests.optimize.chains import random_table
from tests.optimize.problems import CHARGED, random_problem

WEIGHTS = ((0.0, 1.0), (1.0, 0.0), (1.0, 1e-7), (1.0, 3e-8))


def long_problem(seed: int, protocol: SwitchProtocol) -> Problem:
    problem = random_problem(seed, protocol=protocol, boundary="one-shot", max_clocks=4)
    rng = np.random.default_rng(seed)
    n, n_kinds = 120, problem.costs.n_kinds
    lag_ns = np.append(0, rng.choice([0, 7, 100], n - 1)).astype(np.int64)
    chain = Chain(
        kind=rng.integers(n_kinds, size=n).astype(np.int32),
        duration_ns=rng.choice([50, 300, 1000], n).astype(np.int64),
        lag_ns=lag_ns,
        min_lag_ns=lag_ns,
    )
    return replace(problem, chain=chain, switching=random_table(problem.costs.n_clocks, 200, seed=seed))


@pytest.mark.parametrize("protocol", CHARGED, ids=lambda protocol: protocol.name)
def test_blocks_give_what_the_whole_gives(protocol: SwitchProtocol, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(10):
        problem = long_problem(seed, protocol)
        method = Charged(problem, lambda cells, _: cells, 1e-4)
        whole = method._paths(method._rows, at_least=True)
        with monkeypatch.context() as patch:
            patch.setattr(charged, "LONG", 0)
            patch.setattr(blocks, "BLOCK", 16)
            parts = method._paths(method._rows, at_least=True)
        assert isinstance(whole, OpenPaths)
        assert isinstance(parts, LongPaths)
        for weights in WEIGHTS:
            value, outcome = whole(*weights)
            value_in_parts, outcome_in_parts = parts(*weights)
            assert value_in_parts == pytest.approx(value, rel=1e-12)
            assert outcome is not None
            assert outcome_in_parts is not None
            for paths, found in ((whole, outcome), (parts, outcome_in_parts)):
                placed = paths.place(found)
                assert placed is not None
                assert placed.time_ns == found.time_ns
                assert placed.energy_j == pytest.approx(found.energy_j, rel=1e-12)
