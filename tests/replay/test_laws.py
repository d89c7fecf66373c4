"""What has to hold of any replay, whatever the numbers."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kdvfs_sim.core.clocks import AUTO_CLOCKS, Clocks
from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.core.problem import Metrics
from kdvfs_sim.core.schedule import ClockRequest, Schedule
from kdvfs_sim.core.switching import DRAIN, FOLLOW, FREE, LOOKAHEAD, SwitchTable
from kdvfs_sim.replay.program import Program
from kdvfs_sim.replay.simulate import ReplayResult, replay
from kdvfs_sim.testing.notation import costs, trace
from kdvfs_sim.testing.strategies import Scene, cost_tables, scenes, single_stream, traces
from kdvfs_sim.trace.table import HOST_SCHEMA, OPS_SCHEMA, Trace


def run(scene: Scene, **changes: Any) -> ReplayResult:
    arguments = {"program": scene.program, **scene.arguments, **changes}
    return replay(arguments.pop("program"), **arguments)


def times(result: ReplayResult) -> tuple[list[int], list[int]]:
    return result.timeline.start_ns.tolist(), result.timeline.end_ns.tolist()


def check_same(a: Metrics, b: Metrics, gross_j: float = 0.0) -> None:
    """``gross_j``: of what either energy is the sum, where the two are sums in another order."""
    assert (a.time_s, a.n_switches, a.switching_s, a.flags) == (
        b.time_s,
        b.n_switches,
        b.switching_s,
        b.flags,
    )
    check_close(a.energy_j, b.energy_j, gross_j)


def check_close(a: float | None, b: float | None, gross_j: float = 0.0) -> None:
    assert (a is None) == (b is None)
    if a is not None and b is not None:
        assert math.isclose(a, b, rel_tol=1e-9, abs_tol=max(1e-9 * gross_j, 1e-18))


# -- time and energy are booked whole ----------------------------------------------------------------


@given(scenes(trace=traces(n_devices=2)))
def test_intervals_cover_the_run_and_energy_is_their_integral(scene: Scene) -> None:
    result = run(scene)
    timeline, energy = result.timeline, 0.0
    unknown = False
    for device in scene.program.devices:
        rows = timeline.intervals.filter(pl.col("device") == device)
        edges = [*rows["start_ns"], timeline.time_ns][: rows.height + 1]
        assert edges[1:] == rows["end_ns"].to_list()
        assert timeline.time_ns == 0 or edges[0] == 0
        assert (rows["end_ns"] > rows["start_ns"]).all()
        lengths = (rows["end_ns"] - rows["start_ns"]).to_list()
        for power, length in zip(rows["power_w"], lengths, strict=True):
            unknown |= power is None
            energy += (power or 0.0) * length * 1e-9
    energy += timeline.switches.filter(pl.col("landed_ns").is_not_null())["extra_energy_j"].sum()
    assert unknown == (result.metrics.energy_j is None)
    landed_from_before = result.n_rounds > 1
    if not unknown and not landed_from_before:
        check_close(result.metrics.energy_j, energy, timeline.gross_energy_j)


@given(scenes(costs=cost_tables(unknown_power=False)))
def test_launches_idle_floor_and_switches_add_up(scene: Scene) -> None:
    result = run(scene)
    timeline = result.timeline
    idle = dict(zip(scene.costs.clocks, scene.costs.idle_power_w, strict=True))
    floor = 0.0
    for d in timeline.intervals_of:
        for state, start, end in zip(d.state, d.start_ns, d.end_ns, strict=True):
            floor += idle[timeline.clocks[timeline.states.effective[state]]] * (end - start) * 1e-9
    extra = sum(d.extra_energy_j for d in timeline.intervals_of)
    booked = timeline.launches["energy_j"].sum() + floor + extra
    check_close(result.metrics.energy_j, booked, timeline.gross_energy_j)


@given(scenes(trace=traces(n_devices=2)))
def test_operations_keep_their_dependencies(scene: Scene) -> None:
    p, (start, end) = scene.program, times(run(scene))
    for op in range(p.n_ops):
        if p.after[op] >= 0:
            assert start[op] >= end[p.after[op]] + p.after_lag_ns[op]
        if p.previous[op] >= 0:
            assert start[op] >= start[p.previous[op]]
    for op, on, lag in zip(p.wait_op, p.wait_on, p.wait_lag_ns, strict=True):
        assert start[op] >= end[on] + lag


@given(scenes())
def test_the_same_replay_twice_is_the_same(scene: Scene) -> None:
    first, second = run(scene), run(scene)
    assert times(first) == times(second)
    assert first.metrics == second.metrics
    assert first.n_events == second.n_events


# -- work in flight ------------------------------------------------------------------------------------


@given(
    st.integers(0, 10_000),
    st.lists(st.tuples(st.integers(1, 4000), st.integers(0, 3)), max_size=6),
    st.lists(st.floats(0.2, 5), min_size=4, max_size=4),
)
def test_work_is_conserved_when_clocks_change_in_a_kernel(
    work: int, changes: list[tuple[int, int]], durations: list[float]
) -> None:
    """Each stretch of time, divided by its ratio, is work; they add up to the kernel, but for rounding."""
    clocks = (AUTO_CLOCKS, *(Clocks(mhz, 1000) for mhz in (900, 600, 300)))
    costs = CostTable(
        kinds=("k0", "k1", "k2"),
        clocks=clocks,
        duration_ns=np.asarray([durations] * 3),
        power_w=np.full((3, 4), 100.0),
        effective=np.tile(np.arange(4, dtype=np.int32), (3, 1)),
        idle_power_w=np.full(4, 50.0),
        recorded=0,
        requestable=np.ones(4, dtype=bool),
    )
    program = Program.from_trace(chain([(0, 0, work)]))
    requests = [ClockRequest(clocks=clocks[row], launch=0, offset_ns=at) for at, row in sorted(changes)]
    result = replay(
        program,
        costs=costs,
        schedule=Schedule(requests=tuple(requests)),
        protocol=LOOKAHEAD,
        switching=SwitchTable.uniform(4, host_call_ns=0, switching_ns=1),
        boundary="one-shot",
    )
    ratio = dict(zip((c.sm_mhz for c in clocks), costs.ratio[0], strict=True))
    done = 0.0
    timeline = result.timeline.intervals
    for start, end, sm in timeline.select("start_ns", "end_ns", "effective_sm_mhz").rows():
        done += (end - start) / ratio[AUTO_CLOCKS.sm_mhz if sm is None else sm]
    slack = sum(0.5 / r for r in costs.ratio[0]) * (timeline.height + 1)
    assert abs(done - work) <= slack


def chain(rows: list[tuple[int, int, int]], host: list[tuple[Any, ...]] | None = None) -> Trace:
    """(kind, start_ns, duration_ns) of each operation of one stream."""
    columns = [(kind, 0, 0, start, duration, None, -1, -1) for kind, start, duration in rows]
    return Trace(
        ops=pl.DataFrame(columns, schema=dict(OPS_SCHEMA), orient="row"),
        kinds=tuple(KernelKind(name=f"k{i}") for i in range(3)),
        host=pl.DataFrame(host or [], schema=dict(HOST_SCHEMA), orient="row"),
    )


# -- what must not matter --------------------------------------------------------------------------------


@given(scenes(), st.data())
def test_requests_for_the_clocks_already_requested_are_free(scene: Scene, data: st.DataObject) -> None:
    requests = list(scene.schedule.requests)
    assume(requests)
    at = data.draw(st.integers(0, len(requests) - 1))
    doubled = [*requests[: at + 1], requests[at], *requests[at + 1 :]]
    check_same(
        run(scene).metrics, run(scene, schedule=replace(scene.schedule, requests=tuple(doubled))).metrics
    )


@given(scenes())
def test_a_schedule_and_its_normal_form_are_the_same(scene: Scene) -> None:
    normal = scene.schedule.normalized()
    assert normal.normalized() == normal
    check_same(run(scene).metrics, run(scene, schedule=normal).metrics)


@given(scenes(), st.permutations(range(3)), st.integers(0, 5))
def test_names_of_streams_threads_and_kernels_do_not_matter(
    scene: Scene, streams: list[int], shift: int
) -> None:
    trace = scene.trace
    renamed = replace(
        trace,
        ops=trace.ops.with_columns(
            pl.col("stream").replace_strict(dict(enumerate(streams)), return_dtype=pl.Int64)
        ),
        host=trace.host.with_columns(-pl.col("thread") + shift),
        kinds=tuple(KernelKind(name=f"other {i}") for i in range(3)),
    )
    requests = tuple(replace(r, stream=streams[r.stream]) for r in scene.schedule.requests)
    other = run(
        scene, program=Program.from_trace(renamed), schedule=replace(scene.schedule, requests=requests)
    )
    first = run(scene)
    assert times(first) == times(other)
    same_reason = replace(other.metrics, energy_reason=first.metrics.energy_reason)
    check_same(first.metrics, same_reason, first.timeline.gross_energy_j)


@given(scenes(), st.randoms(use_true_random=False))
def test_the_order_of_rows_of_one_start_on_different_streams_does_not_matter(
    scene: Scene, random: Any
) -> None:
    ops = scene.trace.ops.with_row_index("old")
    key = [random.random() for _ in range(ops.height)]
    # within a stream the order of rows is the order of launches
    by_stream = ops.with_columns(key=pl.Series(key)).with_columns(
        pl.col("key").sort().over("device", "stream")
    )
    moved = by_stream.sort("start_ns", "key", "old")
    new_row = {old: new for new, old in enumerate(moved["old"])}
    waits = scene.trace.waits.with_columns(pl.all().replace_strict(new_row, return_dtype=pl.Int64))
    trace = replace(scene.trace, ops=moved.drop("old", "key"), waits=waits)
    assume(all(on < op for op, on in waits.rows()))
    first, second = run(scene), run(scene, program=Program.from_trace(trace))
    for old, new in new_row.items():
        assert first.timeline.start_ns[old] == second.timeline.start_ns[new]
        assert first.timeline.end_ns[old] == second.timeline.end_ns[new]
    check_same(first.metrics, second.metrics, first.timeline.gross_energy_j)


@given(scenes(costs=cost_tables(may_cap=False)), st.floats(0.25, 8))
def test_power_scaled_scales_energy_and_nothing_else(scene: Scene, factor: float) -> None:
    costs, switching = scene.costs, scene.switching
    scaled = run(
        scene,
        costs=replace(costs, power_w=costs.power_w * factor, idle_power_w=costs.idle_power_w * factor),
        switching=replace(switching, extra_energy_j=switching.extra_energy_j * factor),
    )
    first = run(scene)
    assert times(first) == times(scaled)
    energy = first.metrics.energy_j
    gross_j = scaled.timeline.gross_energy_j
    check_close(None if energy is None else energy * factor, scaled.metrics.energy_j, gross_j)


@given(scenes(trace=traces(n_devices=2, overlaps=False, host=False)))
def test_devices_that_share_nothing_do_not_disturb_each_other(scene: Scene) -> None:
    trace = replace(scene.trace, waits=scene.trace.waits.clear())
    both = run(scene, program=Program.from_trace(trace), boundary="one-shot").timeline
    for device in trace.devices:
        program = Program.from_trace(trace, device=device)
        requests = tuple(r for r in scene.schedule.requests if r.device == device)
        schedule = replace(scene.schedule, requests=requests)
        alone = run(scene, program=program, schedule=schedule, boundary="one-shot").timeline
        assert alone.start_ns.tolist() == both.start_ns[program.row].tolist()
        assert alone.end_ns.tolist() == both.end_ns[program.row].tolist()


# -- protocols ---------------------------------------------------------------------------------------------


@given(scenes(protocol=st.sampled_from([DRAIN, FOLLOW, LOOKAHEAD]), trace=single_stream(host=False)))
def test_changes_that_cost_nothing_are_free(scene: Scene) -> None:
    """Without a host: a launch thread that drains the GPU loses its lead even where the change is free."""
    requests = tuple(replace(r, offset_ns=0) for r in scene.schedule.requests)
    schedule = replace(scene.schedule, requests=requests)
    zero = run(scene, schedule=schedule, switching=SwitchTable.zero(scene.costs.n_clocks))
    assume("requests_dropped" not in zero.metrics.flags)
    free = run(scene, schedule=schedule, protocol=FREE)
    assert times(zero) == times(free)
    check_same(zero.metrics, free.metrics)


@given(scenes())
def test_free_changes_nothing_but_speed(scene: Scene) -> None:
    """One clock for everything, asked for by a request or given as the start, is the same."""
    schedule = Schedule(requests=scene.schedule.requests[:1])
    assume(schedule.requests)
    schedule = replace(schedule, requests=(replace(schedule.requests[0], offset_ns=0),))
    asked = run(scene, schedule=schedule, protocol=FREE, boundary="periodic")
    given_ = run(scene, schedule=None, start=schedule.requests[0].clocks, boundary="periodic")
    assert times(asked) == times(given_)
    check_same(asked.metrics, given_.metrics)


@given(scenes(trace=traces(n_devices=2)))
def test_landings_are_a_switching_time_apart_and_requests_a_call(scene: Scene) -> None:
    assume(scene.protocol.charged)
    switches = run(scene, boundary="one-shot").timeline.switches
    for device in scene.program.devices:
        rows = switches.filter(pl.col("device") == device).rows(named=True)
        for before, after in itertools.pairwise(rows):
            assert before["landed_ns"] is not None
            assert after["requested_ns"] >= before["landed_ns"]
            assert after["requested_ns"] >= before["requested_ns"] + before["host_call_ns"]


@given(scenes(protocol=st.just(DRAIN), trace=traces(overlaps=False)))
def test_a_drained_device_is_idle_while_it_switches(scene: Scene) -> None:
    result = run(scene)
    start, end = times(result)
    for row in result.timeline.switches.rows(named=True):
        done = max(row["landed_ns"], row["requested_ns"] + row["host_call_ns"]) + scene.protocol.relaunch_ns
        for s, e in zip(start, end, strict=True):
            assert e <= row["requested_ns"] or s >= done


# -- boundaries --------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(1, 12)), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(1, 12)), min_size=1, max_size=5),
    cost_tables(),
    st.integers(0, 9),
    st.data(),
)
def test_two_chains_one_after_the_other_add_up(
    first: list[Any], second: list[Any], costs: CostTable, gap: int, data: st.DataObject
) -> None:
    """The second starts at the clocks at which the first ends; the gap between them is idle at those."""

    def rows(parts: list[Any], now: int) -> list[tuple[int, int, int]]:
        out = []
        for i, (kind, lag, duration) in enumerate(parts):
            now += lag if i else 0
            out.append((kind, now, duration))
            now += duration
        return out

    a = rows(first, 0)
    joint = a[-1][1] + a[-1][2] + gap
    clocks = st.sampled_from(costs.clocks)
    plan_a = [data.draw(clocks) for _ in first]
    plan_b = [data.draw(clocks) for _ in second]
    plan_b[0] = plan_a[-1]

    def measure(trace: Trace, plan: list[Clocks]) -> Metrics:
        schedule = Schedule.from_assignment(plan)
        return replay(Program.from_trace(trace), costs=costs, schedule=schedule, boundary="one-shot").metrics

    both = measure(chain(a + rows(second, joint)), plan_a + plan_b)
    one, two = measure(chain(a), plan_a), measure(chain(rows(second, 0)), plan_b)
    assert round(both.time_s * 1e9) == round(one.time_s * 1e9) + gap + round(two.time_s * 1e9)
    idle = costs.idle_power_w[costs.index(plan_a[-1])] * gap * 1e-9 if gap else 0.0
    energies = (one.energy_j, two.energy_j, None if math.isnan(idle) else idle)
    total = None if None in energies else sum(e for e in energies if e is not None)
    check_close(both.energy_j, total)


@given(scenes(trace=single_stream(host=False, max_ops=5)))
def test_a_settled_period_repeats(scene: Scene) -> None:
    """K periods written out and started as the period was give the last one's time and energy."""
    once = run(scene, boundary="periodic")
    assume("periodic_not_settled" not in once.metrics.flags and not once.metrics.flags)
    p, n, k = scene.program, scene.program.n_ops, 4
    assume(p.recorded_start_ns[0] == 0)
    ends = p.recorded_start_ns + p.duration_ns
    ops = pl.concat([scene.trace.ops.with_columns(pl.col("start_ns") + i * int(ends[-1])) for i in range(k)])
    program = Program.from_trace(replace(scene.trace, ops=ops))
    # where two periods meet, the program must wait for nothing but the end of the one before
    assume(all(program.after_lag_ns[i * n] == 0 for i in range(1, k)))
    requests = tuple(replace(r, launch=r.launch + i * n) for i in range(k) for r in scene.schedule.requests)
    long = run(
        scene,
        program=program,
        schedule=replace(scene.schedule, requests=requests),
        boundary="periodic",
    )
    assert "periodic_not_settled" not in long.metrics.flags
    assert round(long.metrics.time_s * 1e9) == k * round(once.metrics.time_s * 1e9)
    assert long.metrics.n_switches == k * once.metrics.n_switches
    check_close(long.metrics.energy_j, None if once.metrics.energy_j is None else k * once.metrics.energy_j)


@given(scenes(trace=single_stream()))
def test_one_shot_change_after_the_end_never_lands(scene: Scene) -> None:
    result = run(scene, boundary="one-shot")
    for row in result.timeline.switches.rows(named=True):
        assert row["landed_ns"] is None or row["landed_ns"] <= result.timeline.time_ns
        assert row["requested_ns"] <= result.timeline.time_ns


@pytest.mark.parametrize("idle_w", [77.7, 61.3])
def test_kernels_that_take_idle_power_away_to_nothing_leave_nothing(idle_w: float) -> None:
    """Three at once, each a third of the idle power below it: 1e-13 J of rounding would be an energy to save
    from, or one below 0."""
    part_w = idle_w * 2 / 3
    table = costs(["auto"], time=[[1]], power_w=[[part_w]], idle_w=[idle_w])
    assert idle_w + 3 * (part_w - idle_w) != 0
    result = replay(Program.from_trace(trace(*((0, 0, 10**9, s) for s in range(3)))), costs=table)
    assert result.metrics.energy_j == 0
    assert result.timeline.gross_energy_j == pytest.approx(2 * idle_w)
