"""Where times do not simply add: answers found on replays, and bounds that hold all the same."""

from __future__ import annotations

import importlib.util
import itertools
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from kdvfs_sim.core.clocks import AUTO_CLOCKS
from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.core.problem import Objective, Problem, Solution
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.core.switching import DRAIN, FOLLOW, FREE, LOOKAHEAD, Boundary, SwitchProtocol, SwitchTable
from kdvfs_sim.gpu.switching import switching_model, tabulate
from kdvfs_sim.optimize.baselines import locked, static_mix
from kdvfs_sim.optimize.solve import CLOSED, solve
from kdvfs_sim.study.plans import Budget
from kdvfs_sim.study.scene import build_scene
from kdvfs_sim.testing.judge import best_by_trying_all
from kdvfs_sim.testing.notation import costs, problem, trace
from kdvfs_sim.trace.readers import read_trace
from tests.optimize.problems import BOUNDARIES, static

ROOT = Path(__file__).parents[2]
CLOCKS = ["auto", "sm=300,mem=auto", "sm=600,mem=auto", "sm=900,mem=auto"]
TABLE = costs(
    CLOCKS,
    time=[[1.0, 1.1, 1.02, 1.0], [1.0, 3.0, 1.6, 1.25], [1.0, 1.7, 1.3, 1.1]],
    power_w=[[400.0, 150.0, 180.0, 260.0], [500.0, 240.0, 320.0, 410.0], [300.0, 140.0, 200.0, 240.0]],
    idle_w=[80.0, 50.0, 60.0, 70.0],
)


def host_bound(
    seed: int,
    *,
    n: int = 5,
    n_streams: int = 1,
    slack: float = 0.01,
    boundary: Boundary = "periodic",
    table: CostTable | None = None,
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
        TABLE if table is None else table,
        protocol=FREE,
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


def descended(made: Problem) -> float:
    return joules(example().Descent().solve(made, seed=0))


@pytest.mark.parametrize("n_streams", [1, 2])
@pytest.mark.parametrize("seed", range(12))
def test_no_worse_than_descent_and_no_better_than_trying_all(seed: int, n_streams: int) -> None:
    made = host_bound(seed, n_streams=n_streams)
    answer = solve(made, seed=0)
    assert answer.lower_bound is not None
    assert joules(answer) <= descended(made) * (1 + CLOSED)
    assert answer == solve(made, seed=0)
    chain, clocks, limit_s = made.chain, made.costs.clocks, made.objective.max_time_s
    assert limit_s is not None
    for rows in itertools.product(range(len(clocks)), repeat=len(chain)):
        metrics = made.evaluate(Schedule.from_assignment([clocks[row] for row in rows], stream=chain.stream))
        assert metrics.energy_j is not None
        if metrics.time_s <= limit_s:
            assert metrics.energy_j >= answer.lower_bound * (1 - CLOSED)


@pytest.mark.parametrize("granularity", ["kind", "segment", "launch"])
@pytest.mark.parametrize("aggregation", ["global", "local"])
def test_a_policy_keeps_its_rule(granularity, aggregation) -> None:  # type: ignore[no-untyped-def]
    """The answer would lie below its bound otherwise, which is an error."""
    for seed, boundary in itertools.product(range(4), BOUNDARIES):
        made = host_bound(seed, n=9, boundary=boundary, slack=0.1)
        answer = solve(replace(made, granularity=granularity, aggregation=aggregation), seed=0)
        assert answer.metrics is None or joules(answer) >= (answer.lower_bound or 0.0)


def test_kernels_that_overlap_on_a_stream_do_not_add(shared: Path) -> None:
    """A simulator's trace whose stream holds operations at once: sums over it lay above the answers."""
    made = posed(shared / "traces" / "triosim__vgg13_train_h100.json")
    answer = solve(made, seed=0)
    assert made.chain.floor_ns is None
    assert answer.status == "not exact"
    assert answer.lower_bound is not None
    assert 0 < answer.lower_bound <= joules(answer)


def test_the_host_takes_its_time_at_any_clocks(shared: Path) -> None:
    """Two streams busy 0.5 % of 13 s: what idling costs for as long bounds the energy to within 1 %."""
    answer = solve(posed(shared / "traces" / "hta__alexnet_a100_two_streams.json.gz"), seed=0)
    assert answer.lower_bound is not None
    assert 0.99 * joules(answer) <= answer.lower_bound <= joules(answer)


def test_a_recording_that_the_host_binds(shared: Path) -> None:
    """A forward pass busy 8 % of the time: kernels slow down in gaps, and the last ones must not."""
    made = posed(shared / "traces" / "tracelens__bert_h100.json.gz")
    assert joules(solve(made, seed=0)) <= descended(made) * (1 + CLOSED)


def posed(path: Path) -> Problem:
    """Free switching at 1 % of slack on the recording's own GPU."""
    if not path.exists():
        pytest.skip(f"{path.name} is other people's data and not here")
    scene = build_scene(read_trace(str(path)))
    auto = scene.judge(FREE)(locked(scene.problem(Objective(), FREE), AUTO_CLOCKS))
    return scene.problem(Budget(slack_pct=1.0).objective("energy", auto), FREE)


def test_what_free_switching_hides_in_gaps_is_kept_where_changes_cost_next_to_nothing(shared: Path) -> None:
    """The plan of the free problem is judged under the other protocols, too: sums know nothing of it."""
    made = posed(shared / "traces" / "tracelens__bert_h100.json.gz")
    assert made.protocol == FREE
    scene = build_scene(read_trace(str(shared / "traces" / "tracelens__bert_h100.json.gz")))
    quick = tabulate(switching_model(scene.gpu), scene.costs["nominal"].clocks)
    quick = replace(
        quick,
        switching_ns=np.minimum(quick.switching_ns, 1000),
        host_call_ns=np.zeros_like(quick.host_call_ns),
        stall_ns=np.minimum(quick.stall_ns, 1000),
    )
    free = solve(made, seed=0)
    assert free.schedule is not None
    static_j = joules(static_mix(replace(made, granularity="static")))
    for name in ("follow", "lookahead"):
        charged = scene.problem(made.objective, scene.protocols[name], switching=quick)
        saved = static_j - joules(solve(charged, seed=0, also=[free.schedule]))
        assert saved > 0.8 * (static_j - joules(free))


def test_a_plan_with_less_freedom_is_a_start_for_one_with_more() -> None:
    for seed in range(4):
        made = host_bound(seed, n=9, boundary="periodic", slack=0.1)
        fewer = solve(replace(made, granularity="kind"), seed=0, mixes=False)
        if fewer.schedule is not None:
            more = solve(made, seed=0, mixes=False, also=[fewer.schedule])
            assert joules(more) <= joules(fewer) * (1 + CLOSED)


def test_a_plan_that_the_policy_does_not_allow_is_no_start() -> None:
    """A plan a launch tells launches of a kind apart."""
    made = host_bound(1, n=9, boundary="periodic", slack=0.1)
    launch = solve(made, seed=0, mixes=False)
    assert launch.schedule is not None
    kind = solve(replace(made, granularity="kind"), seed=0, mixes=False, also=[launch.schedule])
    assert kind == solve(replace(made, granularity="kind"), seed=0, mixes=False)


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_relaunch_that_passes_while_the_host_is_late_takes_no_time(boundary: Boundary) -> None:
    """Kernels that take as long at every clock, and two of three gaps the host's."""
    made = problem(
        trace(
            (0, 0, 50, 0, 0, 0),
            (0, 2000, 50, 0, 0, 1),
            (1, 2150, 1000, 0, 0, 2),
            host=[(0, 0, 0, "launch"), (0, 2000, 0, "launch"), (0, 2043, 0, "launch")],
        ),
        costs(CLOCKS[:2], time=[[1, 1], [1, 1]], power_w=[[100, 100], [100, 150]], idle_w=[10, 0]),
        protocol=DRAIN.with_timing(relaunch_ns=10),
        boundary=boundary,
        max_time_s=3.165e-6,  # two changes, were each to take its relaunch, would be too many
    )
    answer = solve(made, seed=0)
    least, _ = best_by_trying_all(made)
    assert answer.lower_bound is not None
    assert answer.lower_bound <= least * (1 + CLOSED)
    assert joules(answer) == pytest.approx(least)


def test_a_run_that_stays_at_clocks_that_nobody_can_ask_for() -> None:
    """They are slower than all that may be asked for, so that the host's lead is another."""
    made = problem(
        trace(
            (0, 0, 0, 0, 0, 0),
            (0, 0, 50, 0, 0, 1),
            (0, 1600, 300, 0, 0, 2),
            host=[(0, -500, 0, "launch"), (0, -400, 0, "launch"), (0, 1600, 0, "launch")],
        ),
        costs(CLOCKS[:2], time=[[1, 2]], power_w=[[100, 100]], idle_w=[10, 0], requestable=[True, False]),
        SwitchTable.uniform(2, host_call_ns=0, switching_ns=10**13),
        protocol=FOLLOW,
        boundary="one-shot",
        start=1,
        minimize="time",
    )
    answer = solve(made, seed=0)
    assert answer.metrics is not None
    assert answer.metrics.time_s == 2.2e-6


@pytest.mark.parametrize(
    "protocol", [FOLLOW.with_timing(trigger_ns=5000), LOOKAHEAD], ids=["follow", "lookahead"]
)
def test_a_change_that_lands_in_a_gap_costs_no_more_than_the_bound_says(protocol: SwitchProtocol) -> None:
    """With the least gaps work begins earlier, and runs on at the dear clocks until the change has landed."""
    made = problem(
        trace(
            (1, 0, 1000, 0, 0, 0),
            (1, 0, 10, 1, 0, 0),
            (1, 1000, 10, 0, 0, 0),
            (0, 6368, 3000, 0, 0, 1),
            host=[(0, -12, 0, "launch"), (0, 5148, 0, "launch")],
        ),
        costs(CLOCKS[:2], time=[[1, 1], [1, 1]], power_w=[[50, 100], [100, 100]], idle_w=[0, 0]),
        SwitchTable.uniform(2, host_call_ns=0, switching_ns=0 if protocol.trigger_ns else 5000),
        protocol=protocol,
        boundary="one-shot",
        start=1,
        stream=(0, 0),
    )
    answer = solve(made, seed=0)
    assert answer.lower_bound is not None
    assert joules(answer) == pytest.approx(2.52e-4)
    assert answer.lower_bound <= joules(answer)
