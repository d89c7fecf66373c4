"""Real recordings, replayed at the clocks they were recorded at, come out as recorded."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.replay.program import Program
from kdvfs_sim.replay.simulate import ReplayResult, replay
from kdvfs_sim.testing.strategies import cost_tables, traces
from kdvfs_sim.trace.readers import read_trace
from kdvfs_sim.trace.table import Trace
from tests.conftest import SHARED


def kineto_files() -> list[str]:
    if not (SHARED / "traces" / "totals.csv").is_file():
        return []
    with (SHARED / "traces" / "totals.csv").open() as file:
        return [row["file"] for row in csv.DictReader(file) if int(row["n_kernels"])]


def check_as_recorded(program: Program, result: ReplayResult) -> None:
    timeline = result.timeline
    late_starts = np.flatnonzero(timeline.start_ns != program.recorded_start_ns)
    late_ends = np.flatnonzero(timeline.end_ns != program.recorded_start_ns + program.duration_ns)
    assert late_starts.size + late_ends.size == 0


def unlike_anything(program: Program, *, seed: int) -> CostTable:
    """A table of three clocks whose rows differ wildly; only the recorded one must not matter."""
    from kdvfs_sim.core.clocks import AUTO_CLOCKS, Clocks

    rng = np.random.default_rng(seed)
    shape = (len(program.kinds), 3)
    return CostTable(
        kinds=tuple(kind.name for kind in program.kinds),
        clocks=(AUTO_CLOCKS, Clocks(1000, 1000), Clocks(500, 1000)),
        duration_ns=rng.uniform(1, 1e6, shape),
        power_w=rng.uniform(100, 700, shape),
        effective=rng.integers(0, 3, shape).astype(np.int32),
        idle_power_w=rng.uniform(50, 100, 3),
        recorded=0,
        requestable=np.ones(3, dtype=bool),
        cap_w=800.0,
    )


@pytest.mark.parametrize("name", kineto_files())
def test_a_recording_replayed_at_its_clocks(shared: Path, name: str) -> None:
    trace = read_trace(shared / "traces" / name)
    program = Program.from_trace(trace)
    bare = replay(program)
    check_as_recorded(program, bare)
    assert bare.metrics.energy_j is None
    assert "no cost table" in bare.metrics.energy_reason
    costed = replay(program, costs=unlike_anything(program, seed=1))
    check_as_recorded(program, costed)
    assert costed.metrics.energy_j is not None
    ends = (trace.ops["start_ns"] + trace.ops["duration_ns"]).to_numpy()
    assert costed.metrics.time_s == pytest.approx(int(ends.max()) * 1e-9, rel=1e-12)


@pytest.mark.parametrize("name", kineto_files())
def test_recorded_launches_keep_their_rows(shared: Path, name: str) -> None:
    trace = read_trace(shared / "traces" / name)
    launches = replay(Program.from_trace(trace)).timeline.launches
    ops = trace.ops[launches["op"]]
    assert launches["kind"].to_list() == ops["kind"].to_list()
    assert launches["stream"].to_list() == ops["stream"].to_list()
    assert (launches["end_ns"] - launches["start_ns"]).to_list() == ops["duration_ns"].to_list()


@given(traces(n_devices=2), cost_tables())
def test_any_trace_replayed_at_its_clocks(trace: Trace, costs: CostTable) -> None:
    program = Program.from_trace(trace)
    check_as_recorded(program, replay(program))
    check_as_recorded(program, replay(program, costs=costs, start=costs.clocks[costs.recorded]))


@given(traces(n_devices=2))
def test_one_device_of_a_trace_comes_out_as_recorded(trace: Trace) -> None:
    for device in trace.devices:
        program = Program.from_trace(trace, device=device)
        assert program.devices == (device,)
        check_as_recorded(program, replay(program))
