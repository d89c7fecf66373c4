"""``kdvfs hw observe`` and ``characterize`` as typed; and that they cannot reach what changes clocks."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kdvfs_hw.devices import emulated_gpu, open_emulated
from kdvfs_hw.emulator.gpu import EmulatedGpu
from kdvfs_hw.measure.loop import measure, overhead_of_watching
from kdvfs_hw.measure.observer import Observer
from kdvfs_hw.runs.record import read_record
from kdvfs_hw.timing import ThreadedVirtualTime
from kdvfs_hw.workloads.base import CallableWorkload
from kdvfs_hw.workloads.emulated import EmulatedWorkload, Operation
from kdvfs_hw.workloads.resolve import workload_from
from toy_gpu import gemm_power_w, toy_spec

from kdvfs_sim.cli import main
from kdvfs_sim.core.errors import DeviceLostError, InputError, UsageError

CHANGES = re.compile(r"nvml\w*(Set|Reset|Clear|Remove|Freeze|Validate)\w*")

SCRIPT = """
import json, sys
from kdvfs_sim.cli import main
try:
    main(["hw", *sys.argv[1:]])
except SystemExit as end:
    print(json.dumps({"code": end.code, "modules": sorted(sys.modules)}), file=sys.stderr)
"""


def observed(*arguments: str, cwd: Path) -> tuple[int, str, list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=False, cwd=cwd
    )
    end = json.loads(done.stderr.splitlines()[-1])
    return end["code"], done.stdout, end["modules"]


def test_any_command_is_watched_and_no_setter_is_in_reach(tmp_path: Path) -> None:
    command = ("--", sys.executable, "-c", "import time; time.sleep(0.9)")
    code, output, modules = observed(
        "observe", "--device", "emulated:h200", "--out-dir", "run", *command, cwd=tmp_path
    )
    assert code == 0
    assert re.match(r"time \d", output)
    lines = read_record(tmp_path / "run")
    (reading,) = [line for line in lines if line["kind"] == "command"]
    assert reading["exit_code"] == 0
    page = (tmp_path / "run" / "record.md").read_text().splitlines()
    assert page[0].startswith(f"# {sys.executable} -c ")
    assert page[-1] == output.splitlines()[-1]
    assert 0.9 <= reading["time_s"] < 3
    assert "kdvfs_hw.measure.observer" in modules
    assert not {"kdvfs_hw.nvml_control", "kdvfs_hw.guardian", "kdvfs_hw.guardian_process"} & set(modules)
    gpu = emulated_gpu("emulated:h200")
    calls = [call["call"] for call in gpu.calls()]
    assert len(calls) > 100
    assert not [call for call in calls if CHANGES.search(call)]
    assert gpu._requests.read(0)[0] == []
    gpu.close()


def test_a_command_that_fails_is_recorded_all_the_same(tmp_path: Path) -> None:
    command = ("--", sys.executable, "-c", "raise SystemExit(7)")
    code, _, _ = observed("observe", "--device", "emulated:h200", "--out-dir", "run", *command, cwd=tmp_path)
    assert code == 5
    assert [line["exit_code"] for line in read_record(tmp_path / "run") if line["kind"] == "command"] == [7]
    assert "ended with code 7" in (tmp_path / "run" / "record.md").read_text().splitlines()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["observe", "--device", "emulated:h200"], 2),
        (["observe", "--device", "emulated:h200", "--workload", "nothing"], 2),
        (["observe", "--device", "emulated:h200", "--", "no-such-command-here"], 2),
        (["observe", "--device", "emulated:h200", "--", sys.executable, "-c", "raise SystemExit(7)"], 5),
        (["observe", "--device", "emulated:h200,lost", "--", "true"], 6),
        (["characterize", "--device", "emulated:h200", "--allow-clock-control"], 2),
        (["characterize", "--device", "emulated:h200", "--clocks", "sm=1410", "--clocks", "auto"], 2),
        (["validate", "no-such-trace"], 3),
        (["validate", "x", "--mode", "free"], 2),
        (["sweep", "points.csv", "--device", "emulated:h200"], 2),
    ],
)
def test_mistakes_have_their_codes(arguments: list[str], code: int, tmp_path: Path) -> None:
    found, _, _ = observed(*arguments, cwd=tmp_path)
    assert found == code


OF_A_RUN = (
    "--mode=observe",
    "--device=emulated:h200",
    "--seconds=1",
    "--repeats=3",
    "--settle=1",
    "--seed=1",
    "--allow-clock-control",
    "--out-dir=run",
)


@pytest.mark.parametrize(
    ("verb", "option"),
    [
        *(
            (("observe", "--", "true"), option)
            for option in (
                "--kernels",
                "--seconds=2",
                "--repeats=5",
                "--kernel-seconds=1",
                "--settle=1",
                "--seed=0",
            )
        ),
        (("observe", "--workload", "w"), "--kernel-seconds=1"),
        *((("validate", "--bundle", "box", "x", "--workload", "w"), option) for option in OF_A_RUN),
        *(
            (("validate", "read"), option)
            for option in (
                *OF_A_RUN,
                "--workload=w",
                "--trace=t",
                "--protocol=drain",
                "--slack=1%",
                "--bundle=b",
            )
        ),
    ],
)
def test_an_option_that_would_be_passed_over_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verb: tuple[str, ...],
    option: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "read").mkdir()
    (tmp_path / "read" / "record.jsonl").write_text("")
    with pytest.raises(SystemExit) as end:
        main(["hw", verb[0], option, *verb[1:]])
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith(f"kdvfs: {option.split('=')[0]} says nothing here: ")
    assert [path.name for path in tmp_path.iterdir() if path.name != "read"] == []


@pytest.mark.parametrize(
    "modes", [("isolated", "observe"), ("observe", "live", "isolated"), ("live", "observe")]
)
def test_the_mode_that_is_refused_is_one_that_changes_clocks(
    modes: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    first = next(mode for mode in modes if mode != "observe")
    with pytest.raises(SystemExit) as end:
        main(["hw", "validate", "x", *(f"--mode={mode}" for mode in modes)])
    assert end.value.code == 2
    assert (
        capsys.readouterr().err == f"kdvfs: --mode {first} changes clocks: it needs --allow-clock-control\n"
    )


def toy(folder: Path, *faults: str) -> EmulatedGpu:
    return EmulatedGpu.create(folder, toy_spec(), time=ThreadedVirtualTime(), faults=faults)


def test_a_reading_is_exact_in_time_power_and_energy(tmp_path: Path) -> None:
    gpu = toy(tmp_path / "gpu")
    work = EmulatedWorkload(gpu, [Operation("gemm", 3), Operation("copy", 2)])
    with open_emulated(gpu) as opened, Observer(opened.device) as observer:
        observer.await_period()
        gemm = measure(work, "gemm", observer, seconds=0.6)
        step = measure(work, None, observer, seconds=0.6)
    assert gemm.time_s == pytest.approx(1e-3 / 1.6, rel=1e-6)
    assert gemm.power_w == pytest.approx(gemm_power_w(1600), rel=1e-3)
    assert gemm.seen.instant_w == pytest.approx(gemm_power_w(1600), rel=1e-3)
    assert gemm.seen.capped == pytest.approx(1.0)
    assert gemm.seen.sm_mhz == pytest.approx(1600, abs=1)
    assert step.time_s == pytest.approx(3e-3 / 1.6 + 2e-3, rel=1e-3)
    energy_j = 3e-3 / 1.6 * gemm_power_w(1600) + 2e-3 * 400.0
    assert step.energy_j == pytest.approx(energy_j, rel=0.01)


def test_disturbances_are_marked_and_unknown_stays_unknown(tmp_path: Path) -> None:
    gpu = toy(tmp_path / "gpu", "throttling", "foreign_process", "no_energy", "no_power")
    work = EmulatedWorkload(gpu, [Operation("gemm", 3)])
    with open_emulated(gpu) as opened, Observer(opened.device) as observer:
        assert observer.await_period(0.1) is None
        reading = measure(work, "gemm", observer, seconds=0.3)
    assert reading.energy_j is None
    assert reading.seen.instant_w is None
    assert "no energy counter" in reading.seen.energy.reason
    marks = " ".join(reading.seen.marks)
    assert "hw_thermal_slowdown" in marks
    assert "other processes used the GPU" in marks


def test_a_gpu_that_is_lost_ends_the_measurement(tmp_path: Path) -> None:
    gpu = toy(tmp_path / "gpu")
    work = EmulatedWorkload(gpu, [Operation("gemm", 3)])

    def run() -> None:
        with open_emulated(gpu) as opened, Observer(opened.device) as observer:
            gpu.script("lost", after_s=0.1)
            measure(work, None, observer, seconds=1.0)

    with pytest.raises(DeviceLostError):
        run()


def test_watching_an_emulated_step_costs_it_nothing(tmp_path: Path) -> None:
    gpu = toy(tmp_path / "gpu")
    work = EmulatedWorkload(gpu, [Operation("gemm", 3)])
    with open_emulated(gpu) as opened, Observer(opened.device) as observer:
        found = overhead_of_watching(work, observer, seconds=0.05, n_pairs=2)
    assert found["overhead_pct"] == pytest.approx(0.0, abs=1e-6)
    assert observer.overhead.n_calls > 0


def test_a_callable_is_a_workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("n = 0\ndef step():\n    global n\n    n += 1\n")
    monkeypatch.chdir(tmp_path)
    work = workload_from("mine:step")
    assert isinstance(work, CallableWorkload)
    begin = work.launch(None, 0)
    end = work.launch(None, 5)
    assert work.wait(end) >= work.wait(begin)
    assert sys.modules["mine"].n == 5
    with pytest.raises(UsageError, match="no parts"):
        work.launch("gemm", 1)
    for wrong in ("mine:nothing", "nomodule:x", "mine:n", "gpt3xl-layer,batch"):
        with pytest.raises(UsageError):
            workload_from(wrong)


LOUD = """
import os
print("printed at import")
os.write(1, b"written at import\\n")
def step():
    print("printed in a step")
"""


@pytest.mark.parametrize(
    "watched",
    [
        ["--", sys.executable, "-c", "print('printed by the command')"],
        ["--workload", "loud.py:step", "--seconds", "0.05", "--repeats", "1", "--settle", "0"],
    ],
    ids=["command", "workload"],
)
def test_with_json_stdout_holds_nothing_else(tmp_path: Path, watched: list[str]) -> None:
    (tmp_path / "loud.py").write_text(LOUD)
    done = subprocess.run(
        [sys.executable, "-m", "kdvfs_sim", "hw", "observe", "--device", "emulated:h200", "--json", *watched],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout), list)
    assert "printed " in done.stderr


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("def step(:", 5, ["SyntaxError", "wrong.py, line 1"]),
        ("\n\n1 / 0", 5, ["ZeroDivisionError", "wrong.py, line 3"]),
        ("import not_there", 5, ["not_there", "wrong.py, line 1"]),
        ("raise SystemExit(0)", 5, ["SystemExit"]),
        ("def step():\n    raise ValueError('too small')", 5, ["ValueError: too small", "wrong.py, line 2"]),
        ("def step():\n    raise SystemExit(0)", 5, ["SystemExit", "wrong.py, line 2"]),
        ("class step:\n    def __init__(self):\n        self.x", 5, ["AttributeError", "wrong.py, line 3"]),
        ("def other(): pass", 2, ["has no 'step'", "other"]),
    ],
)
@pytest.mark.parametrize("place", ["wrong", "wrong.py"])
def test_a_workload_that_fails_is_its_authors(
    tmp_path: Path,
    text: str,
    code: int,
    words: list[str],
    place: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "wrong.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "wrong", raising=False)
    with pytest.raises(SystemExit) as end:
        main(["hw", "observe", "--device", "emulated:h200", "--workload", f"{place}:step", "--settle", "0"])
    monkeypatch.delitem(sys.modules, "wrong", raising=False)
    last = capsys.readouterr().err.splitlines()[-1]
    assert (end.value.code, last.startswith("kdvfs: ")) == (code, True), last
    for word in words:
        assert word in last


def test_torch_is_asked_for_by_its_install_line() -> None:
    try:
        import torch  # noqa: F401
    except ImportError:
        with pytest.raises(UsageError, match="pip install torch"):
            workload_from("gpt3xl-layer,batch=4")
    else:
        pytest.skip("PyTorch is installed here")


def test_a_record_is_not_overwritten_and_a_torn_last_line_is_passed_over(tmp_path: Path) -> None:
    from kdvfs_hw.runs.record import Record

    with Record(tmp_path / "run") as record:
        record.add("record", format="kdvfs-measurement", schema_version=1)
        record.add("step", time_s=float("nan"))
    with pytest.raises(InputError, match="never overwritten"):
        Record(tmp_path / "run")
    with (tmp_path / "run" / "record.jsonl").open("a") as file:
        file.write('{"kind":"st')
    assert read_record(tmp_path / "run")[1:] == [{"kind": "step", "time_s": None}]
    (tmp_path / "run" / "record.jsonl").write_text('{"kind":"record"}\n')
    with pytest.raises(InputError, match="not a record of version 1"):
        read_record(tmp_path / "run")


def test_time_passes_for_all_threads_of_a_virtual_clock() -> None:
    import threading

    clock = ThreadedVirtualTime(0)
    seen: list[tuple[str, int]] = []

    def nap(name: str, period_ns: int) -> None:
        for _ in range(3):
            clock.sleep_ns(period_ns)
            seen.append((name, clock.now_ns()))

    clock.now_ns()
    threads = [threading.Thread(target=nap, args=each) for each in (("a", 20), ("b", 50))]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        clock.sleep_ns(1000)
    assert [t for name, t in seen if name == "a"] == sorted(t for name, t in seen if name == "a")
    assert {name for name, _ in seen} == {"a", "b"}
    assert clock.now_ns() >= 150
    assert time.monotonic() - begun < 5
