"""Bounds and plans from critical paths, against replays and against trying everything."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdvfs_sim.core.clocks import AUTO_CLOCKS
from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.core.problem import Problem
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.core.switching import DRAIN, FOLLOW, FREE, LOOKAHEAD, SwitchProtocol
from kdvfs_sim.optimize.additive import group_launches
from kdvfs_sim.optimize.allowed import free_choices
from kdvfs_sim.optimize.baselines import locked
from kdvfs_sim.optimize.critical import CriticalPaths, _longest, explore_paths
from kdvfs_sim.optimize.solve import CLOSED, solve
from kdvfs_sim.optimize.target import Target
from kdvfs_sim.replay.precedence import precedence_of
from kdvfs_sim.replay.simulate import replay
from kdvfs_sim.testing.judge import Judge, judged
from kdvfs_sim.testing.notation import costs, switching
from kdvfs_sim.testing.strategies.traces import traces
from tests.optimize import test_host_bound as host
from tests.optimize.problems import static
from tests.optimize.test_host_bound import host_bound, joules, posed


def length_ns(graph, duration_ns) -> float:  # type: ignore[no-untyped-def]
    path = np.zeros(len(graph.kind))
    length, lags_ns = _longest(
        graph.origin, graph.to, graph.lag_ns, graph.op, graph.n_nodes, duration_ns.astype(np.float64), path
    )
    assert length == pytest.approx(path @ duration_ns + lags_ns, rel=1e-12)
    return length


@pytest.mark.parametrize("seed", range(20))
def test_the_longest_path_is_the_time_that_a_run_takes(seed: int) -> None:
    made = host_bound(seed, n=12)
    if made.chain.precedence is None:
        return
    graph = made.chain.precedence()
    for row in range(made.costs.n_clocks):
        took = made.evaluate(static(made, row))
        duration_ns = np.rint(graph.duration_ns * made.costs.ratio[graph.kind, row])
        assert length_ns(graph, duration_ns) == round(took.time_s * 1e9)


@given(traces())
def test_no_run_is_shorter_than_a_path_through_it(trace) -> None:  # type: ignore[no-untyped-def]
    """Any trace, as recorded: streams, overlaps, waits, hosts; what is left out only makes paths shorter."""
    program = Judge(trace, None, None, FREE, "one-shot", None).program  # type: ignore[arg-type]
    table = flat(len(trace.kinds))
    run = replay(program).timeline
    for stream in range(len(program.streams)):
        graph = precedence_of(program, table, stream)
        assert length_ns(graph, run.end_ns - run.start_ns) <= int(run.end_ns.max(initial=0))
        before = np.full(graph.n_nodes, -1)
        before[graph.to] = np.arange(len(graph.to))  # of each node its last edge
        leaves = graph.origin >= 0
        assert (before[graph.origin[leaves]] < np.flatnonzero(leaves)).all()


def flat(n_kinds: int) -> CostTable:
    return costs(
        ["auto"], time=np.ones((n_kinds, 1)).tolist(), power_w=np.ones((n_kinds, 1)).tolist(), idle_w=[1.0]
    )


def capped(random: np.random.Generator) -> CostTable:
    """Kernels that share a power cap, and that the driver may run at clocks of their own."""
    time = np.sort(random.uniform(1, 3, (3, 3)), axis=1)[:, ::-1]
    power_w = np.sort(random.uniform(90, 500, (3, 4)), axis=1)
    cap_w = random.choice([np.inf, 450, 520, 600])
    own = [[int(random.choice([0, 2, 3])), 1, 2, 3] for _ in range(3)]
    return costs(
        host.CLOCKS,
        time=np.column_stack([np.ones(3), time]).tolist(),
        power_w=np.column_stack([power_w[:, 3], power_w[:, :3]]).tolist(),
        idle_w=[80.0, 50.0, 60.0, 70.0] if random.random() < 0.7 else random.uniform(20, 150, 4).tolist(),
        cap_w=None if np.isinf(cap_w) else float(cap_w),
        effective=own if random.random() < 0.5 else None,
    )


@settings(max_examples=60)
@given(st.integers(0, 2**31), st.integers(1, 3), st.sampled_from(["energy", "edp", "time"]))
def test_no_choice_of_clocks_is_below_the_bound(seed: int, n_streams: int, minimize) -> None:  # type: ignore[no-untyped-def]
    """Kernels on several streams run at a common row under a cap: sums over one stream lay above answers."""
    random = np.random.default_rng(seed)
    made = host_bound(
        seed,
        n=int(random.integers(2, 6)),
        n_streams=n_streams,
        slack=float(random.choice([0, 0.01, 0.3])),
        boundary=random.choice(["periodic", "one-shot"]),
        table=capped(random),
    )
    limit_s = made.objective.max_time_s if minimize == "energy" else None
    made = replace(made, objective=replace(made.objective, minimize=minimize, max_time_s=limit_s))
    answer = solve(made, seed=0)
    clocks, stream = made.costs.clocks, made.chain.stream
    for rows in itertools.product(range(len(clocks)), repeat=len(made.chain)):
        plan = Schedule.from_assignment([clocks[r] for r in rows], stream=stream, boundary=made.boundary)
        metrics = made.evaluate(plan)
        assert metrics.energy_j is not None
        if made.objective.allows(metrics.time_s, metrics.energy_j):
            assert answer.lower_bound is not None
            value = made.objective.value(metrics.time_s, metrics.energy_j)
            assert value >= answer.lower_bound * (1 - CLOSED)


@settings(max_examples=60)
@given(st.integers(0, 2**31), st.sampled_from([DRAIN, FOLLOW, LOOKAHEAD]), st.sampled_from([0, 3, 60, 900]))
def test_no_schedule_with_changes_that_cost_is_below_the_bound(
    seed: int, protocol: SwitchProtocol, most_ns: int
) -> None:
    """Requests only delay: what bounds runs that change at no cost bounds these, too."""
    random = np.random.default_rng(seed)
    made = host_bound(seed, n=4, boundary=random.choice(["periodic", "one-shot"]), table=capped(random))
    n = made.costs.n_clocks
    takes = lambda: (random.integers(0, most_ns + 1, (n, n)) * (1 - np.eye(n, dtype=int))).tolist()  # noqa: E731
    made = made_under(made, protocol, switching(call_ns=takes(), lands_ns=takes()))
    if made.chain.precedence is None:
        return
    group = group_launches(made.chain, "launch")
    paths = CriticalPaths(made, group, free_choices(made, group))
    bound = explore_paths(paths, Target.of(made.objective), gap=1e-4).bound(Target.of(made.objective))
    for schedule, metrics in judged(made):
        assert metrics.energy_j is not None
        if made.objective.allows(metrics.time_s, metrics.energy_j):
            assert metrics.energy_j >= bound * (1 - CLOSED), schedule


def made_under(made: Problem, protocol: SwitchProtocol, table) -> Problem:  # type: ignore[no-untyped-def]
    assert isinstance(made.evaluate, Judge)
    judge = Judge(made.evaluate.trace, made.costs, table, protocol, made.boundary, made.evaluate.start)
    return replace(made, protocol=protocol, switching=table, evaluate=judge)


@pytest.mark.parametrize(
    ("name", "saves_pct", "gap_pct"),
    [
        ("tracelens__qwen_h100.json.gz", 16.0, 1.0),
        ("tracelens__bert_h100.json.gz", 30.7, 0.1),
        ("hta__ns_resolution_v100.json.gz", 0.0, 0.1),
    ],
)
def test_recordings_that_the_host_binds_are_solved_to_within_a_per_cent(
    shared: Path, name: str, saves_pct: float, gap_pct: float
) -> None:
    made = posed(shared / "traces" / name)
    answer = solve(made, seed=0)
    assert answer.lower_bound is not None
    assert joules(answer) <= answer.lower_bound * (1 + gap_pct / 100)
    auto = made.evaluate(locked(made, AUTO_CLOCKS)).energy_j
    assert auto is not None
    assert joules(answer) <= auto * (1 - saves_pct / 100)
