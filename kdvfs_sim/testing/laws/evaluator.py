"""What has to hold of an Evaluator (core.protocols).

The plug-in is what makes one: ``plugin(program, costs=, switching=, protocol=, boundary=, start=)``, as the
class ``FastEvaluator`` does. Where it raises NotApplicableError, while it is made or asked, there is no case.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, TypeAlias

import numpy as np
from hypothesis import strategies as st

from kdvfs_sim.core.errors import InputError, NotApplicableError, ScheduleError
from kdvfs_sim.core.problem import Metrics
from kdvfs_sim.core.protocols import Evaluator
from kdvfs_sim.core.schedule import ClockRequest, Schedule
from kdvfs_sim.replay.simulate import ReplayResult, replay
from kdvfs_sim.testing.law import Raised, ask, assume, law, require
from kdvfs_sim.testing.notation import same
from kdvfs_sim.testing.strategies.scenes import Scene, scenes
from kdvfs_sim.testing.strategies.traces import single_stream, traces

MakeEvaluator: TypeAlias = Callable[..., Evaluator]
any_scene = scenes(trace=single_stream()) | scenes(trace=traces())


def evaluate(make: MakeEvaluator, scene: Scene) -> Metrics:
    return _evaluated(made(make, scene), scene.schedule)


def made(make: MakeEvaluator, scene: Scene) -> Evaluator:
    arguments = scene.arguments
    del arguments["schedule"]
    evaluator: Evaluator = _unless_not_applicable(make, scene.program, **arguments)
    return evaluator


def _evaluated(evaluator: Evaluator, schedule: Schedule) -> Metrics:
    metrics = _unless_not_applicable(evaluator.evaluate, schedule)
    assert isinstance(metrics, Metrics)
    return metrics


def _unless_not_applicable(function: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return ask(function, *args, **kwargs)
    except Raised as raised:
        assume(not isinstance(raised.error, NotApplicableError))
        raise


def replayed(scene: Scene) -> Metrics:
    """Only scenes that the replay takes: a schedule may fit its trace and still wait for itself."""
    return _replay(scene).metrics


def _replay(scene: Scene) -> ReplayResult:
    try:
        return replay(scene.program, **scene.arguments)
    except InputError:
        assume(False)
        raise


@law("evaluator", lambda _: any_scene, total=True)
def answers_every_schedule_that_fits(make: MakeEvaluator, scene: Scene) -> None:
    """Every schedule that fits the trace gets Metrics: finite seconds, and joules or a reason."""
    replayed(scene)
    metrics = _unless_not_applicable(made(make, scene).evaluate, scene.schedule)
    require(isinstance(metrics, Metrics), f"evaluate returned {metrics!r}, not Metrics")
    require(math.isfinite(metrics.time_s) and metrics.time_s >= 0, f"time_s is {metrics.time_s}")
    if metrics.energy_j is None:
        require(bool(metrics.energy_reason), "energy_j is None without an energy_reason")
    else:
        require(math.isfinite(metrics.energy_j), f"energy_j is {metrics.energy_j}")


@law("evaluator", lambda _: any_scene)
def times_are_those_of_the_replay(make: MakeEvaluator, scene: Scene) -> None:
    """Time to the nanosecond, number and total of switches, and flags are those of the replay."""
    real, said = replayed(scene), evaluate(make, scene)
    for name in ("time_s", "n_switches", "switching_s", "flags"):
        a, b = getattr(said, name), getattr(real, name)
        require(a == b, f"{name} is {a!r}; the replay measures {b!r}")


@law("evaluator", lambda _: any_scene)
def energy_is_that_of_the_replay(make: MakeEvaluator, scene: Scene) -> None:
    """Energy is the replay's up to the order of summation, and unknown where that is unknown."""
    real, said = _replay(scene), evaluate(make, scene)
    a, b = said.energy_j, real.metrics.energy_j
    # relative to the parts: where kernels draw less than an idle device, large ones make a small sum
    gross_j = real.timeline.gross_energy_j
    close = a is b if a is None or b is None else abs(a - b) <= max(1e-9 * gross_j, 1e-18)
    require(close, f"energy_j is {a}; the replay measures {b}")


@law("evaluator", lambda _: st.tuples(any_scene, st.integers(0, 3)))
def a_schedule_that_does_not_fit_is_refused(make: MakeEvaluator, case: tuple[Scene, int]) -> None:
    """A request anchored at a launch that does not exist raises ScheduleError."""
    scene, beyond = case
    launch = int(scene.program.position.max()) + 1 + beyond
    device, stream = scene.program.streams[0]
    request = ClockRequest(clocks=scene.costs.clocks[0], launch=launch, stream=stream, device=device)
    schedule = replace(scene.schedule, requests=(*scene.schedule.requests, request))
    try:
        metrics = _unless_not_applicable(made(make, scene).evaluate, schedule)
    except Raised as raised:
        require(isinstance(raised.error, ScheduleError), f"{raised}; ScheduleError is right")
    else:
        require(False, f"launch {launch} of stream {stream} does not exist, and it answered {metrics}")


@law("evaluator", lambda _: st.tuples(any_scene, st.integers(0, 3)))
def same_answer_in_any_order(make: MakeEvaluator, case: tuple[Scene, int]) -> None:
    """One evaluator gives the same answer again, whatever it evaluated in between."""
    scene, n = case
    replayed(scene)
    evaluator = made(make, scene)
    before = _evaluated(evaluator, scene.schedule)
    for requests in range(n):
        shorter = replace(scene.schedule, requests=scene.schedule.requests[:requests])
        _unless_not_applicable(evaluator.evaluate, shorter)
    after = _evaluated(evaluator, scene.schedule)
    require(before == after, f"{after} when asked again, {before} before")


@law("evaluator", lambda _: any_scene)
def its_inputs_are_left_alone(make: MakeEvaluator, scene: Scene) -> None:
    """Costs, switch costs and program are as before after an evaluation."""
    replayed(scene)
    parts: dict[str, Any] = {"costs": scene.costs, "switching": scene.switching, "program": scene.program}
    before = {
        f"{part}.{f.name}": array.copy()
        for part, owner in parts.items()
        for f in fields(owner)
        if isinstance(array := getattr(owner, f.name), np.ndarray)
    }
    evaluate(make, scene)
    for name, array in before.items():
        part, _, field = name.partition(".")
        now = getattr(parts[part], field)
        require(same(array, now), f"{name} was {array.tolist()} and is {now.tolist()}")
