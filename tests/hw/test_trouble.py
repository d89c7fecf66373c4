"""Readings that are of no use: why is said at once and at the end, and nobody waits for more of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import kdvfs
from kdvfs_hw.measure import observer as observer_module
from kdvfs_hw.measure.counter import READ_TOO_SELDOM, Edge, EnergyWindow, energy_between, find_period
from kdvfs_hw.runs.record import Record
from kdvfs_hw.runs.trouble import IN_A_ROW, HopelessError, Troubles
from kdvfs_hw.runs.validate import Outcome, Settings
from kdvfs_hw.runs.verdict import Verdict, quantity
from subject import Bench, alternating, bench, build, write_subject

from kdvfs_sim.core.errors import DeviceError
from kdvfs_sim.study.scene import Scene

SHORT = {"seconds": 0.15, "kernel_seconds": 0.1, "kernel_settle_s": 0.06, "max_settle_s": 0.5}
HOT = "slowed by sw_thermal_slowdown for {} % of the time"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return build(tmp_path_factory.mktemp("subject"))


def energy(reason: str = "") -> EnergyWindow:
    seldom = reason == READ_TOO_SELDOM
    known = None if reason else 1.0
    return EnergyWindow(begin_ns=0, end_ns=1, n_periods=9, energy_j=known, reason=reason, ill_watched=seldom)


def made(folder: Path, scene: Scene, *faults: str) -> Bench:
    return bench(folder / "gpu", scene, {"per-kernel": alternating()}, *faults)


def test_readings_are_counted_by_kind_and_each_kind_is_said_once() -> None:
    said: list[str] = []
    troubles = Troubles(said.append)
    for void, no_energy in (
        (HOT.format(40), ""),
        ("", READ_TOO_SELDOM),
        (HOT.format(7), READ_TOO_SELDOM),
        ("", ""),
        ("other processes used the GPU: 12", ""),
        ("", "no energy counter: Not Supported"),
    ):
        troubles.note(void, energy(no_energy))
    assert said == [
        f"a reading is void: {HOT.format(40)}",
        f"the energy of a reading is not known: {READ_TOO_SELDOM}",
        "a reading is void: other processes used the GPU: 12",
        "the energy of a reading is not known: no energy counter: Not Supported",
    ]
    void, unknown, busy = troubles.lines()
    assert void == (
        f"3 of 6 readings are void and were left out: 2 because {HOT.format(40)}; "
        "1 because other processes used the GPU: 12"
    )
    assert unknown == (
        f"the energy of 2 of 6 readings is not known: 1 because {READ_TOO_SELDOM}; "
        "1 because no energy counter: Not Supported"
    )
    assert "too busy to watch the GPU" in busy
    assert troubles.to_json()["void"] == [
        {"n": 2, "reason": HOT.format(40)},
        {"n": 1, "reason": "other processes used the GPU: 12"},
    ]


def test_the_same_trouble_in_a_row_is_hopeless_and_another_in_between_is_not() -> None:
    troubles = Troubles()
    for i in range(3 * IN_A_ROW):
        troubles.note(HOT.format(i) if i % IN_A_ROW else "", energy())
    for _ in range(2 * IN_A_ROW):  # what the GPU does not give leaves time to be judged
        troubles.note("", energy("no energy counter: Not Supported"))
    for _ in range(IN_A_ROW - 1):
        troubles.note("", energy(READ_TOO_SELDOM))
    with pytest.raises(HopelessError, match=r"5 readings in a row .* read too seldom .*too busy to watch"):
        troubles.note("", energy(READ_TOO_SELDOM))


def test_a_run_on_a_machine_too_busy_to_watch_ends_early(
    tmp_path: Path, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watching thread comes to its turn only every 90 ms, where the counter moves every 20."""
    look = observer_module.Observer._look

    def slow(self: observer_module.Observer, n_ticks: int) -> None:
        self.device.time.sleep_ns(90_000_000)
        look(self, n_ticks)

    monkeypatch.setattr(observer_module.Observer, "_look", slow)
    said: list[str] = []
    subject = made(tmp_path, scene)
    with Record(tmp_path / "run") as record:
        settings = Settings(modes=("observe",), repeats=20, **{**SHORT, "seconds": 0.8})
        outcome = subject.validate(settings, record, say=said.append)
    assert outcome.n_rounds == IN_A_ROW
    assert outcome.exit_code == 6
    assert outcome.to_json()["readings"]["stopped"].startswith(
        "5 readings in a row were of no use, the last because the energy"
    )
    page = (tmp_path / "run" / "record.md").read_text()
    assert "stopped early: 5 readings in a row" in page
    assert f"5 because {READ_TOO_SELDOM}" in page
    assert [line for line in said if line.startswith("the energy of a reading is not known: the energy")]
    lines = [json.loads(line) for line in (tmp_path / "run" / "record.jsonl").read_text().splitlines()]
    assert next(line for line in lines if line["kind"] == "troubles")["energy_not_known"][0]["n"] == IN_A_ROW


def test_how_long_it_will_take_is_said_before_the_first_reading(tmp_path: Path, scene: Scene) -> None:
    said: list[str] = []
    subject = made(tmp_path, scene)
    clock = subject.gpu.time
    at_ns: list[int] = []

    def say(text: str) -> None:
        said.append(text)
        at_ns.append(clock.now_ns())

    subject.validate(Settings(modes=("isolated", "live"), repeats=6, **SHORT), say=say)
    first = next(i for i, line in enumerate(said) if line.startswith("round 1;"))
    least, most = (float(word) for word in said[first].split("about ")[1].replace(" s", "").split(" to "))
    second = next(i for i, line in enumerate(said) if line.startswith("round 2 of at most 6; at most "))
    took_s = (at_ns[second] - at_ns[first]) * 1e-9
    assert least == pytest.approx(3 * took_s, rel=0.3, abs=1)
    assert most == pytest.approx(6 * took_s, rel=0.3, abs=1)


def test_a_void_reading_names_its_reasons_where_all_are_void(tmp_path: Path, scene: Scene) -> None:
    subject = made(tmp_path, scene)
    with pytest.raises(DeviceError, match="all 5 readings are void: 5 because slowed by hw_"):
        subject.validate(
            Settings(modes=("observe",), repeats=20, **SHORT), before=lambda gpu: gpu.script("throttling")
        )


def test_updates_of_which_half_come_at_once_and_half_late_have_no_period() -> None:
    """It was a warning of numpy on the user's screen, and not a number."""
    t_ns, edges = 0, []
    for apart_ns in (1_000_000, 99_000_000) * 4:
        t_ns += apart_ns
        edges.append(Edge(early_ns=t_ns - 100, late_ns=t_ns, energy_mj=len(edges)))
    assert find_period(edges[:5]) is None


def test_a_counter_that_moves_seldom_is_told_from_one_that_is_read_seldom() -> None:
    def seen(blur_ns: int) -> EnergyWindow:
        times = [2 * 10**9 * i for i in (1, 2, 3)]
        edges = [Edge(early_ns=t - blur_ns, late_ns=t, energy_mj=t) for t in times]
        return energy_between(edges, None, 0, 7 * 10**9)

    assert "moved too seldom" in seen(10_000_000).reason
    assert not seen(10_000_000).ill_watched
    assert seen(1_900_000_000).reason == READ_TOO_SELDOM
    assert seen(1_900_000_000).ill_watched


def test_to_observe_a_trace_nothing_is_optimized(tmp_path: Path) -> None:
    write_subject(tmp_path)
    run = kdvfs(
        *("validate", "step.csv", "--gpu", "gpu.toml", "--device", "emulated:h200", "--settle", "0"),
        *("--seconds", "0.3", "--repeats", "3", "--json"),
        cwd=tmp_path,
    )
    assert "optimizing" not in run.stderr
    assert "round 1; 3 to 3 rounds, about" in run.stderr
    document = json.loads(run.stdout)
    assert document["readings"]["n_readings"] == 3
    assert {each["part"] for each in document["quantities"]} == {"step at auto"}


def test_what_disagrees_with_readings_of_a_machine_that_was_too_busy_may_be_right() -> None:
    troubles = Troubles()
    for _ in range(IN_A_ROW - 1):
        troubles.note("", energy(READ_TOO_SELDOM))
    with pytest.raises(HopelessError):
        troubles.note("", energy(READ_TOO_SELDOM))
    assert not troubles.doubt
    troubles.stopped = "as said"
    assert "too busy" in troubles.doubt
    read = [1.3, 1.31, 1.32]
    step = [quantity("step", "time", "s", predicted, read, 0.02) for predicted in (1.0, 1.31)]
    assert [each.answer for each in step] == ["disagrees", "agrees"]
    assert "predicted 1 s, read 1.31 s (1.3 to 1.32 s, 3 readings), " in str(step[0])
    doubted = Verdict(quantities=tuple(step)).doubted(troubles.doubt)
    assert [each.answer for each in doubted.quantities] == ["not enough data", "agrees"]
    assert doubted.overall == "not enough data"
    assert Outcome(verdict=doubted, n_rounds=3, troubles=troubles).exit_code == DeviceError.exit_code
