"""How long the exact methods take, without compilation, and how far from their bounds they stay.

``pytest tests/bench/test_optimize_speed.py -m bench -n0 -s`` prints the figures. Limits are those that two
otherwise idle cores keep.
"""

from __future__ import annotations

import itertools
import resource
import time
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from kdvfs_sim.core.chain import Chain
from kdvfs_sim.core.problem import Problem
from kdvfs_sim.core.switching import PROTOCOLS, Boundary
from kdvfs_sim.gpu.published_runs import find_published_run
from kdvfs_sim.optimize.additive import Groups
from kdvfs_sim.optimize.knapsack import solve_knapsack
from kdvfs_sim.optimize.solve import solve
from kdvfs_sim.optimize.target import Target
from kdvfs_sim.replay.program import Program
from kdvfs_sim.study.scene import Scene, build_scene
from kdvfs_sim.trace.readers import read_trace
from tests.optimize.chains import chain_problem, random_table
from tests.optimize.problems import BOUNDARIES

LATENCIES_NS = (100_000, 1_000_000, 6_000_000, 25_000_000)


def measured(name: str, problem: Problem, gap: float, repeats: int = 2) -> tuple[float, float]:
    """Seconds, the best of some, and the certified gap."""
    took_s = np.inf
    for _ in range(repeats):
        started = time.perf_counter()
        answer = solve(problem, seed=0, gap=gap)
        took_s = min(took_s, time.perf_counter() - started)
    assert answer.metrics is not None
    assert answer.metrics.energy_j is not None
    assert answer.lower_bound is not None
    found = 1 - answer.lower_bound / answer.metrics.energy_j
    print(f"{name}: {took_s:.3f} s, gap {found:.4%}, {answer.metrics.n_switches} switches")
    return took_s, found


def h200_problem(
    scene: Scene, protocol: str, boundary: Boundary, n_classes: int, latency_ns: int, every: int = 1
) -> Problem:
    """Kernels and memory sets as one stream without its host, gaps as recorded."""
    chain = replace(
        scene.chain, min_lag_ns=scene.chain.lag_ns, floor_ns=None, additive=True, reason="", precedence=None
    )
    costs = scene.costs["nominal"] if every == 1 else scene.choices
    return chain_problem(
        chain,
        costs,
        scene.program.kinds,
        switching=random_table(costs.n_clocks, latency_ns, n_classes=n_classes),
        protocol=PROTOCOLS[protocol],
        boundary=boundary,
        slack=0.006,
    )


@pytest.fixture(scope="module")
def scene() -> Scene:
    return build_scene(read_trace("h200_gpt3xl_full_train"))


@pytest.mark.bench
@pytest.mark.parametrize(
    ("protocol", "boundary", "n_classes", "limit_s"),
    [
        ("drain", "one-shot", 0, 1),
        ("drain", "periodic", 0, 2),
        ("lookahead", "one-shot", 16, 1),
        ("follow", "one-shot", 16, 1),
        ("lookahead", "periodic", 16, 1),
        ("follow", "periodic", 16, 1),
        ("lookahead", "one-shot", 0, 5),
        ("follow", "one-shot", 0, 5),
        ("lookahead", "periodic", 0, 5),
        ("follow", "periodic", 0, 5),
    ],
)
@pytest.mark.parametrize("every", [1, 2], ids=["222-clocks", "111-clocks"])
def test_the_full_h200_model(
    scene: Scene, protocol: str, boundary: Boundary, n_classes: int, limit_s: float, every: int
) -> None:
    for latency_ns in LATENCIES_NS:
        problem = h200_problem(scene, protocol, boundary, n_classes, latency_ns, every)
        name = f"{protocol} {boundary} {n_classes or 'pairs'} {latency_ns / 1e6:g} ms"
        took_s, gap = measured(name, problem, 1e-3)
        assert gap <= 1e-3
        assert took_s <= limit_s


@pytest.mark.bench
@pytest.mark.parametrize("protocol", ["drain", "lookahead", "follow"])
def test_what_a_hundredth_of_a_percent_takes(scene: Scene, protocol: str) -> None:
    """Reported, without a limit: where few changes fit, the bound may stay further away."""
    for latency_ns in LATENCIES_NS:
        measured(f"paper {protocol} {latency_ns / 1e6:g} ms", papers_problem(protocol, latency_ns), 1e-4)
        for boundary, n_classes in itertools.product(BOUNDARIES, (0,) if protocol == "drain" else (0, 16)):
            name = f"{protocol} {boundary} {n_classes or 'pairs'} {latency_ns / 1e6:g} ms"
            problem = h200_problem(scene, protocol, boundary, n_classes, latency_ns)
            assert measured(name, problem, 1e-4)[1] >= -1e-9


def papers_problem(protocol: str, latency_ns: int, n_launches: int | None = None) -> Problem:
    """The published iteration, repeated to a number of launches."""
    run = find_published_run("gpt3xl_3080ti_paper")
    assert run is not None
    program = Program.from_trace(run.trace)
    one = program.chain(run.costs)
    repeats = 1 if n_launches is None else -(-n_launches // len(one))
    kind, duration_ns, lag_ns = (
        np.tile(array, repeats)[:n_launches] for array in (one.kind, one.duration_ns, one.lag_ns)
    )
    return chain_problem(
        Chain(kind=kind, duration_ns=duration_ns, lag_ns=lag_ns, min_lag_ns=lag_ns),
        run.costs,
        program.kinds,
        switching=random_table(run.costs.n_clocks, latency_ns),
        protocol=PROTOCOLS[protocol],
        boundary="one-shot",
        slack=0.006,
    )


@pytest.mark.bench
@pytest.mark.parametrize(("protocol", "limit", "limit_s"), [("drain", 1e-3, 0.2), ("lookahead", 2e-4, 1)])
@pytest.mark.parametrize("latency_ns", LATENCIES_NS)
def test_the_papers_iteration(protocol: str, limit: float, limit_s: float, latency_ns: int) -> None:
    name = f"paper {protocol} {latency_ns / 1e6:g} ms"
    took_s, gap = measured(name, papers_problem(protocol, latency_ns), limit, repeats=3)
    assert gap <= limit
    assert took_s <= limit_s


@pytest.mark.bench
@pytest.mark.parametrize(("protocol", "limit_s"), [("drain", 60), ("follow", 120), ("lookahead", 120)])
def test_a_million_launches(protocol: str, limit_s: float) -> None:
    measured("warm", papers_problem(protocol, 1_000_000), 1e-3, repeats=1)
    problem = papers_problem(protocol, 1_000_000, 1_000_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    took_s, gap = measured(f"a million launches, {protocol}", problem, 1e-3, repeats=1)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"  {1024 * grown / 1e6:.0f} bytes a launch")
    assert gap <= 1e-3
    assert took_s <= limit_s
    assert 1024 * grown <= 1e9


@pytest.mark.bench
def test_free_switching_beside_highs() -> None:
    """1000 kinds at 60 clocks, one choice a kind."""
    rng = np.random.default_rng(0)
    speed = np.linspace(0.3, 1, 60)
    minds = rng.uniform(0, 1, (1000, 1))
    work_ns = rng.integers(10_000, 1_000_000, (1000, 1)) * rng.integers(1, 50, (1000, 1))
    time_ns = np.rint(work_ns * (minds / speed + 1 - minds)).astype(np.int64)
    power_w = rng.uniform(50, 150, (1000, 1)) + 300 * rng.uniform(0.3, 1, (1000, 1)) * speed**2.5
    groups = Groups(
        time_ns=time_ns, energy_j=time_ns * power_w * 1e-9, allowed=np.ones(time_ns.shape, dtype=np.bool_)
    )
    target = Target(minimize="energy", max_time_ns=float(round(time_ns[:, -1].sum() * 1.006)))
    solve_knapsack(groups, target, gap=1e-6)
    times = []
    for _ in range(5):
        started = time.perf_counter()
        answer = solve_knapsack(groups, target, gap=1e-6)
        times.append(time.perf_counter() - started)
    choices = np.arange(time_ns.size)
    one_each = coo_array((np.ones(time_ns.size), (choices // 60, choices))).tocsr()
    started = time.perf_counter()
    highs = milp(
        groups.energy_j.ravel(),
        integrality=np.ones(time_ns.size),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(one_each, 1, 1),
            LinearConstraint(time_ns.reshape(1, -1) / 1e6, 0, target.max_time_ns / 1e6),
        ],
        options={"mip_rel_gap": 1e-6, "time_limit": 120},
    )
    highs_s = time.perf_counter() - started
    found = answer.outcomes[0].energy_j
    print(f"HiGHS {highs_s:.2f} s, {highs_s / min(times):.0f} times as long as {1e3 * min(times):.2f} ms;")
    print(
        f"  ours over HiGHS's: {found / highs.fun - 1:+.1e}, over the bound: {found / answer.bound - 1:.1e}"
    )
    assert found <= highs.fun * (1 + 1e-5)
    assert highs_s / min(times) >= 500
