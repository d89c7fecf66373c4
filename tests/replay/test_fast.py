"""The fast evaluator against the replay, to the nanosecond."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdvfs_sim.core.clocks import AUTO_CLOCKS, Clocks
from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.core.errors import InputError, NotApplicableError, ScheduleError
from kdvfs_sim.core.problem import Metrics
from kdvfs_sim.core.schedule import ClockRequest, Schedule
from kdvfs_sim.core.switching import DRAIN, FOLLOW, FREE, LOOKAHEAD, PROTOCOLS, SwitchTable
from kdvfs_sim.gpu.build import cost_table
from kdvfs_sim.gpu.catalogue import load_gpu
from kdvfs_sim.gpu.switching import protocol_for, switching_model, tabulate
from kdvfs_sim.replay.fast import FastEvaluator, RequestArrays
from kdvfs_sim.replay.program import Program
from kdvfs_sim.replay.simulate import replay
from kdvfs_sim.testing.strategies import Scene, scenes, schedules, single_stream, switch_tables, traces
from kdvfs_sim.trace.readers import read_trace

Outcome = Metrics | tuple[type, str]


def evaluator(scene: Scene) -> FastEvaluator:
    arguments = scene.arguments
    del arguments["schedule"]
    return FastEvaluator(scene.program, **arguments)


def outcome(evaluate: Callable[[], Metrics]) -> Outcome:
    try:
        return evaluate()
    except InputError as error:
        return type(error), str(error)


def check_equal(fast: Outcome, slow: Outcome) -> None:
    if isinstance(fast, Metrics) and isinstance(slow, Metrics):
        if fast.energy_j is None or slow.energy_j is None:
            assert fast.energy_j is slow.energy_j
        else:
            assert math.isclose(fast.energy_j, slow.energy_j, rel_tol=1e-9, abs_tol=1e-18)
        fast = replace(fast, energy_j=slow.energy_j)
    assert fast == slow


def check_against_replay(scene: Scene) -> None:
    slow = outcome(lambda: replay(scene.program, **scene.arguments).metrics)
    check_equal(outcome(lambda: evaluator(scene).evaluate(scene.schedule)), slow)


# -- generated programs ----------------------------------------------------------------------------


@st.composite
def crowded(draw: st.DrawFn) -> Scene:
    """Scenes in which much falls into one nanosecond, or takes longer than the trace; requests pile up, in
    any order where nothing drains; unknown durations; protocols that have no name."""
    scene = draw(scenes(trace=single_stream(max_ops=6), max_requests=8))
    costs, protocol, n = scene.costs, scene.protocol, scene.costs.n_clocks
    if draw(st.booleans()):
        whole = np.asarray(draw(st.lists(st.sampled_from([1.0, 2.0, 4.0]), min_size=3 * n, max_size=3 * n)))
        costs = replace(costs, duration_ns=whole.reshape(3, n))
    if draw(st.integers(0, 3)) == 3:
        unknown = costs.duration_ns.copy()
        unknown[draw(st.integers(0, 2)), draw(st.integers(0, n - 1))] = np.nan
        costs = replace(costs, duration_ns=unknown)
    if draw(st.integers(0, 3)) == 3:
        recorded_at = draw(st.lists(st.integers(0, n - 1), min_size=3, max_size=3))
        costs = replace(costs, recorded_effective=np.asarray(recorded_at, dtype=np.int32))
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


@given(crowded(), st.data())
def test_many_are_each_like_one(scene: Scene, data: st.DataObject) -> None:
    fast = evaluator(scene)
    one = schedules(scene.program, scene.costs.clocks, scene.protocol)
    batch = [scene.schedule, *data.draw(st.lists(one, max_size=5))]
    many = fast.evaluate_many(fast.arrays(batch))
    for i, schedule in enumerate(batch):
        alone = outcome(partial(fast.evaluate, schedule))
        if not isinstance(alone, Metrics):
            assert many.time_ns[i] == -1
            assert math.isnan(many.energy_j[i])
            continue
        assert many.time_ns[i] / 1e9 == alone.time_s
        assert many.n_switches[i] == alone.n_switches
        assert many.switching_ns[i] * 1e-9 == alone.switching_s
        assert many.settled[i] == ("periodic_not_settled" not in alone.flags)
        assert many.dropped[i] == ("requests_dropped" in alone.flags)
        assert math.isnan(many.energy_j[i]) if alone.energy_j is None else many.energy_j[i] == alone.energy_j


@given(scenes(trace=traces(n_streams=2)))
def test_it_agrees_or_refuses(scene: Scene) -> None:
    try:
        evaluator(scene)
    except NotApplicableError:
        program = scene.program
        assert len(program.streams) > 1 or (program.overlap_ns >= 0).any()
    else:
        check_against_replay(scene)


# -- recordings ------------------------------------------------------------------------------------

MICROSECONDS = 1_000


@pytest.mark.parametrize("slow_switches", [True, False], ids=["ms", "us"])
@pytest.mark.parametrize("name", ["h200_gpt3xl_layer_train", "h200_gpt3xl_full_train"])
def test_a_recorded_training_step(name: str, slow_switches: bool) -> None:
    gpu = load_gpu("h200")
    program = Program.from_trace(read_trace(name))
    costs = cost_table(gpu, program.kinds, np.full(len(program.kinds), 50_000.0))
    switching = tabulate(switching_model(gpu), costs.clocks)
    if not slow_switches:  # so that many land, in the middle of kernels too
        switching = SwitchTable.uniform(
            costs.n_clocks, host_call_ns=15 * MICROSECONDS, switching_ns=40 * MICROSECONDS
        )
    rng = np.random.default_rng(5)
    for protocol in (protocol_for(gpu, p) for p in PROTOCOLS):
        arguments: dict[str, Any] = {"costs": costs, "switching": switching, "protocol": protocol}
        fast = FastEvaluator(program, **arguments)
        for n_requests in (1, 4, 60):
            offsets = protocol.charged and not protocol.drains
            schedule = random_schedule(rng, program, costs.clocks, n_requests, offsets)
            metrics = replay(program, schedule=schedule, **arguments).metrics
            check_equal(fast.evaluate(schedule), metrics)
        if protocol.drains or not slow_switches:
            assert metrics.n_switches > 10


def random_schedule(
    rng: np.random.Generator, program: Program, clocks: tuple[Clocks, ...], n: int, offsets: bool
) -> Schedule:
    device, stream = program.streams[0]
    return Schedule(
        requests=tuple(
            ClockRequest(
                clocks=clocks[rng.integers(len(clocks))],
                launch=int(op),
                offset_ns=int(rng.integers(100 * MICROSECONDS)) if offsets else 0,
                stream=stream,
                device=device,
            )
            for op in np.sort(rng.choice(program.n_ops, n, replace=False))
        )
    )


# -- what it is given ------------------------------------------------------------------------------


def a_scene(**changes: Any) -> Scene:
    """A layer's training step at made-up costs: kind 0 has an unknown duration at 600 MHz."""
    program = Program.from_trace(read_trace("h200_gpt3xl_layer_train"))
    clocks = (AUTO_CLOCKS, Clocks(900, 1000), Clocks(600, 1000))
    shape = (len(program.kinds), len(clocks))
    duration_ns = np.ones(shape)
    duration_ns[program.kind[0], 2] = np.nan
    costs = CostTable(
        kinds=tuple(kind.name for kind in program.kinds),
        clocks=clocks,
        duration_ns=duration_ns,
        power_w=np.full(shape, 300.0),
        effective=np.tile(np.arange(3, dtype=np.int32), (shape[0], 1)),
        idle_power_w=np.full(3, 100.0),
        recorded=0,
        requestable=np.array([True, True, True]),
    )
    scene = Scene(
        trace=read_trace("h200_gpt3xl_layer_train"),
        costs=costs,
        switching=SwitchTable.uniform(3, host_call_ns=10, switching_ns=20),
        protocol=FREE,
        schedule=Schedule(requests=()),
        boundary="one-shot",
        start=AUTO_CLOCKS,
    )
    return replace(scene, **changes)


@pytest.mark.parametrize(
    ("recording", "protocol", "why"),
    [
        ("h200_decode_tiny_kernels", FREE, "operations of the stream overlap"),
        ("h200_gpt3xl_layer_train_two_streams_copies", FREE, "2 streams"),
        ("h200_gpt3xl_layer_train", replace(LOOKAHEAD, device_queue="fifo"), "'fifo', not 'serial'"),
        ("h200_gpt3xl_layer_train", replace(DRAIN, charged=False), "drains the device and charges nothing"),
    ],
)
def test_it_refuses_what_it_cannot_do(recording: str, protocol: Any, why: str) -> None:
    with pytest.raises(NotApplicableError, match=why):
        evaluator(a_scene(trace=read_trace(recording), protocol=protocol))


@pytest.mark.parametrize("launches", [(1, 0), (0, 2, 1), (0, 1, 0)])
def test_a_drained_request_that_waits_for_a_later_one(launches: tuple[int, ...]) -> None:
    scene = a_scene(protocol=DRAIN)
    device, stream = scene.program.streams[0]
    clocks = [Clocks(900, 1000), AUTO_CLOCKS]
    schedule = Schedule(
        requests=tuple(
            ClockRequest(clocks=clocks[i % 2], launch=launch, stream=stream, device=device)
            for i, launch in enumerate(launches)
        )
    )
    fast = evaluator(scene)
    with pytest.raises(ScheduleError, match="order requests as their anchors run"):
        fast.evaluate(schedule)
    by_hand = RequestArrays(
        first=np.array([0, len(launches)]),
        op=scene.program.ops_of_stream[0][list(launches)],
        offset_ns=np.zeros(len(launches), dtype=np.int64),
        row=np.array([scene.costs.index(clocks[i % 2]) for i in range(len(launches))]),
    )
    assert fast.evaluate_many(by_hand).time_ns[0] == -1


def request_arrays(**changes: list[int]) -> RequestArrays:
    """One schedule with one request, for row 0 before the first operation, but for ``changes``."""
    columns = {"first": [0, 1], "op": [0], "offset_ns": [0], "row": [0]} | changes
    return RequestArrays(**{name: np.asarray(v, dtype=np.int64) for name, v in columns.items()})


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"op": [192]}, "an operation outside 0..191"),
        ({"row": [3]}, "a row outside 0..2"),
        ({"row": [1]}, "only ever effective"),
        ({"offset_ns": [1]}, "an offset that 'free' does not allow"),
        ({"first": [0, 2]}, "first has to rise"),
    ],
)
def test_a_request_that_does_not_fit(changes: dict[str, list[int]], problem: str) -> None:
    scene = a_scene()
    fast = evaluator(replace(scene, costs=replace(scene.costs, requestable=np.array([True, False, True]))))
    with pytest.raises(ScheduleError, match=problem):
        fast.evaluate_many(request_arrays(**changes))


def test_charged_switches_need_a_table() -> None:
    scene = a_scene(protocol=FOLLOW, switching=None)
    with pytest.raises(InputError, match="needs a SwitchTable"):
        evaluator(scene).evaluate_many(request_arrays(row=[1]))


def test_no_schedules_at_all() -> None:
    none = request_arrays(first=[0], op=[], offset_ns=[], row=[])
    assert evaluator(a_scene()).evaluate_many(none).time_ns.size == 0
