"""Bounds of protocols that land while work goes on, where the host may hold up the device."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from kdvfs_sim.core.problem import Problem
from kdvfs_sim.core.schedule import ClockRequest, Schedule
from kdvfs_sim.core.switching import FOLLOW, LOOKAHEAD, SwitchTable
from kdvfs_sim.optimize.allowed import restricted
from kdvfs_sim.optimize.charged import Charged
from kdvfs_sim.optimize.solve import CLOSED, solve
from kdvfs_sim.optimize.target import Target
from kdvfs_sim.study.plans import Budget
from kdvfs_sim.study.scene import build_scene
from kdvfs_sim.testing.judge import Judge, judged
from kdvfs_sim.testing.notation import costs, problem, switching, trace
from kdvfs_sim.trace.readers import read_trace
from tests.optimize.test_critical import capped, made_under
from tests.optimize.test_host_bound import host_bound


def posed(seed: int) -> Problem:
    """Some launches that the host hands out faster or slower than they run, and changes about as long as
    launches or longer, whose calls hold up the host."""
    random = np.random.default_rng(seed)
    made = host_bound(
        seed,
        n=int(random.integers(2, 6)),
        boundary=random.choice(["periodic", "one-shot"]),
        table=capped(random),
        slack=float(random.choice([0.003, 0.01, 0.05, 0.3, 1.0])),
    )
    n = made.costs.n_clocks

    def takes(low: int, high: int) -> list[list[int]]:
        return (random.integers(low, high, (n, n)) * (1 - np.eye(n, dtype=int))).tolist()  # type: ignore[no-any-return]

    lands_ns = takes(*random.choice([(500, 4000), (2000, 9000), (3000, 5000), (4000, 4001)]))
    calls_ns = takes(*random.choice([(0, 1), (0, 3000), (1000, 6000), (3000, 9000)]))
    protocol = LOOKAHEAD if seed % 4 == 0 else replace(FOLLOW, trigger_ns=int(random.choice([0, 10, 300])))
    return made_under(made, protocol, switching(call_ns=calls_ns, lands_ns=lands_ns))


def followed(made: Problem) -> Iterator[tuple[Schedule, float]]:
    """Every schedule of requests at boundaries within the budget that asks in time, and its energy.

    Whether it does is seen in the replay: where the host makes the device wait, a change is done with before
    launches are that could have followed.
    """
    judge, protocol = made.evaluate, made.protocol
    assert isinstance(judge, Judge)
    rows = np.flatnonzero(made.costs.requestable).tolist()
    for choice in itertools.product(rows, repeat=len(made.chain)):
        before = made.start if made.boundary == "one-shot" else choice[-1]
        pairs = zip([before, *choice], choice, strict=False)
        changes = [(i, old, new) for i, (old, new) in enumerate(pairs) if old != new]
        requests = tuple(ClockRequest(clocks=made.costs.clocks[new], launch=i) for i, _, new in changes)
        plan = Schedule(requests=requests, protocol=protocol.name, boundary=made.boundary)
        if not changes:
            continue
        run = judge.replay(plan)
        asked_ns = run.timeline.switches["requested_ns"].to_list()
        if len(asked_ns) != len(changes):
            continue
        next_ns = asked_ns[1:]
        if made.boundary == "periodic":
            next_ns.append(asked_ns[0] + round(run.metrics.time_s * 1e9))
        table = made.switching
        in_time = all(
            then - protocol.trigger_ns >= at + max(table.switching_ns[old, new], table.host_call_ns[old, new])
            for (_, old, new), at, then in zip(changes, asked_ns, next_ns, strict=False)
        )
        energy_j = run.metrics.energy_j
        if in_time and energy_j is not None and made.objective.allows(run.metrics.time_s, energy_j):
            yield plan, energy_j


def check(seeds: range) -> tuple[int, int]:
    """Numbers of problems with a bound, and of schedules below what sums of launches and least gaps say."""
    n_bounds = n_below_sums = 0
    for seed in seeds:
        made = posed(seed)
        method = Charged(made, partial(restricted, made), 1e-4)
        lines = method.waiting()
        if not lines.outcomes:
            continue
        n_bounds += 1
        sums, bound = method.bound, lines.bound(Target.of(made.objective))
        tried = [(plan, metrics.energy_j) for plan, metrics in judged(made)]
        if not made.protocol.anticipates:
            tried += list(followed(made))
        for plan, energy_j in tried:
            assert energy_j is not None
            if made.objective.allows(made.evaluate(plan).time_s, energy_j):
                assert energy_j >= bound * (1 - CLOSED), (seed, plan)
                n_below_sums += energy_j < sums * (1 - CLOSED)
    return n_bounds, n_below_sums


def test_no_schedule_is_below_the_bound() -> None:
    n_bounds, n_below_sums = check(range(180, 230))
    assert n_bounds > 10
    assert n_below_sums > 0  # so that it takes more than sums


def test_no_request_waits_for_the_change_before_it() -> None:
    """Slow launches use up the host's gaps: a plan that counts on them asks before the last change has
    landed, and then inside a launch. Such an answer lay below its bound."""
    ops = [(0, 0, 250, 0, 0, 0), (0, 1940, 250, 0, 0, 1)]
    ops += [(1, 3880 + 1000 * k, 1000 if k < 4 else 600, 0, 0, 2 + k) for k in range(5)]
    ops += [(2, 8480 + 1000 * k, 1000, 0, 0, 7 + k) for k in range(6)]
    asked = [-50, 1890, *range(3830, 3830 + 20 * 11, 20)]
    made = problem(
        trace(
            *[(kind, at * 1000, ns * 1000, *rest) for kind, at, ns, *rest in ops],
            host=[(1, at * 1000, 20_000, "launch") for at in asked],
        ),
        costs(
            ["auto", "sm=300,mem=auto"],
            time=[[1, 8], [1, 1], [1, 1]],
            power_w=[[100, 10], [100, 105], [105, 100]],
            idle_w=[90, 90],
        ),
        SwitchTable.uniform(2, host_call_ns=20_000, switching_ns=4_500_000),
        protocol=FOLLOW,
        boundary="one-shot",
        start=1,
    )
    answer = solve(made, seed=0)
    assert answer.schedule is not None
    assert isinstance(made.evaluate, Judge)
    switches = made.evaluate.replay(answer.schedule).timeline.switches
    starts = made.evaluate.replay(answer.schedule).timeline.start_ns
    assert switches["requested_ns"].to_list() == [starts[r.launch] for r in answer.schedule.requests]


def test_a_stall_may_wait_at_clocks_that_nobody_can_ask_for() -> None:
    """A kernel at clocks of the driver's own stalls there at their idle power, less than any that may be
    asked for: waiting costs no more than that."""
    table = SwitchTable.uniform(4, host_call_ns=900, switching_ns=7000)
    stalling = replace(table, stall_ns=table.switching_ns)
    made = problem(
        trace(
            (0, 0, 1400, 0, 0, 0),
            (1, 3000, 3400, 0, 0, 1),
            host=[(1, -50, 20, "launch"), (1, 2950, 20, "launch")],
        ),
        costs(
            ["auto", "sm=300,mem=auto", "sm=600,mem=auto", "sm=900,mem=auto"],
            time=[[1, 2, 1.25, 1], [1, 2, 1.17, 1]],
            power_w=[[400, 100, 354, 400], [400, 100, 110, 400]],
            idle_w=[100, 5, 90, 100],
            requestable=[True, False, True, True],
            effective=[[1, 1, 2, 3], [1, 1, 2, 3]],
        ),
        stalling,
        protocol=FOLLOW,
        boundary="one-shot",
        start=0,
        max_time_s=10.7e-6,
    )
    lines = Charged(made, partial(restricted, made), 1e-4).waiting()
    tried = [(m.energy_j, round(m.time_s * 1e9)) for _, m in judged(made) if m.energy_j is not None]
    for energy_weight, time_weight, value_j in lines.lines:
        assert all(energy_weight * j + time_weight * ns >= value_j * (1 - CLOSED) for j, ns in tried)


@pytest.mark.soak
def test_no_schedule_of_many_problems_is_below_the_bound() -> None:
    check(range(1000, 3000))


@pytest.mark.parametrize("slack_pct", [0.6, 5.0])
@pytest.mark.parametrize("name", ["h200_gpt3xl_layer_train", "h200_gpt3xl_full_train"])
def test_bounds_of_recordings_with_their_host_are_close(name: str, slack_pct: float) -> None:
    """Calls of 4.5 ms may hold up a host that is ahead of the device: nobody knows how many there are."""
    scene = build_scene(read_trace(name))
    objective = Budget(slack_pct=slack_pct).objective("energy", scene.auto_metrics)
    made = scene.problem(objective, "follow")
    assert made.chain.precedence is not None
    answer = solve(made, seed=0, gap=1e-3)
    assert answer.metrics is not None
    assert answer.metrics.energy_j is not None
    assert answer.lower_bound is not None
    assert answer.metrics.energy_j <= answer.lower_bound * (1 + 1e-3)
