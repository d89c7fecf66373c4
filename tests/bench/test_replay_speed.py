"""The replay beside the least that SimPy can do: launch rates as ratios within one run.

Run: pytest -m bench -s -n0 tests/bench/test_replay_speed.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import pytest
import simpy

from kdvfs_sim.core.governor import DynamicGovernor
from kdvfs_sim.core.schedule import ClockRequest, Schedule
from kdvfs_sim.core.switching import PROTOCOLS, SwitchTable
from kdvfs_sim.replay.program import Program
from kdvfs_sim.replay.simulate import replay
from kdvfs_sim.study.scene import Scene, build_scene
from kdvfs_sim.trace.readers import read_trace

pytestmark = pytest.mark.bench

LEAST = 0.6
LEAST_WITH_REQUESTS = (
    0.3  # one at every fiftieth launch; a launch thread they block is evaluated call by call
)
ROUNDS = 15


def minimal(program: Program) -> None:
    """What a hand-written SimPy program does for a stream: an event for each launch, start and end."""
    env = simpy.Environment()
    gaps = np.maximum(program.after_lag_ns, 0).tolist()
    durations = program.duration_ns.tolist()
    launches: list[float] = []
    starts: list[float] = []
    ends: list[float] = []

    def host() -> Generator[simpy.Event, None, None]:
        for _ in durations:
            yield env.timeout(5_000)
            launches.append(env.now)

    def stream() -> Generator[simpy.Event, None, None]:
        for gap, duration in zip(gaps, durations, strict=True):
            yield env.timeout(gap)
            starts.append(env.now)
            yield env.timeout(duration)
            ends.append(env.now)

    env.process(host())
    env.process(stream())
    env.run()


def ratio_of_rates(work: Callable[[], Any], program: Program) -> tuple[float, float, float]:
    """Rate of ``work`` over that of the minimal program, and both in us a launch; rounds alternate, times
    are this thread's own."""
    ours, least = [], []
    for _ in range(ROUNDS):
        for times, run in ((least, lambda: minimal(program)), (ours, work)):
            begin = time.thread_time()
            run()
            times.append((time.thread_time() - begin) / program.n_ops * 1e6)
    ratio = statistics.median(b / a for a, b in zip(ours, least, strict=True))
    return ratio, statistics.median(ours), statistics.median(least)


@pytest.fixture(scope="module", params=["h200_gpt3xl_full_train", "h200_gpt3xl_layer_train_100steps_gpuonly"])
def scene(request: pytest.FixtureRequest) -> Scene:
    found = build_scene(read_trace(request.param))
    assert len(found.program.links.kind)
    return found


def report(
    capsys: pytest.CaptureFixture[str], what: str, scene: Scene, figures: tuple[float, ...], n: float
) -> None:
    ratio, ours, least = figures
    with capsys.disabled():
        print(
            f"\nreplay, {scene.program.n_ops} launches, {what}: {ours:.2f} us a launch, minimal SimPy "
            f"program {least:.2f} us: {ratio:.2f} of its rate, {n:.2f} events a launch"
        )


def test_replay_at_one_clock(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> Any:
        result = replay(scene.program, costs=scene.costs["nominal"], start=scene.start)
        assert result.metrics.energy_j
        assert result.timeline.intervals_of[0].start_ns.size >= scene.program.n_ops
        return result

    figures = ratio_of_rates(work, scene.program)
    report(
        capsys,
        "one clock, with host, timeline and energy",
        scene,
        figures,
        work().n_events / scene.program.n_ops,
    )
    assert figures[0] >= LEAST


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_replay_of_a_schedule(scene: Scene, protocol: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A request at every fiftieth launch; one-shot, since a period may take several replays."""
    program, costs = scene.program, scene.costs["nominal"]
    device, stream = program.streams[0]
    clocks = [costs.clocks[row] for row in np.flatnonzero(costs.requestable)[:: max(1, costs.n_clocks // 5)]]
    requests = tuple(
        ClockRequest(clocks=clocks[i % len(clocks)], launch=launch, device=device, stream=stream)
        for i, launch in enumerate(range(0, program.n_ops, 50))
    )

    schedule = Schedule(requests=requests)
    switching = SwitchTable.uniform(costs.n_clocks, host_call_ns=2_000, switching_ns=100_000)

    def work() -> Any:
        result = replay(
            program,
            costs=costs,
            schedule=schedule,
            protocol=PROTOCOLS[protocol],
            switching=switching,
            boundary="one-shot",
        )
        assert result.metrics.energy_j
        assert result.timeline.intervals_of[0].start_ns.size >= program.n_ops
        return result

    figures = ratio_of_rates(work, program)
    report(
        capsys, f"{protocol} with {len(requests)} requests", scene, figures, work().n_events / program.n_ops
    )
    assert figures[0] >= LEAST_WITH_REQUESTS


def test_replay_under_the_dynamic_governor(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    """Its steps are events of their own: the rate is shown, not asserted."""
    governor = scene.governor or DynamicGovernor(sense_ns=20_000, fall_ns=120_000, rise_ns=150_000)

    def work() -> Any:
        return replay(scene.program, costs=scene.costs["nominal"], start=scene.start, governor=governor)

    figures = ratio_of_rates(work, scene.program)
    report(capsys, "dynamic governor", scene, figures, work().n_events / scene.program.n_ops)
    assert figures[0] > 0
