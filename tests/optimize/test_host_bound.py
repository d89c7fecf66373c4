"""Where times do not simply add: answers found on replays, and bounds that hold all the same."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np

from kdvfs_sim.core.problem import Problem, Solution
from kdvfs_sim.core.switching import FREE, Boundary, SwitchProtocol, SwitchTable
from kdvfs_sim.optimize.solve import solve
from kdvfs_sim.testing.notation import costs, problem, trace
from tests.optimize.problems import static

ROOT = Path(__file__).parents[2]
CLOCKS = ["auto", "sm=300,mem=auto", "sm=600,mem=auto", "sm=900,mem=auto"]
TABLE = costs(
    CLOCKS,
    time=[[1.0, 1.1, 1.02, 1.0], [1.0, 3.0, 1.6, 1.25], [1.0, 1.7, 1.3, 1.1]],
    power_w=[[400.0, 150.0, 180.0, 260.0], [500.0, 240.0, 320.0, 410.0], [300.0, 140.0, 200.0, 240.0]],
    idle_w=[80.0, 50.0, 60.0, 70.0],
)


def host_bound(
    seed: int, *, protocol: SwitchProtocol = FREE, n: int = 5, n_streams: int = 1, slack: float = 0.01, boundary: Boundary = "periodic"
) -> Problem:
    """Launches that the host hands out now faster, now slower than they run, and sometimes awaits."""
    random = np.random.default_rng(seed)
    ops, host = [], []
    now, last, ends = -50, 0, [0] * n_streams
    for i in range(n):
        stream = i % n_streams
        duration = int(random.integers(200, 2000))
        start = last = max(ends[stream], now + 50, last)
        ops.append((int(random.integers(0, 3)), start, duration, stream, 0, len(host)))
        host.append((1, now, 20, "launch"))
        ends[stream] = start + duration
        now += 20 + int(random.choice([30, 400, 3000]))
        if random.random() < 0.2:
            host.append((1, now, max(0, max(ends) + 10 - now) + 5, "sync", i))
            now = sum(host[-1][1:3])
    made = problem(
        trace(*ops, host=host, n_kinds=3),
        TABLE,
        SwitchTable.uniform(4, host_call_ns=40, switching_ns=90) if protocol.charged else None,
        protocol=protocol,
        boundary=boundary,
        stream=(0, 0),
        start=0,
    )
    auto = made.evaluate(static(made, 0))
    return replace(made, objective=replace(made.objective, max_time_s=(1 + slack) * auto.time_s))


def joules(solution: Solution) -> float:
    assert solution.metrics is not None
    assert solution.metrics.energy_j is not None
    return solution.metrics.energy_j


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("descent", ROOT / "docs" / "how-to" / "descent.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def no_worse_than_the_example(made: Problem) -> tuple[float, float]:
    return joules(solve(made, seed=0)), joules(example().Descent().solve(made, seed=0))
