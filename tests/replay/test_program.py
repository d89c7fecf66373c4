"""What a trace is compiled into."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.core.errors import InputError
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.replay.links import NO_ROOT
from kdvfs_sim.replay.program import LONG_AGO, Program
from kdvfs_sim.replay.simulate import replay
from kdvfs_sim.testing.strategies import cost_tables, single_stream, traces
from kdvfs_sim.trace.readers import read_trace
from kdvfs_sim.trace.table import Trace
from tests.replay.test_laws import chain
from tests.replay.test_schedules import COSTS, launched


@given(traces(n_devices=2))
def test_no_dependency_is_acausal_and_one_explains_each_start(trace: Trace) -> None:
    p = Program.from_trace(trace)
    start, end = p.recorded_start_ns, p.recorded_start_ns + p.duration_ns
    explained = p.not_before_ns == start
    for op in range(p.n_ops):
        bounds = []
        if p.after[op] >= 0:
            assert p.after[op] < op
            assert p.after_lag_ns[op] >= 0
            bounds.append(end[p.after[op]] + p.after_lag_ns[op])
        if p.overlap_ns[op] >= 0:
            assert p.overlap_ns[op] < p.duration_ns[p.previous[op]]
            bounds.append(start[p.previous[op]] + p.overlap_ns[op])
        if p.launch[op] >= 0:
            assert p.launch_lag_ns[op] >= 0
            bounds.append(p.host.start_ns[p.launch[op]] + p.launch_lag_ns[op])
        for on in np.flatnonzero(p.wait_op == op):
            assert p.wait_lag_ns[on] >= 0
            bounds.append(end[p.wait_on[on]] + p.wait_lag_ns[on])
        assert all(bound <= start[op] for bound in bounds)
        assert explained[op] == (not bounds)
        assert explained[op] or max(bounds) == start[op]


@given(traces(), st.data(), st.booleans())
def test_a_scaled_program_runs_and_what_is_waited_for_is_a_part(
    trace: Trace, data: st.DataObject, down: bool
) -> None:
    p = Program.from_trace(trace)
    factors = st.floats(0.1, 10.0)
    scaled = p.scaled(np.array([data.draw(factors) for _ in p.kinds]), down=down)
    waits = np.flatnonzero(p.overlap_ns >= 0)
    assert (scaled.overlap_ns[waits] >= 0).all()
    assert (scaled.overlap_ns[waits] <= scaled.duration_ns[p.previous[waits]]).all()
    assert (scaled.overlap_ns[p.overlap_ns < 0] == -1).all()
    assert replay(scaled).timeline.end_ns.size == p.n_ops


@given(traces())
def test_host_actions_wait_only_for_earlier_ones(trace: Trace) -> None:
    p = Program.from_trace(trace)
    host, everyone = p.host, np.arange(len(p.host))
    assert (host.prev_any < everyone).all()
    assert (host.prev_own < everyone).all()
    assert (host.gap_ns >= 0).all()
    for action, op in enumerate(host.awaits.tolist()):
        assert op < 0 or p.last_action[op] < action


@given(traces())
def test_roots_tell_what_the_chain_of_calls_tells(trace: Trace) -> None:
    """The start of every launch, from its root and from the call before it."""
    p = Program.from_trace(trace)
    host, links = p.host, p.links.host
    recorded = host.start_ns
    ends = {-1: 0}
    for i in range(len(host)):
        ended = p.recorded_start_ns + p.duration_ns
        end = recorded[i] + host.length_ns[i]
        if host.awaits[i] >= 0:
            end = max(end, ended[host.awaits[i]] + host.await_lag_ns[i])
        ends[i] = end
        if links.root[i] != NO_ROOT:
            assert ends[links.root[i]] + links.root_lag_ns[i] == recorded[i]


def test_a_host_that_is_late_by_its_clock_is_moved_as_a_whole() -> None:
    program = launched([(0, 0, 10), (0, 20, 10)], [(3, 2), (8, 2)])
    assert program.host_shift_ns == 3
    assert program.host.start_ns.tolist() == [0, 5]
    assert (program.launch_lag_ns >= 0).all()


def test_a_synchronization_that_waited_keeps_its_residual_and_one_that_did_not_its_length() -> None:
    calls = [
        (1, -10, 2, "launch", "a", None),
        (1, 0, 103, "sync", "b", None),  # 3 ns after the end of the operation
        (1, 200, 7, "sync", "c", None),  # nothing left to wait for
    ]
    trace = chain([(0, 0, 100)], calls)
    ops = trace.ops.with_columns(host=pl.Series([0], dtype=pl.Int64))
    host = Program.from_trace(replace(trace, ops=ops)).host
    assert host.awaits.tolist() == [-1, 0, 0]
    assert host.length_ns.tolist() == [2, 0, 7]
    assert host.await_lag_ns.tolist() == [0, 3, 0]


def test_operations_of_one_stream_in_a_long_one_follow_the_last_to_end() -> None:
    program = Program.from_trace(chain([(0, 0, 10), (0, 2, 3), (0, 12, 5)]))
    assert program.after.tolist() == [-1, -1, 0]  # not the one before it, which had ended earlier
    assert program.overlap_ns.tolist() == [-1, 2, -1]
    assert program.not_before_ns.tolist() == [0, LONG_AGO, LONG_AGO]


def test_one_device_of_several() -> None:
    trace = chain([(0, 0, 5), (0, 10, 5)])
    two = replace(trace, ops=trace.ops.with_columns(device=pl.Series([0, 1], dtype=pl.Int32)))
    assert Program.from_trace(two).devices == (0, 1)
    assert Program.from_trace(two, device=1).row.tolist() == [1]
    with pytest.raises(InputError, match=r"no device 2; devices: \[0, 1\]"):
        Program.from_trace(two, device=2)


# -- chains ------------------------------------------------------------------------------------------------


def test_a_stream_without_a_host_adds_up() -> None:
    found = Program.from_trace(chain([(0, 0, 5), (1, 8, 5)])).chain()
    assert found.additive
    assert found.lag_ns.tolist() == found.min_lag_ns.tolist() == [0, 3]
    assert found.kind.tolist() == [0, 1]
    assert found.passes is None


def test_a_host_far_enough_ahead_adds_up_and_one_that_binds_does_not() -> None:
    fast = replace(COSTS, duration_ns=np.asarray([[1.0, 0.5, 2.0]] * 3))
    rows, calls = [(0, 0, 100), (0, 101, 100), (0, 202, 100)], [(-300, 5), (-290, 5), (-280, 5)]
    ahead = launched(rows, calls)
    assert ahead.chain(fast).additive
    assert not ahead.chain().additive
    assert "without a cost table" in ahead.chain().reason
    near = launched(rows, [(-80, 5), (11, 5), (112, 5)])  # 90 before each start, as the first
    assert near.chain(replace(COSTS, duration_ns=np.ones((3, 3)))).additive
    bound = near.chain(fast)
    assert not bound.additive
    assert "at the fastest clocks 2 of 3 gaps" in bound.reason
    assert (bound.min_lag_ns <= bound.lag_ns).all()


def test_a_launch_that_waits_for_the_host_at_every_clock_does_not_add_up() -> None:
    """Its gap is as recorded whatever the clocks; a device that is held up finds it shorter."""
    copies = replace(COSTS, duration_ns=np.ones((3, 3)))
    late = launched([(0, 0, 100), (0, 3000, 100), (0, 3101, 100)], [(-10, 5), (2990, 5), (2996, 5)])
    found = late.chain(copies)
    assert not found.additive
    assert "1 of 3 launches wait for the host at all clocks (the first is launch 1)" in found.reason
    assert found.floor_ns is not None
    assert found.floor_ns.tolist() == [3000, 101, 0]


def test_clocks_that_a_run_may_only_start_at_count() -> None:
    times = np.asarray([[1.0, 1.0, 0.5]] * 3)
    fast = replace(COSTS, duration_ns=times, requestable=np.array([True, True, False]))
    near = launched([(0, 0, 100), (0, 101, 100), (0, 202, 100)], [(-80, 5), (11, 5), (112, 5)])
    assert near.chain(fast).additive
    assert near.chain(fast, start=fast.clocks[1]).additive
    assert "at the fastest clocks" in near.chain(fast, start=fast.clocks[2]).reason


@given(single_stream(), cost_tables(), st.data())
def test_an_additive_chain_adds_up_at_any_clocks(trace: Trace, costs: CostTable, data: st.DataObject) -> None:
    program = Program.from_trace(trace)
    found = program.chain(costs)
    mixed = data.draw(st.lists(st.sampled_from(costs.clocks), min_size=len(found), max_size=len(found)))
    for plan in (*([clocks] * len(found) for clocks in costs.clocks), mixed):
        timeline = replay(program, costs=costs, schedule=Schedule.from_assignment(plan)).timeline
        gaps = timeline.start_ns[1:] - timeline.end_ns[:-1]
        assert (gaps >= found.min_lag_ns[1:]).all()
        if found.additive:
            assert gaps.tolist() == found.lag_ns[1:].tolist()


def test_one_stream_of_several_has_to_be_named(shared: Path) -> None:
    name = "h200_gpt3xl_layer_train_two_streams_copies.json.gz"
    program = Program.from_trace(read_trace(shared / "traces" / name))
    with pytest.raises(InputError, match="several streams; name one as device/stream: 0/7, 0/53"):
        program.chain()
    with pytest.raises(InputError, match="no stream 1 on device 0"):
        program.chain(stream=(0, 1))
    found = program.chain(stream=(0, 53))
    assert not found.additive
    assert "other streams" in found.reason
    assert len(found) == int((program.stream == 1).sum())
