"""The fast evaluator against the replay, to the nanosecond."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kdvfs_sim.core.errors import InputError
from kdvfs_sim.core.problem import Metrics
from kdvfs_sim.replay.fast import FastEvaluator
from kdvfs_sim.replay.simulate import replay
from tests.strategies import Scene, scenes, single_stream, switch_tables


def evaluator(scene: Scene) -> FastEvaluator:
    arguments = scene.arguments
    del arguments["schedule"]
    return FastEvaluator(scene.program, **arguments)


def outcome(evaluate: Any) -> Metrics | tuple[type, str]:
    try:
        metrics: Metrics = evaluate()
        return metrics
    except InputError as error:
        return type(error), str(error)


def check_equal(fast: Metrics | tuple[type, str], slow: Metrics | tuple[type, str]) -> None:
    if not (isinstance(fast, Metrics) and isinstance(slow, Metrics)):
        assert fast == slow
        return
    if fast.energy_j is not None and slow.energy_j is not None:
        assert math.isclose(fast.energy_j, slow.energy_j, rel_tol=1e-9, abs_tol=1e-18)
        fast = replace(fast, energy_j=slow.energy_j)
    assert fast == slow


def check_against_replay(scene: Scene) -> None:
    slow = outcome(lambda: replay(scene.program, **scene.arguments).metrics)
    check_equal(outcome(lambda: evaluator(scene).evaluate(scene.schedule)), slow)


@st.composite
def crowded(draw: st.DrawFn) -> Scene:
    """Scenes in which much falls into one nanosecond, or takes longer than the trace; unknown durations,
    requests in any order, custom protocols."""
    scene = draw(scenes(trace=single_stream(max_ops=6), max_requests=8))
    costs, protocol, n = scene.costs, scene.protocol, scene.costs.n_clocks
    if draw(st.booleans()):
        whole = np.asarray(draw(st.lists(st.sampled_from([1.0, 2.0, 4.0]), min_size=3 * n, max_size=3 * n)))
        costs = replace(costs, duration_ns=whole.reshape(3, n))
    if draw(st.integers(0, 3)) == 3:
        unknown = costs.duration_ns.copy()
        unknown[draw(st.integers(0, 2)), draw(st.integers(0, n - 1))] = np.nan
        costs = replace(costs, duration_ns=unknown)
    if protocol.charged and draw(st.booleans()):
        protocol = replace(protocol, issuer=draw(st.sampled_from(["launch_thread", "controller"])))
    requests = scene.schedule.requests
    if not protocol.drains and draw(st.booleans()):
        requests = tuple(draw(st.permutations(requests)))
    return replace(
        scene,
        costs=costs,
        switching=draw(switch_tables(n, longest_ns=draw(st.sampled_from([0, 1, 3, 12, 400])))),
        protocol=protocol,
        schedule=replace(scene.schedule, requests=requests),
    )


@given(scenes(trace=single_stream()))
def test_a_scene(scene: Scene) -> None:
    check_against_replay(scene)


@given(crowded())
def test_a_crowded_scene(scene: Scene) -> None:
    check_against_replay(scene)
