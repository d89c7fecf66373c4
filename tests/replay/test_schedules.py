"""Schedules that do not fit, device queues, and the small print of the protocols by example."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from kdvfs_sim.core.clocks import AUTO_CLOCKS, Clocks
from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.core.errors import InputError, InvariantError, ScheduleError, UnsupportedClocksError
from kdvfs_sim.core.schedule import ClockRequest, Schedule
from kdvfs_sim.core.switching import DRAIN, FOLLOW, FREE, LOOKAHEAD, SwitchProtocol, SwitchTable
from kdvfs_sim.replay.program import Program
from kdvfs_sim.replay.simulate import ReplayResult, replay
from kdvfs_sim.replay.timeline import Timeline
from kdvfs_sim.testing.notation import trace
from kdvfs_sim.testing.reference import reference_replay
from kdvfs_sim.testing.strategies import Scene, scenes, traces
from tests.replay.test_laws import chain

SLOW, SLOWER = Clocks(500, 1000), Clocks(250, 1000)
COSTS = CostTable(
    kinds=("k0", "k1", "k2"),
    clocks=(AUTO_CLOCKS, SLOW, SLOWER),
    duration_ns=np.asarray([[1.0, 2.0, 4.0]] * 3),
    power_w=np.asarray([[300.0, 200.0, 150.0]] * 3),
    effective=np.tile(np.arange(3, dtype=np.int32), (3, 1)),
    idle_power_w=np.asarray([100.0, 80.0, 70.0]),
    recorded=0,
    requestable=np.ones(3, dtype=bool),
)
SWITCHING = SwitchTable.uniform(3, host_call_ns=10, switching_ns=40)
TWO = Program.from_trace(chain([(0, 0, 100), (0, 110, 100)]))


def shot(program: Program, protocol: SwitchProtocol, *requests: Any, **others: Any) -> ReplayResult:
    """A one-shot replay of (clocks, launch, offset) requests."""
    schedule = Schedule(
        requests=tuple(ClockRequest(clocks=c, launch=i, offset_ns=offset) for c, i, offset in requests)
    )
    arguments = {"costs": COSTS, "switching": SWITCHING, "boundary": "one-shot", **others}
    return replay(program, schedule=schedule, protocol=protocol, **arguments)


def spans(result: ReplayResult) -> list[tuple[int, int]]:
    return list(zip(result.timeline.start_ns.tolist(), result.timeline.end_ns.tolist(), strict=True))


# -- protocols by example ----------------------------------------------------------------------------


def test_free_changes_at_the_boundary() -> None:
    assert spans(shot(TWO, FREE, (SLOW, 1, 0))) == [(0, 100), (110, 310)]


def test_drain_waits_switches_and_relaunches() -> None:
    result = shot(TWO, DRAIN.with_timing(relaunch_ns=5), (SLOW, 1, 0))
    assert spans(result) == [(0, 100), (110 + 40 + 5, 355)]
    energy = 300 * 100 + 100 * (10 + 40) + 80 * 5 + 200 * 200
    assert result.metrics.energy_j == pytest.approx(energy * 1e-9)
    assert result.metrics.switching_s == pytest.approx(40e-9)


def test_follow_runs_on_until_the_change_lands() -> None:
    result = shot(TWO, FOLLOW.with_timing(trigger_ns=20), (SLOW, 0, 0))
    # lands at 60: 40 of 100 are left, at half the speed 80
    assert spans(result) == [(0, 140), (150, 350)]


def test_lookahead_asks_early() -> None:
    assert spans(shot(TWO, LOOKAHEAD, (SLOW, 0, 70))) == [(0, 100), (110, 310)]


def test_a_stall_makes_no_progress_and_draws_idle_power() -> None:
    stalled = replace(SWITCHING, stall_ns=SWITCHING.switching_ns // 4)
    result = shot(TWO, LOOKAHEAD, (SLOW, 0, 10), switching=stalled)
    # runs 0..40, stalls 40..50, then 60 are left at half speed
    assert spans(result) == [(0, 170), (180, 380)]
    power = result.timeline.intervals.select("start_ns", "power_w").rows()
    assert (40, 100.0) in power
    assert (50, 200.0) in power


def launched(rows: list[tuple[int, int, int]], calls: list[tuple[int, int]]) -> Program:
    """A chain whose operations are launched by (start_ns, length_ns) calls of one thread."""
    host = [(1, start, length, "launch", "cudaLaunchKernel", None) for start, length in calls]
    trace = chain(rows, host)
    return Program.from_trace(
        replace(trace, ops=trace.ops.with_columns(host=np.arange(len(rows), dtype=np.int64)))
    )


def test_a_request_on_the_launch_thread_moves_the_next_launch() -> None:
    ahead = launched([(0, 0, 10), (0, 20, 10)], [(-20, 5), (0, 5)])
    assert spans(shot(ahead, FOLLOW, (SLOW, 0, 0))) == [(0, 10), (20, 30)]  # launched by then
    behind = launched([(0, 0, 10), (0, 20, 10)], [(-20, 5), (8, 5)])
    assert spans(shot(behind, FOLLOW, (SLOW, 0, 0))) == [(0, 10), (30, 40)]
    assert spans(shot(behind, LOOKAHEAD, (SLOW, 0, 0))) == [(0, 10), (20, 30)]


def test_a_drained_launch_is_made_after_the_request_and_the_thread_loses_its_lead() -> None:
    ahead = launched([(0, 0, 100), (0, 100, 10), (0, 110, 10)], [(-40, 5), (-30, 5), (-20, 5)])
    # the request at 100 is done at 140; the launch is then made, and 10 ns later the next one, whose
    # least lag in the trace is 40
    assert spans(shot(ahead, DRAIN, (SLOW, 1, 0))) == [(0, 100), (140, 160), (190, 210)]


def test_a_drained_launch_keeps_its_own_lag() -> None:
    behind = launched([(0, 0, 10), (0, 100, 10), (0, 110, 5)], [(-70, 5), (30, 5), (35, 5)])
    # reached at 30 and done at 70, but its launch would have let it start at 100 anyhow
    assert spans(shot(behind, DRAIN, (SLOW, 1, 0)))[:2] == [(0, 10), (100, 120)]


def test_a_call_that_outlasts_the_period_delays_the_first_request_of_the_next() -> None:
    calls = SwitchTable.uniform(3, host_call_ns=100, switching_ns=40)
    requests = ((SLOW, 0, 0), (AUTO_CLOCKS, 1, 150))
    result = shot(TWO, LOOKAHEAD, *requests, switching=calls, boundary="periodic")
    assert result.metrics.flags == ()
    asked = result.timeline.switches["requested_ns"].to_list()
    assert asked[0] == asked[1] + 100 - result.timeline.time_ns > 0


def test_the_way_back_is_charged_where_it_lands() -> None:
    result = shot(TWO, LOOKAHEAD, (SLOW, 0, 70), (AUTO_CLOCKS, 1, 170), boundary="periodic")
    # the change back is asked for at 285 and has 10 ns to go when the period ends at 315: so long the
    # first kernel of the next one still runs at half its speed
    assert spans(result) == [(0, 105), (115, 315)]
    assert result.timeline.switches.select("requested_ns", "landed_ns").rows() == [(70, 110), (285, None)]
    assert result.metrics.n_switches == 2
    assert result.n_rounds == 2


# -- device queues ---------------------------------------------------------------------------------------


def test_serial_requests_wait_fifo_lands_in_order_and_the_latest_wins() -> None:
    long = Program.from_trace(chain([(0, 0, 1000)]))
    asked, landed = {}, {}
    for queue in ("serial", "fifo", "latest_wins"):
        protocol = replace(LOOKAHEAD, device_queue=queue)
        switches = shot(long, protocol, (SLOW, 0, 0), (SLOWER, 0, 15)).timeline.switches
        asked[queue] = switches["requested_ns"].to_list()
        landed[queue] = switches["landed_ns"].to_list()
    assert asked == {"serial": [0, 40], "fifo": [0, 15], "latest_wins": [0, 15]}
    assert landed == {"serial": [40, 80], "fifo": [40, 80], "latest_wins": [None, 55]}


@given(scenes(trace=traces(n_devices=2)))
def test_other_queues_leave_whole_timelines(scene: Scene) -> None:
    for queue in ("fifo", "latest_wins"):
        protocol = replace(scene.protocol, device_queue=queue)
        timeline = replay(scene.program, **{**scene.arguments, "protocol": protocol}).timeline
        assert (timeline.end_ns >= timeline.start_ns).all()
        assert timeline.time_ns == timeline.end_ns.max()


# -- what does not fit ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requests", "protocol", "error", "words"),
    [
        ([(SLOW, 2, 0)], FREE, ScheduleError, "launch 2 does not exist; stream 0 has launches 0..1"),
        ([(Clocks(505, 1000), 0, 0)], FREE, UnsupportedClocksError, "nearest: sm=500,mem=1000"),
        ([(SLOW, 0, 5)], FREE, ScheduleError, "offset_ns is 5"),
        ([(SLOW, 0, 5)], DRAIN, ScheduleError, "offset_ns is 5"),
        ([(SLOW, 1, 0), (SLOWER, 0, 0)], DRAIN, ScheduleError, "order requests as their anchors run"),
    ],
)
def test_a_schedule_that_does_not_fit(
    requests: list[Any], protocol: SwitchProtocol, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        shot(TWO, protocol, *requests)


def test_an_unknown_stream() -> None:
    schedule = Schedule(requests=(ClockRequest(clocks=SLOW, launch=0, stream=3),))
    with pytest.raises(ScheduleError, match="no stream 3 on device 0; device/stream: 0/0"):
        replay(TWO, costs=COSTS, schedule=schedule)


def test_without_a_stream_the_only_one_is_meant_and_never_one_of_several() -> None:
    """Streams 0 and 7, and a schedule made for the one that policies drive: it says so, or it is refused."""
    long = (1, 0, 300, 7)
    one, two = Program.from_trace(trace(long)), Program.from_trace(trace(long, (0, 10, 50, 0)))
    for schedule in (
        Schedule.static(SLOW),
        Schedule.static(SLOW, device=0),
        Schedule.static(SLOW, stream=7),
        Schedule.from_assignment([SLOW]),
    ):
        assert replay(one, costs=COSTS, schedule=schedule).timeline.time_ns == 600
        slowly = reference_replay(
            one,
            costs=COSTS,
            schedule=schedule,
            protocol=FREE,
            switching=SwitchTable.zero(3),
            boundary="periodic",
            start=AUTO_CLOCKS,
        )
        assert max(slowly.end_ns) == 600
    with pytest.raises(ScheduleError, match=r"no stream 0 on device 0; device/stream: 0/7"):
        replay(one, costs=COSTS, schedule=Schedule.static(SLOW, stream=0))
    for schedule in (Schedule.static(SLOW), Schedule.from_assignment([SLOW])):
        with pytest.raises(ScheduleError, match=r"several streams; .*: 0/0, 0/7"):
            replay(two, costs=COSTS, schedule=schedule)
    assert replay(two, costs=COSTS, schedule=Schedule.static(SLOW, stream=7)).timeline.time_ns == 600


def test_clocks_that_are_only_effective() -> None:
    costs = replace(COSTS, requestable=np.asarray([True, False, True]))
    with pytest.raises(ScheduleError, match="only ever effective"):
        shot(TWO, FREE, (SLOW, 0, 0), costs=costs)


def test_missing_costs() -> None:
    with pytest.raises(InputError, match="a schedule needs a cost table"):
        shot(TWO, FREE, (SLOW, 0, 0), costs=None)
    with pytest.raises(InputError, match="needs a SwitchTable"):
        shot(TWO, DRAIN, (SLOW, 0, 0), switching=None)
    with pytest.raises(InputError, match="covers 2 clocks, the costs 3"):
        shot(TWO, DRAIN, (SLOW, 0, 0), switching=SwitchTable.zero(2))
    with pytest.raises(InputError, match="needs a cost table"):
        replay(TWO, start=SLOW)


def test_a_duration_that_is_not_known_is_an_error_where_it_is_needed() -> None:
    unknown = COSTS.duration_ns.copy()
    unknown[0, 1] = np.nan
    costs = replace(COSTS, duration_ns=unknown)
    with pytest.raises(InputError, match="no duration is known for kernel kind 'k0' at sm=500,mem=1000"):
        shot(TWO, FREE, (SLOW, 0, 0), costs=costs)
    assert shot(TWO, FREE, (SLOWER, 0, 0), costs=costs).metrics.n_switches == 1


def test_power_that_is_not_known_gives_no_energy_and_says_which() -> None:
    unknown = COSTS.power_w.copy()
    unknown[0, 1] = np.nan
    costs = replace(COSTS, power_w=unknown)
    metrics = shot(TWO, FREE, (SLOW, 1, 0), costs=costs).metrics
    assert metrics.energy_j is None
    assert "'k0' at sm=500,mem=1000" in metrics.energy_reason
    assert shot(TWO, FREE, (SLOWER, 1, 0), costs=costs).metrics.energy_j is not None


def test_recorded_rows_of_another_power_limit_are_the_reference() -> None:
    costs = replace(COSTS, recorded_effective=np.asarray([1, 1, 1], dtype=np.int32))
    assert spans(replay(TWO, costs=costs, boundary="one-shot"))[0] == (0, 50)
    assert spans(replay(TWO, costs=costs, start=SLOW))[0] == (0, 100)


def test_a_timeline_that_contradicts_itself_is_our_bug() -> None:
    timeline = replay(TWO, costs=COSTS).timeline
    hole = replace(timeline.intervals_of[0], end_ns=timeline.intervals_of[0].end_ns - 1)
    with pytest.raises(InvariantError, match="do not cover"):
        replace(timeline, intervals_of=(hole,)).check()
    wrong = replace(timeline.states, power_w=timeline.states.power_w + 1)
    broken: Timeline = replace(timeline, states=wrong)
    with pytest.raises(InvariantError, match="is not the total"):
        broken.check()
