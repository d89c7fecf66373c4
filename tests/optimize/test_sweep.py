"""A sweep beside the plain dynamic programme: every change from every state, each at its exact price."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kdvfs_sim.core.chain import Chain
from kdvfs_sim.core.compiled import compiled
from kdvfs_sim.core.switching import Boundary, SwitchProtocol, SwitchTable
from kdvfs_sim.optimize import charged
from kdvfs_sim.optimize.additive import Floats, cell_cost
from kdvfs_sim.optimize.changes import AT_ONCE, Model, change
from kdvfs_sim.optimize.charged import Charged
from kdvfs_sim.optimize.paths import ClosedPaths
from kdvfs_sim.optimize.sweep import new_plan, sweep
from tests.optimize.chains import random_table
from tests.optimize.problems import BOUNDARIES, CHARGED, random_problem

WEIGHTS = ((0.0, 1.0), (1.0, 0.0), (1.0, 3e-8), (1.0, 1e-6))


def random_model(
    seed: int, protocol: SwitchProtocol, boundary: Boundary, monkeypatch: pytest.MonkeyPatch
) -> Model:
    """Many clocks and launches; stalls, calls longer than the switching, floors, zero-length launches."""
    rng = np.random.default_rng(seed)
    problem = random_problem(seed, protocol=protocol, boundary=boundary, max_clocks=24)
    n, n_clocks, unit = 60, problem.costs.n_clocks, int(rng.choice([1, 1000]))
    lag_ns = np.append(0, rng.choice([0, 7, 100], n - 1)).astype(np.int64) * unit
    floor_ns = rng.choice([0, 0, 1500], n).astype(np.int64) * unit * rng.choice([0, 1])
    chain = Chain(
        kind=rng.integers(problem.costs.n_kinds, size=n).astype(np.int32),
        duration_ns=rng.choice([0, 50, 300, 1000], n).astype(np.int64) * unit,
        lag_ns=lag_ns,
        min_lag_ns=lag_ns,
        floor_ns=floor_ns,
    )
    switching = problem.switching
    if rng.choice([False, True]):
        latency_ns = unit * int(rng.choice([60, 400, 3000]))
        switching = random_table(n_clocks, latency_ns, n_classes=int(rng.choice([0, 3])), seed=seed)
    if rng.choice([False, True]):
        calls_ns = rng.choice([1, 3, 10, 4000, 5000, 6000], (n_clocks, n_clocks)) * unit
        switching = SwitchTable(
            host_call_ns=calls_ns * (1 - np.eye(n_clocks, dtype=np.int64)),
            switching_ns=switching.switching_ns,
            stall_ns=switching.stall_ns,
            extra_energy_j=switching.extra_energy_j,
        )
    with monkeypatch.context() as patch:
        patch.setattr(charged.Chase, "solve", lambda self, target: ([], 0.0))
        patch.setattr(Charged, "_seeds", lambda self, target: ())
        granularity = rng.choice(["launch", "segment"])
        problem = replace(problem, chain=chain, switching=switching, granularity=granularity)
        return Charged(problem, lambda cells, _: cells, 1e-4)._chase.paths.model  # type: ignore[union-attr]


@compiled
def plain_sweep(model: Model, energy_weight: float, time_weight: float, value: Floats) -> None:
    rules, starts = model.rules, model.runs.start_ns
    n, n_clocks = model.cells.allowed.shape
    for i in range(n - 1, -1, -1):
        limit = i + n if rules.periodic else n
        for a in range(n_clocks):
            value[i, a] = np.inf
            if model.cells.allowed[i, a]:
                time_ns, energy_j = cell_cost(model.cells, i, a)
                value[i, a] = energy_weight * energy_j + time_weight * time_ns + value[i + 1, a]
        changed = np.full(n_clocks, np.inf)
        for a in range(n_clocks):
            for b in range(n_clocks):
                if a == b or not rules.requestable[b]:
                    continue
                for m in range(i - 1, limit + 1):
                    at = m
                    if m == i - 1:
                        at = AT_ONCE
                        if rules.anticipates and not (i == 0 and rules.at_once):
                            continue
                        if not (rules.may_change[i] or rules.anticipates):
                            continue
                    elif not (rules.anticipates and rules.may_change[m % n]):
                        continue
                    if at >= 0 and starts[a, m] - starts[a, i] < rules.work_ns[a, b]:
                        continue
                    arrival, time_ns, energy_j = change(model, i, a, b, at)
                    if 0 <= arrival <= limit:
                        cost = energy_weight * energy_j + time_weight * time_ns + value[arrival, b]
                        changed[a] = min(changed[a], cost)
        for a in range(n_clocks):
            value[i, a] = min(value[i, a], changed[a])


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("protocol", CHARGED, ids=lambda protocol: protocol.name)
def test_every_state_has_its_least_cost(
    protocol: SwitchProtocol, boundary: Boundary, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(12):
        model = random_model(seed, protocol, boundary, monkeypatch)
        n = len(model.cells.kind)
        for weights in WEIGHTS:
            value = np.zeros((model.runs.start_ns.shape[1], model.cells.allowed.shape[1]))
            expected = value.copy()
            sweep(model, *weights, value, new_plan(model))
            plain_sweep(model, *weights, expected)
            np.testing.assert_allclose(value[:n], expected[:n], rtol=1e-11, err_msg=f"seed {seed}")


@pytest.mark.parametrize("protocol", CHARGED, ids=lambda protocol: protocol.name)
def test_a_sweep_that_ends_early_gives_what_a_whole_one_gives(
    protocol: SwitchProtocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_early = 0
    for seed in range(40):
        model = random_model(seed, protocol, "periodic", monkeypatch)
        n, n_clocks = model.cells.allowed.shape
        rng, paths = np.random.default_rng(seed), ClosedPaths(model=model)
        value, plan = np.full((2 * n + 1, n_clocks), np.inf), new_plan(model)
        value[n : 2 * n] = 0.0
        sweep(model, 1.0, 1e-6, value, plan)
        before = plan.target.copy()
        value[n : 2 * n] = value[:n] + 1e-6 * rng.uniform(size=n_clocks)
        whole, whole_plan = value.copy(), new_plan(model)
        sweep(model, 1.0, 1e-6, whole, whole_plan)
        monkeypatch.setattr("kdvfs_sim.optimize.sweep.STATES", 4 * n_clocks**2)
        plan.target[0] = 7777  # overwritten unless the sweep ends before
        sweep(model, 1.0, 1e-6, value, plan, reach=paths._reach)
        n_early += int((plan.target[0] == 7777).all())
        plan.target[0] = np.where(plan.target[0] == 7777, before[0], plan.target[0])
        np.testing.assert_allclose(value[:n], whole[:n], rtol=1e-10)
    assert n_early > 5
