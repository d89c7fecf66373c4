"""How much faster the fast evaluator is than the replay, launch for launch, on a recorded training step."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kdvfs_sim.core.schedule import ClockRequest, Schedule
from kdvfs_sim.core.switching import SwitchTable
from kdvfs_sim.replay.fast import FastEvaluator
from kdvfs_sim.replay.simulate import replay
from kdvfs_sim.study.scene import Scene, build_scene
from kdvfs_sim.trace.readers import read_trace

BATCH = 64
REPEATS = 5


@pytest.fixture(scope="module")
def scene() -> Scene:
    return build_scene(read_trace("h200_gpt3xl_full_train"))


def some_schedules(scene: Scene, name: str, rng: np.random.Generator, n_requests: int) -> list[Schedule]:
    """Requests at random launches, for random clocks."""
    program, costs = scene.program, scene.costs["nominal"]
    device, stream = program.streams[0]
    clocks = [pair for pair, may in zip(costs.clocks, costs.requestable, strict=True) if may]

    def one() -> Schedule:
        anchors = np.sort(rng.choice(program.n_ops, n_requests, replace=False))
        which = rng.integers(len(clocks), size=n_requests)
        return Schedule(
            requests=tuple(
                ClockRequest(clocks=clocks[k], launch=int(op), stream=stream, device=device)
                for op, k in zip(anchors, which, strict=True)
            ),
            protocol=name,
        )

    return [one() for _ in range(BATCH)]


def best_s(work: Callable[[], Any]) -> float:
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


@pytest.mark.bench
@pytest.mark.parametrize(
    ("n_requests", "switching_ns"), [(0, None), (10, None), (100, None), (100, 20_000), (1000, 5_000)]
)
@pytest.mark.parametrize(
    ("name", "least"), [("free", 200), ("drain", 200), ("follow", 80), ("lookahead", 80)]
)
def test_speed_over_the_replay(
    scene: Scene,
    name: str,
    least: float,
    n_requests: int,
    switching_ns: int | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """``switching_ns`` None: the H200's, of which few fit in the trace; else as on a faster GPU."""
    costs, switching = scene.costs["nominal"], scene.switching["nominal"]
    if switching_ns is not None:
        switching = SwitchTable.uniform(costs.n_clocks, host_call_ns=2_000, switching_ns=switching_ns)
    arguments: dict[str, Any] = {
        "costs": costs,
        "switching": switching,
        "protocol": scene.protocols[name],
    }
    schedules = some_schedules(scene, name, np.random.default_rng(1), n_requests)
    fast = FastEvaluator(scene.program, **arguments)
    batch = fast.arrays(schedules)
    fast.evaluate_many(batch)
    n_ops = scene.program.n_ops
    few = schedules[:3]
    slow_s = best_s(lambda: [replay(scene.program, schedule=s, **arguments) for s in few]) / len(few)
    fast_s = best_s(lambda: fast.evaluate_many(batch)) / BATCH
    alone_s = best_s(lambda: fast.evaluate_many(batch, n_threads=1)) / BATCH
    with capsys.disabled():
        print(
            f"\n{name}, {n_requests} requests, switching {switching_ns or 'H200'}: "
            f"replay {n_ops / slow_s:,.0f} launches/s, fast {n_ops / fast_s:,.0f}: "
            f"{slow_s / fast_s:.0f} times ({slow_s / alone_s:.0f} on one thread)"
        )
    assert slow_s / fast_s >= least
