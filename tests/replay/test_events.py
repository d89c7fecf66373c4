"""What a replay costs, counted: SimPy events are the same on every machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given

from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.core.schedule import ClockRequest, Schedule
from kdvfs_sim.core.switching import PROTOCOLS, SwitchTable
from kdvfs_sim.replay.program import Program
from kdvfs_sim.replay.simulate import replay
from kdvfs_sim.testing.strategies import Scene, scenes, single_stream, traces
from kdvfs_sim.trace.readers import read_trace
from tests.replay.test_recorded import kineto_files, unlike_anything

PER_LAUNCH = 3
PER_SWITCH = 8  # its turn, stall, landing and reopening; and the ends and starts that it moves
CONSTANT = 3  # the beginning, the end, and the alarm that rings if nothing is left to happen


@pytest.mark.parametrize("name", kineto_files())
def test_a_recording_takes_three_events_a_launch(shared: Path, name: str) -> None:
    program = Program.from_trace(read_trace(shared / "traces" / name))
    costs = unlike_anything(program, seed=2)
    for start in costs.clocks:
        result = replay(program, costs=costs, start=start)
        assert result.n_events <= PER_LAUNCH * program.n_ops + CONSTANT


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_recording_under_a_schedule(shared: Path, protocol: str) -> None:
    program = Program.from_trace(read_trace(shared / "traces" / "h200_gpt3xl_full_train.json.gz"))
    costs = unlike_anything(program, seed=3)
    device, stream = program.streams[0]
    requests = tuple(
        ClockRequest(clocks=costs.clocks[i % 3], launch=launch, device=device, stream=stream)
        for i, launch in enumerate(range(0, program.n_ops, 45))
    )
    result = replay(
        program,
        costs=costs,
        schedule=Schedule(requests=requests),
        protocol=PROTOCOLS[protocol],
        switching=SwitchTable.uniform(3, host_call_ns=20_000, switching_ns=50_000),
    )
    assert result.metrics.n_switches == len(requests)
    assert result.n_events <= PER_LAUNCH * program.n_ops + PER_SWITCH * len(requests) + CONSTANT


@given(scenes(trace=single_stream()))
def test_a_chain_takes_two_events_a_launch(scene: Scene) -> None:
    result = replay(scene.program, **scene.arguments)
    n_carried = 2 * len(scene.program.devices)
    n_switches = result.metrics.n_switches + n_carried
    assert result.n_events <= 2 * scene.program.n_ops + PER_SWITCH * n_switches + CONSTANT


@given(scenes(trace=traces(n_devices=2)))
def test_streams_overlaps_and_ties_take_three(scene: Scene) -> None:
    result = replay(scene.program, **scene.arguments)
    marks = int((scene.program.overlap_ns >= 0).sum())  # each may be an end of its own
    n_switches = result.metrics.n_switches + 2 * len(scene.program.devices)
    moved = PER_SWITCH * n_switches * len(scene.program.streams)
    assert result.n_events <= PER_LAUNCH * scene.program.n_ops + marks + moved + CONSTANT


def test_clocks_asked_for_at_every_launch_cost_the_same_each(shared: Path) -> None:
    program = Program.from_trace(read_trace(shared / "traces" / "h200_gpt3xl_layer_train.json.gz"))
    costs = unlike_anything(program, seed=4)
    device, stream = program.streams[0]
    plan = [costs.clocks[i % 2] for i in range(program.n_ops)]
    assert isinstance(plan[1], Clocks)
    for protocol in PROTOCOLS.values():
        schedule = Schedule.from_assignment(plan, device=device, stream=stream)
        result = replay(
            program, costs=costs, schedule=schedule, protocol=protocol, switching=SwitchTable.zero(3)
        )
        n = result.metrics.n_switches
        assert result.n_events <= PER_LAUNCH * program.n_ops + PER_SWITCH * n + CONSTANT
