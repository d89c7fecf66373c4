"""The emulated GPU over time, against a slow stepwise reference and by hand."""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kdvfs_hw.emulator.behaviour import Domain
from kdvfs_hw.emulator.gpu import EmulatedGpu
from kdvfs_hw.emulator.spec import DeviceSpec
from kdvfs_hw.emulator.state import State
from kdvfs_hw.journal import Journal
from kdvfs_hw.timing import VirtualTime
from toy_gpu import SM_MHZ, gemm_power_w, toy_spec

from kdvfs_sim.core.clocks import AUTO, AUTO_CLOCKS, Clocks
from kdvfs_sim.core.errors import DeviceError, InputError, UsageError
from kdvfs_sim.core.governor import DynamicGovernor

TICK_NS = 20_000
MS = 1_000_000
GEMM, COPY = 0, 1  # places in the table of loads


@dataclass
class Reference:
    """The toy GPU in ticks: no events, no closed forms, every 20 microseconds looked at one by one."""

    t_ns: int = 0
    lock: dict[str, Any] = field(default_factory=lambda: {"sm": AUTO, "mem": AUTO})
    asked: dict[str, Any] = field(default_factory=lambda: {"sm": AUTO, "mem": AUTO})
    landings: list[tuple[int, str, Any]] = field(default_factory=list)
    queue: list[list[Any]] = field(default_factory=list)
    ended: dict[str, int] = field(default_factory=dict)
    energy_j: float = 2000.0

    def request(self, domain: str, value: Any, up_ns: int, down_ns: int) -> None:
        old = self.asked[domain]
        height = {AUTO: 10**9}
        goes_up = height.get(value, value) > height.get(old, old)
        wait_ns = 0 if value == old else up_ns if goes_up else down_ns
        latest = max([self.t_ns + wait_ns, *(t for t, d, _ in self.landings if d == domain)])
        self.asked[domain] = value
        self.landings.append((latest, domain, value))

    def tick(self) -> None:
        for landing in sorted(self.landings, key=lambda each: each[0]):
            if landing[0] <= self.t_ns:
                self.lock[landing[1]] = landing[2]
                self.landings.remove(landing)
        sm = 2000 if self.lock["sm"] is AUTO else self.lock["sm"]
        mem = 2000 if self.lock["mem"] is AUTO else self.lock["mem"]
        if not self.queue:
            power_w = 80 + 0.01 * sm
        elif self.queue[0][1] == "gemm":
            sm = min(sm, 1600)
            power_w, duration_ns = gemm_power_w(sm), 1e9 / sm
        else:
            power_w, duration_ns = 200 + 0.1 * sm, 2e9 / mem
        self.energy_j += power_w * TICK_NS * 1e-9
        self.t_ns += TICK_NS
        if self.queue:
            self.queue[0][2] -= TICK_NS / duration_ns
            if self.queue[0][2] <= 0:
                self.ended[self.queue.pop(0)[0]] = self.t_ns


steps = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.integers(0, 600)),
        st.tuples(st.just("sm"), st.sampled_from([AUTO, *SM_MHZ])),
        st.tuples(st.just("mem"), st.sampled_from([AUTO, 1000, 2000])),
        st.tuples(st.just("gemm"), st.integers(1, 8)),
        st.tuples(st.just("copy"), st.integers(1, 8)),
    ),
    max_size=25,
)


@given(steps)
@example([("sm", 400), ("sm", AUTO), ("sm", 400), ("wait", 500)])  # all three land together
def test_events_agree_with_small_steps(script: list[tuple[str, Any]]) -> None:
    spec = toy_spec(switching_ns=5 * MS)
    state, reference = spec.state(0), Reference()
    for i, (what, value) in enumerate(script):
        t = reference.t_ns
        if what == "wait":
            for _ in range(value):
                reference.tick()
        elif what in ("sm", "mem"):
            record = {"t": t, "do": "reset", "domain": what}
            if value is not AUTO:
                record |= {"do": "set", "mhz": value}
            state.apply(record)
            reference.request(what, value, 5 * MS, 10 * MS)
        else:
            kind = spec.behaviour.kinds.index(what)
            state.apply(
                {"t": t, "do": "launch", "token": str(i), "works": [(kind, value)], "times": 1, "pid": 1}
            )
            reference.queue.append([str(i), what, float(value)])
    state.advance(reference.t_ns)
    n_works = len(reference.ended) + len(reference.queue)
    assert state.energy_j == pytest.approx(reference.energy_j, abs=0.02 * (n_works + 1))
    assert state.locks == Clocks(reference.asked["sm"], reference.asked["mem"])
    for token, ended_ns in reference.ended.items():
        late = state.ended.get(token, state.t_ns + (state.time_left_ns(token) or 0))
        assert abs(late - ended_ns) <= TICK_NS * (n_works + 1), token


def requested(spec: DeviceSpec, domain: Domain, mhz: int, t_ns: int) -> State:
    state = spec.state(0)
    state.apply({"t": 0, "do": "set", "domain": domain, "mhz": mhz})
    state.advance(t_ns)
    return state


def test_a_change_takes_its_time_and_down_is_not_up() -> None:
    spec = toy_spec(switching_ns=5 * MS)
    assert requested(spec, "sm", 1000, 10 * MS - 1).operating.sm_mhz == 2000
    assert requested(spec, "sm", 1000, 10 * MS).operating.sm_mhz == 1000
    state = requested(spec, "sm", 1000, 20 * MS)
    state.apply({"t": 20 * MS, "do": "reset", "domain": "sm"})
    state.advance(25 * MS - 1)
    assert state.operating.sm_mhz == 1000
    assert state.locks == AUTO_CLOCKS  # accepted, not landed
    state.advance(25 * MS)
    assert state.operating.sm_mhz == 2000


def test_work_in_flight_changes_speed_in_the_middle() -> None:
    state = toy_spec(switching_ns=0).state(0)
    state.apply({"t": 0, "do": "set", "domain": "sm", "mhz": 1000})
    state.apply({"t": 0, "do": "launch", "token": "a", "works": [(GEMM, 2)], "times": 1, "pid": 1})
    assert state.time_left_ns("a") == 2 * MS
    state.apply({"t": 1 * MS, "do": "set", "domain": "sm", "mhz": 400})
    assert state.time_left_ns("a") == pytest.approx(2.5 * MS, abs=2)
    state.advance(10 * MS)
    assert state.ended["a"] == pytest.approx(3.5 * MS, abs=2)


def test_an_event_with_no_launches_ends_when_its_turn_comes() -> None:
    state = toy_spec().state(0)
    state.apply({"t": 0, "do": "launch", "token": "a", "works": [(COPY, 3)], "times": 1, "pid": 1})
    state.apply({"t": 0, "do": "launch", "token": "b", "works": [(COPY, 0)], "times": 1, "pid": 1})
    state.advance(20 * MS)
    assert state.ended == {"a": 3 * MS, "b": 3 * MS}


def test_a_clock_between_two_listed_ones_is_clipped_down() -> None:
    assert requested(toy_spec(), "sm", 1399, 50 * MS).operating.sm_mhz == 1200
    assert requested(toy_spec(), "sm", 9999, 50 * MS).operating.sm_mhz == 2000
    assert requested(toy_spec(), "sm", 1, 50 * MS).operating.sm_mhz == 400


def test_the_dynamic_governor_moves_in_steps_and_overshoots() -> None:
    governor = DynamicGovernor(sense_ns=20_000, fall_ns=100_000, rise_ns=200_000, steps=2, overshoot=0.5)
    state = toy_spec(governor=governor).state(0)
    state.apply({"t": 0, "do": "launch", "token": "a", "works": [(GEMM, 1e6)], "times": 1, "pid": 1})
    seen = []
    for t in (0, 69_999, 70_000, 120_000, 220_000, 320_000):
        state.advance(t)
        seen.append(state.operating.sm_mhz)
    assert seen == [2000, 2000, 1700, 1400, 1500, 1600]
    state.apply({"t": 1 * MS, "do": "drop", "pid": 1})
    for t, sm_mhz in ((1 * MS, 1600), (1 * MS + 120_000, 1800), (1 * MS + 220_000, 2000)):
        state.advance(t)
        assert state.operating.sm_mhz == sm_mhz


def test_temperature_settles_with_power() -> None:
    state = toy_spec().state(0)
    cold_c = state.temperature_c
    state.apply({"t": 0, "do": "launch", "token": "a", "works": [(GEMM, 1e9)], "times": 1, "pid": 1})
    state.advance(15 * 1000 * MS)
    warmer_c = state.temperature_c
    state.advance(300 * 1000 * MS)
    hot_c = 27 + 0.055 * gemm_power_w(1600)
    assert cold_c < warmer_c < state.temperature_c == pytest.approx(hot_c, abs=1e-3)
    assert (warmer_c - cold_c) / (hot_c - cold_c) == pytest.approx(1 - 1 / 2.718281828, abs=1e-6)


@pytest.mark.parametrize(
    ("fault", "value", "sm_mhz"),
    [
        ("lock_ignored", 0, 2000),
        ("clipped", 500, 500),
        ("mem_moves_sm", 120, 880),
        ("throttling", 700, 700),
        ("lock_lost", 0.001, 2000),
    ],
)
def test_faults_that_bend_a_lock(fault: str, value: float, sm_mhz: int) -> None:
    state = toy_spec().state(0)
    state.apply({"t": 0, "do": "fault", "name": fault, "value": value, "after_s": 0, "for_s": None})
    state.apply({"t": 0, "do": "set", "domain": "sm", "mhz": 1000})
    state.apply({"t": 0, "do": "set", "domain": "mem", "mhz": 2000})
    state.advance(100 * MS)
    assert state.operating.sm_mhz == sm_mhz


def test_a_fault_has_a_beginning_and_an_end() -> None:
    state = toy_spec().state(0)
    state.apply({"t": 0, "do": "fault", "name": "throttling", "value": 600, "after_s": 0.01, "for_s": 0.02})
    seen = {}
    for t in (0, 10 * MS - 1, 10 * MS, 30 * MS - 1, 30 * MS):
        state.advance(t)
        seen[t] = state.operating.sm_mhz
    assert list(seen.values()) == [2000, 2000, 600, 600, 2000]


def test_the_counter_can_freeze_fall_back_and_be_off() -> None:
    spec = toy_spec()

    def energies(fault: str, value: float) -> list[int]:
        state = spec.state(0)
        state.apply({"t": 1, "do": "fault", "name": fault, "value": value, "after_s": 0, "for_s": None})
        found = []
        for i in range(1, 6):
            state.advance(i * 100 * MS + 50 * MS)
            found.append(spec.sensors.energy_mj(state, 0))
        return found

    assert energies("frozen_counter", 0) == [2_000_000] * 5
    assert energies("backward_counter", 15) == [1_995_000, 2_020_000, 2_015_000, 2_040_000, 2_035_000]
    assert energies("counter_gain", 1.1) == [2_211_000, 2_222_000, 2_233_000, 2_244_000, 2_255_000]


def open_gpu(tmp_path: Path, **changes: Any) -> EmulatedGpu:
    return EmulatedGpu.create(tmp_path / "gpu", toy_spec(**changes), time=VirtualTime())


def test_what_is_left_of_a_cut_record_hurts_nobody(tmp_path: Path) -> None:
    gpu = open_gpu(tmp_path)
    gpu.request("sm", 1000)
    with open(gpu.folder / "requests.jsonl", "ab") as file:
        file.write(b'\n{"t":1,"do":"set","domain":"sm","mh')
    assert gpu.locks() == Clocks(1000, AUTO)
    gpu.request("mem", 1000)
    assert gpu.locks() == Clocks(1000, 1000)
    again = EmulatedGpu(gpu.folder, time=gpu.time)
    assert again.locks() == Clocks(1000, 1000)


@given(st.lists(st.sampled_from(["whole", "cut", "garbage"]), max_size=20), st.integers(1, 30))
def test_a_journal_gives_back_every_whole_record_once(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[str], chunk: int
) -> None:
    path = tmp_path_factory.mktemp("journal") / "j"
    journal = Journal(path)
    reader = Journal(path)
    seen: list[dict[str, Any]] = []
    offset = 0
    for i, kind in enumerate(kinds):
        if kind == "whole":
            journal.append({"i": i})
        else:
            os.write(journal._descriptor, b'\n{"i":123456789'[:chunk] if kind == "cut" else b"\xff\x00{]}")
        records, offset = reader.read(offset)
        seen += records
    assert [r["i"] for r in seen] == [i for i, kind in enumerate(kinds) if kind == "whole"]
    journal.close()
    reader.close()


def _request_many(folder: Path, n: int) -> None:
    gpu = EmulatedGpu(folder)
    for _ in range(n):
        gpu.request("sm", 1000)
        gpu.request("sm", None)


def test_processes_share_one_gpu_and_lose_nothing(tmp_path: Path) -> None:
    gpu = EmulatedGpu.create(tmp_path / "gpu", toy_spec())
    spawn = multiprocessing.get_context("spawn")
    others = [spawn.Process(target=_request_many, args=(gpu.folder, 200)) for _ in range(3)]
    for process in others:
        process.start()
    while any(process.is_alive() for process in others):
        gpu.view()
    for process in others:
        process.join()
        assert process.exitcode == 0
    records = gpu._requests.read(0)[0]
    assert len(records) == 3 * 400
    again = EmulatedGpu(gpu.folder)
    assert again.locks() == gpu.locks()
    assert again._fold.energy_j == gpu._fold.energy_j
    gpu.close()
    again.close()


def test_waiting_for_work_sleeps_until_it_is_done(tmp_path: Path) -> None:
    gpu = EmulatedGpu.create(tmp_path / "gpu", toy_spec())
    start = gpu.wait(gpu.launch("copy", 0))
    end = gpu.wait(gpu.launch("copy", 30))
    assert 30 * MS <= end - start <= 60 * MS
    assert gpu.time.now_ns() - end < 30 * MS
    with pytest.raises(DeviceError, match="no work"):
        gpu.wait("another")
    gpu.close()


def _launch_long(folder: Path) -> None:
    gpu = EmulatedGpu(folder)
    gpu.launch("gemm", 1e9)
    gpu.close()


def test_work_of_a_process_that_ended_frees_the_gpu(tmp_path: Path) -> None:
    gpu = EmulatedGpu.create(tmp_path / "gpu", toy_spec())
    other = multiprocessing.get_context("spawn").Process(target=_launch_long, args=(gpu.folder,))
    other.start()
    other.join()
    assert other.exitcode == 0
    mine = gpu.launch("gemm", 1e9)
    assert len(gpu.view().queue) == 2
    again = EmulatedGpu(gpu.folder)  # looks who is still there
    (left,) = again.view().queue
    assert left.token == mine
    gpu.close()
    again.close()


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    gpu = open_gpu(tmp_path)
    with pytest.raises(InputError, match="no kernel kind 'softmax'; it knows gemm, copy"):
        gpu.launch("softmax")
    with pytest.raises(InputError, match="finite"):
        gpu.launch("gemm", float("inf"))
    with pytest.raises(UsageError, match="no fault 'fire'; there are no_permission"):
        gpu.script("fire")
    with pytest.raises(DeviceError, match="no emulated GPU there"):
        EmulatedGpu(tmp_path / "nothing")


def test_the_file_gives_back_the_same_gpu(tmp_path: Path) -> None:
    governor = DynamicGovernor(sense_ns=1, fall_ns=2, rise_ns=3)
    gpu = open_gpu(tmp_path, governor=governor)
    assert EmulatedGpu(gpu.folder, time=gpu.time).spec == toy_spec(governor=governor)
    (gpu.folder / "device.json").write_text('{"spec": {"format": "else"}}')
    with pytest.raises(DeviceError, match="format and version"):
        EmulatedGpu(gpu.folder)
