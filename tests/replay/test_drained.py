"""Drained devices: what is held while the device is closed, and schedules that no draining can follow."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from kdvfs_sim.core.clocks import AUTO_CLOCKS, Clocks
from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.core.errors import ScheduleError
from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.core.schedule import ClockRequest, Schedule
from kdvfs_sim.core.switching import DRAIN, SwitchTable
from kdvfs_sim.replay.program import Program
from kdvfs_sim.replay.simulate import replay
from kdvfs_sim.trace.table import HOST_SCHEMA, OPS_SCHEMA, Trace

LOCK = Clocks(900, 1000)


def program(ops: list[tuple], host: list[tuple]) -> Program:
    """Rows as in OPS_SCHEMA without pass and iteration; host: (thread, start, duration, action)."""
    trace = Trace(
        ops=pl.DataFrame([(*op, -1, -1) for op in ops], schema=dict(OPS_SCHEMA), orient="row"),
        host=pl.DataFrame(
            [(*action, action[3], None) for action in host], schema=dict(HOST_SCHEMA), orient="row"
        ),
        kinds=(KernelKind(name="k"),),
    )
    return Program.from_trace(trace)


def costs() -> CostTable:
    return CostTable(
        kinds=("k",),
        clocks=(AUTO_CLOCKS, LOCK),
        duration_ns=np.ones((1, 2)),
        power_w=np.full((1, 2), 100.0),
        effective=np.array([[0, 1]], dtype=np.int32),
        idle_power_w=np.full(2, 100.0),
        recorded=0,
        requestable=np.ones(2, dtype=np.bool_),
    )


def test_an_operation_held_while_the_host_is_moved_starts_once() -> None:
    # the request for stream 2 blocks the thread while operation 4 of stream 1 is held: moving the launches
    # of that thread must not have it considered, and held, a second time
    held = program(
        [
            (0, 0, 0, 0, 11, 0),
            (0, 0, 1, 3, 0, 1),
            (0, 0, 0, 11, 0, 1),
            (0, 0, 0, 11, 3, 1),
            (0, 0, 1, 11, 0, 1),
            (0, 0, 0, 14, 4, 2),
            (0, 0, 2, 14, 0, 2),
        ],
        [(0, 0, 0, "launch"), (0, 3, 0, "launch"), (0, 12, 0, "launch"), (0, 12, 0, "sync")],
    )
    schedule = Schedule(
        requests=(
            ClockRequest(clocks=AUTO_CLOCKS, launch=0, stream=0),
            ClockRequest(clocks=LOCK, launch=0, stream=2),
        ),
        protocol="drain",
    )
    result = replay(
        held,
        costs=costs(),
        schedule=schedule,
        protocol=DRAIN.with_timing(relaunch_ns=7),
        switching=SwitchTable.zero(2),
    )
    assert result.timeline.start_ns.tolist() == [7, 7, 25, 25, 25, 28, 25]
    assert result.timeline.end_ns.tolist() == [18, 7, 25, 28, 25, 32, 25]


def test_a_launch_that_has_run_cannot_be_drained_for() -> None:
    chain = program([(0, 0, 0, 0, 5, None), (0, 0, 0, 5, 5, None)], [])
    requests = (
        ClockRequest(clocks=LOCK, launch=0),
        ClockRequest(clocks=AUTO_CLOCKS, launch=1),
        ClockRequest(clocks=LOCK, launch=0),
    )
    for boundary in ("periodic", "one-shot"):
        with pytest.raises(ScheduleError, match="request 2"):
            replay(
                chain,
                costs=costs(),
                schedule=Schedule(requests=requests, protocol="drain"),
                protocol=DRAIN,
                switching=SwitchTable.zero(2),
                boundary=boundary,
            )
