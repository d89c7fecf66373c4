"""Values that no noun may hold are refused when it is made, in one line that says what would be right."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kdvfs_sim.core.clocks import AUTO, AUTO_CLOCKS, Clocks
from kdvfs_sim.core.errors import InputError, ScheduleError
from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.core.problem import Metrics, Objective, Problem, Solution
from kdvfs_sim.core.schedule import ClockRequest, Schedule
from kdvfs_sim.core.schedule_file import read_schedule, write_schedule
from kdvfs_sim.core.switching import DRAIN, FREE, SwitchCost, SwitchProtocol, SwitchTable
from kdvfs_sim.gpu.facts import Fact
from kdvfs_sim.replay.fast import FastEvaluator
from kdvfs_sim.replay.program import Program
from kdvfs_sim.replay.simulate import replay
from kdvfs_sim.study.plans import Budget, Plan
from kdvfs_sim.study.scene import build_scene
from kdvfs_sim.testing.notation import costs, problem, trace
from kdvfs_sim.trace.readers import read_trace

LOCK = Clocks(1410, AUTO)
COSTS = costs(["auto", "sm=1410"], time=[[1, 2]], power_w=[[100, 50]], idle_w=[20, 10])
TRACE = "h200_decode_tiny_kernels"


def _problem(**changes: object) -> Problem:
    posed = problem(trace((0, 0, 1000)), COSTS)
    return replace(posed, **changes)  # type: ignore[arg-type]


def _protocol(**changes: object) -> SwitchProtocol:
    return replace(DRAIN, **changes)  # type: ignore[arg-type]


def _program() -> Program:
    return Program.from_trace(trace((0, 0, 1000)))


MISSPELT: dict[str, tuple[Callable[[], object], str]] = {
    "minimize": (lambda: Objective(minimize="Energy"), "energy, time, edp, ed2p"),  # type: ignore[arg-type]
    "granularity": (lambda: _problem(granularity="kernel"), "static, pass, segment, kind, launch"),
    "aggregation": (lambda: _problem(aggregation="Local"), "local, global"),
    "boundary of a problem": (lambda: _problem(boundary="Periodic"), "periodic, one-shot"),
    "boundary of a schedule": (
        lambda: Schedule(requests=(), boundary="one_shot"),  # type: ignore[arg-type]
        "periodic, one-shot",
    ),
    "boundary of a scene": (
        lambda: build_scene(read_trace(TRACE), boundary="Periodic"),  # type: ignore[arg-type]
        "periodic, one-shot",
    ),
    "boundary of a replay": (
        lambda: replay(_program(), boundary="Periodic"),  # type: ignore[arg-type]
        "periodic, one-shot",
    ),
    "boundary of the fast evaluator": (
        lambda: FastEvaluator(
            _program(),
            costs=COSTS,
            protocol=FREE,
            boundary="one shot",  # type: ignore[arg-type]
        ),
        "periodic, one-shot",
    ),
    "granularity of a plan": (lambda: Plan(granularity="kernel"), "static, pass"),  # type: ignore[arg-type]
    "aggregation of a plan": (
        lambda: Plan(granularity="kind", aggregation="Local"),  # type: ignore[arg-type]
        "local, global",
    ),
    "minimize of a plan": (
        lambda: Plan(granularity="kind", minimize="EDP"),  # type: ignore[arg-type]
        "energy, time, edp, ed2p",
    ),
    "status": (lambda: Solution(status="Optimal"), "optimal, feasible, not exact"),  # type: ignore[arg-type]
    "issuer": (lambda: _protocol(issuer="nobody"), "launch_thread, controller"),
    "device queue": (lambda: _protocol(device_queue="lifo"), "serial, fifo, latest_wins"),
    "category": (lambda: KernelKind(name="k", category="Gemm"), "gemm, attention"),  # type: ignore[arg-type]
    "op class": (lambda: KernelKind(name="k", op_class="copy"), "kernel, memcpy"),  # type: ignore[arg-type]
    "level": (
        lambda: Fact(value=1, source="s", kind="assumed", high=2).at("High"),  # type: ignore[arg-type]
        "low, nominal, high",
    ),
}


@pytest.mark.parametrize("what", MISSPELT)
def test_a_word_that_is_none_of_those_known_is_refused_and_they_are_named(what: str) -> None:
    make, known = MISSPELT[what]
    with pytest.raises(InputError, match=f"right is one of: .*{known}") as caught:
        make()
    assert "\n" not in str(caught.value)


NUMBERS: dict[str, Callable[[], object]] = {
    "launch 1.5": lambda: ClockRequest(clocks=LOCK, launch=1.5),  # type: ignore[arg-type]
    "launch True": lambda: ClockRequest(clocks=LOCK, launch=True),
    "offset nan": lambda: ClockRequest(clocks=LOCK, launch=0, offset_ns=math.nan),  # type: ignore[arg-type]
    "stream 1.5": lambda: ClockRequest(clocks=LOCK, launch=0, stream=1.5),  # type: ignore[arg-type]
    "launch None": lambda: ClockRequest(clocks=LOCK, launch=None),  # type: ignore[arg-type]
    "device text": lambda: ClockRequest(clocks=LOCK, launch=0, device="0"),  # type: ignore[arg-type]
    "clocks text": lambda: ClockRequest(clocks="sm=1410", launch=0),  # type: ignore[arg-type]
    "switching nan": lambda: SwitchCost(host_call_ns=0, switching_ns=math.nan),  # type: ignore[arg-type]
    "host call 0.5": lambda: SwitchCost(host_call_ns=0.5, switching_ns=1),  # type: ignore[arg-type]
    "stall below 0": lambda: SwitchCost(host_call_ns=0, switching_ns=1, stall_ns=-1),
    "energy inf": lambda: SwitchCost(host_call_ns=0, switching_ns=1, extra_energy_j=math.inf),
    "trigger below 0": lambda: _protocol(trigger_ns=-5),
    "relaunch 0.5": lambda: _protocol(relaunch_ns=0.5),
    "table of fractions": lambda: SwitchTable.uniform(2, host_call_ns=0, switching_ns=1.5),  # type: ignore[arg-type]
    "slack nan": lambda: Budget(slack_pct=math.nan),
    "slack below 0": lambda: Budget(slack_pct=-1),
    "slack inf": lambda: Budget(slack_pct=math.inf),
    "energy below 0": lambda: Budget(energy_pct=-1),
    "energy nan": lambda: Budget(energy_pct=math.nan),
    "time nan": lambda: Objective(max_time_s=math.nan),
    "time below 0": lambda: Objective(max_time_s=-1e-9),
    "joules nan": lambda: Objective(minimize="time", max_energy_j=math.nan),
    "joules text": lambda: Objective(minimize="time", max_energy_j="90"),  # type: ignore[arg-type]
    "clock 1410.0": lambda: Clocks(1410.0, AUTO),  # type: ignore[arg-type]
    "clock in Hz": lambda: Clocks(1_410_000_000, AUTO),
    "clock that no float holds": lambda: Clocks(AUTO, 10**400),
    "clock of many digits": lambda: Clocks.parse("sm=" + "9" * 5000),
}


@pytest.mark.parametrize("what", NUMBERS)
def test_a_number_that_cannot_be_is_refused(what: str) -> None:
    with pytest.raises(InputError, match=r"right|a clock is a whole number"):
        NUMBERS[what]()


@pytest.mark.parametrize("name", ["max_time_s", "max_energy_j"])
def test_no_budget_is_none_and_not_infinity(name: str) -> None:
    with pytest.raises(InputError, match="None means no budget"):
        Objective(**{name: math.inf})  # type: ignore[arg-type]


def test_a_share_of_an_energy_that_is_not_known_is_no_budget() -> None:
    auto = Metrics(time_s=1.0, energy_j=None, energy_reason="no power model")
    with pytest.raises(InputError, match="no power model"):
        Budget(energy_pct=90).objective("energy", auto)


def test_a_budget_is_of_time_or_of_energy() -> None:
    assert Budget().slack_pct == 0.6
    assert Budget(energy_pct=90).slack_pct is None
    with pytest.raises(InputError, match="slack_pct or energy_pct, not both"):
        Budget(slack_pct=1, energy_pct=90)


def test_a_request_of_numpy_numbers_is_written_and_read_back(tmp_path: Path) -> None:
    clocks = Clocks(np.int64(1410), np.int32(3201))  # type: ignore[arg-type]
    one = np.int64(1)
    request = ClockRequest(clocks=clocks, launch=one, offset_ns=one, stream=one, device=one)  # type: ignore[arg-type]
    write_schedule(Schedule(requests=(request,)), tmp_path / "s.json")
    assert read_schedule(tmp_path / "s.json").requests == (request,)
    assert {type(v) for v in (request.launch, request.offset_ns, request.stream, request.device)} == {int}


def test_a_stream_that_is_left_out_is_written_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    schedule = Schedule.from_assignment([LOCK, AUTO_CLOCKS])
    write_schedule(schedule, path)
    assert read_schedule(path) == schedule
    assert {(r.device, r.stream) for r in schedule.requests} == {(None, None)}
    short = re.sub(r'"(device|stream)": null, ', "", path.read_text())
    assert "null" not in short
    path.write_text(short)
    assert read_schedule(path) == schedule


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ('"stream": 7', '"strem": 7', "request 0: 'strem' says nothing here"),
        ('"launch": 3', '"lunch": 3', "request 0: 'lunch' says nothing here"),
        ('"launch": 3, ', "", "request 0: launch is None; a whole number is right"),
        ('"launch": 3', '"launch": null', "request 0: launch is None; a whole number is right"),
        ('"stream": 7', '"stream": "7"', "request 0: stream is '7'; a whole number is right"),
    ],
)
def test_a_request_in_a_file_says_what_it_is_anchored_at(
    tmp_path: Path, before: str, after: str, words: str
) -> None:
    path = tmp_path / "s.json"
    write_schedule(Schedule(requests=(ClockRequest(clocks=LOCK, launch=3, stream=7),)), path)
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    with pytest.raises(ScheduleError, match=words):
        read_schedule(path)


def test_without_a_device_all_requests_are_of_one() -> None:
    first = ClockRequest(clocks=LOCK, launch=0)
    again = ClockRequest(clocks=LOCK, launch=1, device=0)
    back = ClockRequest(clocks=AUTO_CLOCKS, launch=2, device=0)
    last = ClockRequest(clocks=LOCK, launch=3)
    assert Schedule(requests=(first, again, back, last)).normalized().requests == (first, back, last)


def test_numpy_times_of_a_change_become_plain() -> None:
    cost = SwitchCost(host_call_ns=np.int64(1), switching_ns=np.int64(2))  # type: ignore[arg-type]
    assert (type(cost.host_call_ns), type(cost.switching_ns)) == (int, int)


def test_a_schedule_under_a_protocol_that_no_file_may_name_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="known: free, drain"):
        write_schedule(Schedule(requests=(), protocol="mine"), tmp_path / "s.json")
    assert not list(tmp_path.iterdir())


def test_a_schedule_without_requests_is_a_schedule() -> None:
    empty = Schedule(requests=(), boundary="one-shot")
    assert empty
    assert len(empty) == 0
    assert not empty.is_static


@pytest.mark.parametrize("start", [-1, 99])
def test_a_start_beyond_the_costs_is_refused(start: int) -> None:
    with pytest.raises(InputError, match=f"start is {start}; a row of the costs, 0"):
        _problem(boundary="one-shot", start=start)


def test_an_empty_chain_is_no_problem_to_solve() -> None:
    chain = _problem().chain
    nothing = {n: getattr(chain, n)[:0] for n in ("kind", "duration_ns", "lag_ns", "min_lag_ns")}
    with pytest.raises(InputError, match="the chain is empty"):
        _problem(chain=replace(chain, floor_ns=None, hidden_ns=None, passes=None, **nothing))


@pytest.mark.parametrize("kind", [-1, 7])
def test_a_kernel_kind_beyond_the_costs_is_refused(kind: int) -> None:
    chain = _problem().chain
    with pytest.raises(InputError, match="kernel kind"):
        _problem(chain=replace(chain, kind=np.full_like(chain.kind, kind)))


def test_a_request_that_cannot_be_is_an_error_of_schedules() -> None:
    with pytest.raises(ScheduleError, match=r"Clocks\.parse"):
        ClockRequest(clocks="auto", launch=0)  # type: ignore[arg-type]
