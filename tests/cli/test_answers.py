"""What commands name as the answer, leave behind, and say on the way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from kdvfs_hw.runs.subject import load_subject

from kdvfs_sim.cli.console import steps
from kdvfs_sim.cli.options import budget_from
from kdvfs_sim.core.objects import words
from kdvfs_sim.gpu import catalogue
from kdvfs_sim.gpu.catalogue import load_gpu

from .conftest import Outcome

Run = Callable[..., Outcome]
KERNELS = (("qkv", 412_000, "gemm"), ("softmax", 98_000, "normalization"), ("proj", 201_000, "gemm"))
CALL = "host_call_ns = { value = 4_500_000, low = 4_000_000, high = 13_000_000"
LATENCY = "switching_ns = { value = 25_000_000, low = 6_000_000, high = 100_000_000"


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Short kernels of three kinds in turn."""
    lines, start_ns = ["name,start_ns,duration_ns,category"], 0
    for _ in range(8):
        for name, duration_ns, category in KERNELS:
            lines.append(f"{name},{start_ns},{duration_ns},{category}")
            start_ns += duration_ns + 3000
    path = tmp_path / "mine.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def fast(tmp_path: Path) -> Path:
    """An H200 that would change clocks within 0.1 ms."""
    entry = (Path(catalogue.__file__).parent / "catalogue/h200.toml").read_text()
    assert entry.count(CALL) == 2
    entry = entry.replace(CALL, "host_call_ns = { value = 0, low = 0, high = 0", 1)
    path = tmp_path / "fast.toml"
    path.write_text(entry.replace(LATENCY, "switching_ns = { value = 100_000, low = 50_000, high = 300_000"))
    return path


def test_what_is_written_and_named_is_as_sure_as_was_asked_for(
    kdvfs: Run, recording: Path, fast: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = kdvfs(
        "optimize", recording, "--gpu", fast, "--slack", "1%", "--protocol", "free,lookahead",
        "--policy", "launch", "--confidence", "95%", "--out-dir", out, "--json",
    )  # fmt: skip
    assert done.code == 0, done.stderr
    document = json.loads(done.stdout)
    rows = {row["name"]: row for row in document["policies"] if row["protocol"] == "lookahead"}
    assert rows["launch"]["kept"] < 0.95 <= rows["launch sure"]["kept"]
    assert rows["launch"]["energy_pct"] < rows["launch sure"]["energy_pct"]
    assert f"keeps the budget in {rows['launch']['kept']:.1%}" in rows["launch"]["reason"]
    assert rows["static"]["kept"] == 1.0
    about = json.loads((out / "schedule.json").read_text())["about"]
    written = rows[about["policy"]]
    assert about["kept"] == written["kept"] >= 0.95
    assert written["energy_pct"] == pytest.approx(rows["launch sure"]["energy_pct"], abs=1e-9)
    charged = document["sentence"].partition("Switching included")[2]
    assert f"{-rows['launch sure']['energy_pct']:.2f} %" in charged
    assert "launch clocks save" not in charged
    assert f"kept in {written['kept']:.1%} of replays" in charged


def test_free_switching_has_nothing_to_be_sure_of(kdvfs: Run, recording: Path) -> None:
    done = kdvfs("optimize", recording, "--gpu", "h200", "--protocol", "free", "--confidence", "95%")
    assert done.code == 2
    assert "--confidence" in done.stderr


def test_a_run_without_an_answer_leaves_none_of_an_earlier_one(
    kdvfs: Run, recording: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = ("optimize", recording, "--gpu", "h200", "--protocol", "free", "--policy", "kind", "--out-dir")
    assert kdvfs(*command, out).code == 0
    earlier = {path.name for path in out.iterdir()} - {"policies.json"}
    assert earlier >= {"schedule.json", "timeline.json"}
    done = kdvfs(*command, out, "--energy-budget", "1%")
    assert done.code == 4
    assert [path.name for path in out.iterdir()] == ["policies.json"]
    for name in earlier:
        assert f"removed: {out / name}" in done.stderr


@pytest.mark.parametrize(
    ("option", "value", "note"),
    [
        ("--slack", "0.01", "--slack 0.01 is read as 0.01 %; for 1 per cent write 1%"),
        ("--energy-budget", "0.98", "--energy-budget 0.98 is read as 0.98 %; for 98 per cent write 98%"),
        ("--slack", "0.01%", ""),
        ("--slack", "0.6", ""),
    ],
)
def test_a_number_that_may_be_meant_as_a_share_is_said_to_be_per_cent(
    capsys: pytest.CaptureFixture[str], option: str, value: str, note: str
) -> None:
    budget_from(*((value,) if option == "--slack" else (None, value)))
    said = capsys.readouterr().err
    assert note in said
    assert bool(said) == bool(note)


def test_settings_state_the_budget_that_was_given_and_no_other(
    kdvfs: Run, recording: Path, tmp_path: Path
) -> None:
    command = ("optimize", recording, "--gpu", "h200", "--protocol", "free", "--policy", "kind", "--json")
    for options, budgets in (
        (("--energy-budget", "98%"), (None, 98.0)),
        (("--slack", "2%"), (2.0, None)),
        ((), (0.6, None)),
    ):
        done = kdvfs(*command, *options, "--out-dir", tmp_path)
        settings = json.loads(done.stdout)["settings"]
        assert (settings["slack_pct"], settings["energy_budget_pct"]) == budgets
        about = json.loads((tmp_path / "schedule.json").read_text())["about"]
        assert (about["slack_pct"], about["energy_budget_pct"]) == budgets


def test_a_budget_is_of_time_or_of_energy(kdvfs: Run, recording: Path) -> None:
    done = kdvfs("optimize", recording, "--gpu", "h200", "--energy-budget", "98%", "--slack", "0.1%")
    assert done.code == 2
    assert "give one of them" in done.stderr


def test_a_schedule_is_for_a_gpu_by_whatever_name(
    kdvfs: Run, recording: Path, fast: Path, tmp_path: Path
) -> None:
    """A file of the user's, an alias: the same GPU. Another one is said, asked for or not."""
    for gpu, others in ((fast, "h200"), ("a100", "h200")):
        out = tmp_path / f"of {Path(gpu).stem}"
        command = ("--protocol", "free", "--policy", "kind", "--out-dir", out)
        assert kdvfs("optimize", recording, "--gpu", gpu, *command).code == 0
        schedule = out / "schedule.json"
        same = kdvfs("replay", recording, "--gpu", gpu, "--schedule", schedule)
        assert "made for GPU" not in same.stdout
        if gpu == fast:
            other = kdvfs("replay", recording, "--gpu", others, "--schedule", schedule)
            assert f"made for GPU {fast}" in other.stdout
            assert "(fast.toml)" not in other.stdout
            assert "on      NVIDIA H200 (fast.toml), a schedule of" in same.stdout
            scene, _, _ = load_subject([str(schedule)])  # what hw validate is given: the entry is found again
            assert scene.gpu == load_gpu(fast)


def test_steps_are_said_once_a_second(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("kdvfs_sim.cli.console.time.monotonic", lambda: now)
    step = steps("studying")
    for now in (0.5, 1.5, 1.6, 1.7, 2.0, 3.0):
        step(f"at {now}")
    assert [line.split()[2] for line in capsys.readouterr().err.splitlines()] == ["1.5", "3.0"]


def test_an_error_without_words_ends_with_its_name() -> None:
    assert words(AssertionError()).startswith("AssertionError")
    assert "AssertionError:" not in words(AssertionError())
    assert words(ValueError("3 is wrong")) == "ValueError: 3 is wrong"
