"""A user's mistake gets one line on stderr, the fixed exit code, and no output file."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from kdvfs_sim.cli.app import build
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.core.schedule_file import write_schedule

from .conftest import Outcome

Run = Callable[..., Outcome]
LAYER = "h200_gpt3xl_layer_train"
READING_VERBS = ("import", "inspect", "replay", "optimize", "study")


def arguments(verb: str, trace: object, tmp_path: Path) -> list[object]:
    if verb == "import":
        return [verb, trace, "-o", tmp_path / "out.parquet"]
    if verb == "optimize":
        return [verb, trace, "--out-dir", tmp_path / "out"]
    if verb == "study":
        return [verb, "switching", trace, "--out-dir", tmp_path / "out"]
    if verb == "replay":
        return [verb, trace, "-o", tmp_path / "out.json"]
    return [verb, trace]


def assert_refused(outcome: Outcome, code: int, *words: str) -> None:
    assert outcome.code == code, outcome.stderr
    assert outcome.stdout == ""
    lines = outcome.stderr.splitlines()
    assert len(lines) == 1, outcome.stderr
    assert lines[0].startswith("kdvfs: ")
    for word in words:
        assert word in lines[0]


def files_in(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


@pytest.fixture
def recordings(tmp_path: Path) -> dict[str, Path]:
    """Files that are no usable recordings, by what is wrong with them."""
    events = [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 1}] * 500
    whole = gzip.compress(json.dumps({"traceEvents": events}).encode())
    made = {
        "truncated.json.gz": whole[: len(whole) // 2],
        "not-json.json": b"{ this is not JSON",
        "cpu-only.json": gzip.decompress(whole),
        "empty.json": b"",
        "a-picture.png": b"\x89PNG\r\n\x1a\n" + bytes(100),
    }
    for name, content in made.items():
        (tmp_path / name).write_bytes(content)
    return {name: tmp_path / name for name in made}


@pytest.mark.parametrize("verb", READING_VERBS)
@pytest.mark.parametrize(
    "name", ["truncated.json.gz", "not-json.json", "cpu-only.json", "empty.json", "a-picture.png"]
)
def test_an_unusable_recording_is_refused(
    kdvfs: Run, recordings: dict[str, Path], tmp_path: Path, verb: str, name: str
) -> None:
    before = files_in(tmp_path)
    assert_refused(kdvfs(*arguments(verb, recordings[name], tmp_path)), 3, name)
    assert files_in(tmp_path) == before


@pytest.mark.parametrize("verb", READING_VERBS)
def test_a_missing_recording_is_refused_and_a_near_name_suggested(
    kdvfs: Run, tmp_path: Path, verb: str
) -> None:
    outcome = kdvfs(*arguments(verb, "h200_gpt3xl_layer_trian", tmp_path))
    assert_refused(outcome, 3, "no such file", "did you mean h200_gpt3xl_layer_train")
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("verb", ["replay", "optimize", "study"])
def test_an_unknown_gpu_is_refused_with_the_known_ones(kdvfs: Run, tmp_path: Path, verb: str) -> None:
    outcome = kdvfs(*arguments(verb, LAYER, tmp_path), "--gpu", "h2000")
    assert_refused(outcome, 3, "h2000", "h200", "rtx-3080-ti")
    assert files_in(tmp_path) == []


def test_gpus_refuses_an_unknown_name(kdvfs: Run) -> None:
    assert_refused(kdvfs("gpus", "h2000"), 3, "h2000", "a100-sxm-80gb")


def test_unsupported_clocks_are_refused_with_the_nearest(kdvfs: Run, tmp_path: Path) -> None:
    outcome = kdvfs(*arguments("replay", LAYER, tmp_path), "--clocks", "sm=1411,mem=auto")
    assert_refused(outcome, 3, "sm=1411", "sm=1410")
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("clocks", ["sm=fast", "1410", "sm=0", "sm=1,sm=2", "gpu=1410", ""])
def test_malformed_clocks_are_a_usage_error(kdvfs: Run, clocks: str) -> None:
    assert_refused(kdvfs("replay", LAYER, "--clocks", clocks), 2, "--clocks")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--slack", "abc"),
        ("--protocol", "free"),
        ("--iterations", "two"),
        ("--iterations", "0"),
        ("--iterations", "1,,2"),
        ("--workers", "-1"),
        ("--gpu", "h200,"),
        ("--node-power", "nan"),
    ],
)
def test_a_malformed_option_of_a_study_is_a_usage_error(
    kdvfs: Run, tmp_path: Path, option: str, value: str
) -> None:
    outcome = kdvfs(*arguments("study", LAYER, tmp_path), option, value)
    assert_refused(outcome, 2, option)
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("slack", ["abc", "-1%", "nan", "inf", "1e308%", "%", ""])
def test_a_malformed_slack_is_a_usage_error(kdvfs: Run, tmp_path: Path, slack: str) -> None:
    outcome = kdvfs(*arguments("optimize", LAYER, tmp_path), f"--slack={slack}")
    assert_refused(outcome, 2, "--slack")
    assert files_in(tmp_path) == []


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--protocol", "teleport"),
        ("--boundary", "forever"),
        ("--energy-budget", "most"),
        ("--policy", "best"),
        ("--node-power", "inf"),
        ("--node-power", "1e300"),
        ("--confidence", "sure"),
        ("--confidence", "100%"),
        ("--landing-error", "-1"),
        ("--landing-error", "5"),
        ("--nonsense", "1"),
    ],
)
def test_a_malformed_option_is_a_usage_error(kdvfs: Run, option: str, value: str) -> None:
    assert_refused(kdvfs("optimize", LAYER, option, value), 2, option)


@pytest.mark.parametrize("verb", [("optimize",), ("study", "switching"), ("hw", "observe")])
def test_an_unknown_option_names_the_help_of_its_own_command(kdvfs: Run, verb: tuple[str, ...]) -> None:
    assert_refused(kdvfs(*verb, LAYER, "--nonsense"), 2, f"(see kdvfs {' '.join(verb)} --help)")
    assert_refused(kdvfs("--nonsense"), 2, "(see kdvfs --help)")


@pytest.mark.parametrize("digits", [9, 20, 400, 5000])
def test_clocks_of_any_length_are_refused_in_one_line(kdvfs: Run, digits: int) -> None:
    assert_refused(kdvfs("replay", LAYER, "--clocks", "sm=" + "9" * digits), 2, "--clocks", "1000000")


@pytest.mark.parametrize("value", ["nan", "20000%", "49%", "100%"])
def test_a_probability_that_is_none_names_what_one_is(kdvfs: Run, value: str) -> None:
    assert_refused(kdvfs("optimize", LAYER, "--confidence", value), 2, "from 50% to less than 100%")


@pytest.mark.parametrize("lines", [b"7\n", b'{"format": "kdvfs-record"}\n[]\n', b"[" * 200_000 + b"\n{}\n"])
def test_a_record_that_is_none_is_refused(kdvfs: Run, tmp_path: Path, lines: bytes) -> None:
    (tmp_path / "record.jsonl").write_bytes(lines)
    assert_refused(kdvfs("hw", "validate", tmp_path), 3, "record.jsonl")


def commands() -> Iterator[tuple[list[str], Any]]:
    """Every command, by the words that call it."""
    todo: list[tuple[tuple[str, ...], Any]] = [((), build())]
    while todo:
        path, command = todo.pop()
        todo += [((*path, name), sub) for name, sub in getattr(command, "commands", {}).items()]
        yield [*path], command


def numeric_options() -> list[tuple[list[str], str]]:
    """Every option of every command that takes a number: the command and the option."""
    found = []
    for path, command in commands():
        hints = get_type_hints(command.callback) if command.callback else {}
        for option in command.params:
            kinds = {hints.get(option.name), *get_args(hints.get(option.name))}
            if option.param_type_name == "option" and kinds & {int, float}:
                found.append((path, option.opts[0]))
    return sorted(found)


def commands_with(option: str) -> list[list[str]]:
    return sorted(path for path, command in commands() if any(option in p.opts for p in command.params))


ARGUMENTS = {
    "check": ["kdvfs_sim.optimize.search:SearchOptimizer"],
    "fit": ["no.csv"],
    "study": [LAYER],
    "replay": [LAYER],
    "optimize": [LAYER],
    "observe": ["--device", "emulated:h200", "--workload", "no:step"],
    "sweep": ["no.csv", "--device", "emulated:h200", "--allow-clock-control"],
    "validate": [LAYER, "--device", "emulated:h200"],
    "switching": [LAYER],
}


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "-inf", "1e400", "1e300", "", "ten", "0x10"])
@pytest.mark.parametrize(("path", "option"), numeric_options(), ids=str)
def test_no_option_takes_a_number_that_is_none(kdvfs: Run, path: list[str], option: str, value: str) -> None:
    assert_refused(kdvfs(*path, *ARGUMENTS[path[-1]], f"{option}={value}"), 2, option)


def test_every_command_with_a_number_was_found() -> None:
    assert {path[-1] for path, _ in numeric_options()} >= {"fit", "optimize", "observe", "check"}
    assert len(numeric_options()) >= 20


PERCENTAGES = [
    (["fit", "no.csv"], "--slack"),
    (["optimize", LAYER], "--energy-budget"),
    (["optimize", LAYER], "--confidence"),
    (["study", "switching", LAYER], "--slack"),
    (["hw", "validate", LAYER, "--device", "emulated:h200"], "--slack"),
]


@pytest.mark.parametrize("value", ["-1", "-1%", "nan", "inf%", "1e400", "1e300", "", "%", "ten"])
@pytest.mark.parametrize(("command", "option"), PERCENTAGES, ids=str)
def test_no_option_takes_a_percentage_that_is_none(
    kdvfs: Run, command: list[str], option: str, value: str
) -> None:
    assert_refused(kdvfs(*command, f"{option}={value}"), 2, option)


@pytest.mark.parametrize("command", commands_with("--slack"), ids=" ".join)
def test_every_command_says_of_a_slack_that_may_be_a_share_how_it_is_read(
    kdvfs: Run, command: list[str]
) -> None:
    done = kdvfs(*command, "no-such-file", "--slack", "0.01")
    assert done.code == 3
    note, refusal = done.stderr.splitlines()
    assert note == "note: --slack 0.01 is read as 0.01 %; for 1 per cent write 1%"
    assert "no-such-file" in refusal
    assert "read as" not in kdvfs(*command, "no-such-file", "--slack", "0.01%").stderr


def test_every_command_with_a_slack_was_found() -> None:
    known = (["fit"], ["hw", "validate"], ["optimize"], ["study", "switching"])
    assert all(command in commands_with("--slack") for command in known)


@pytest.mark.parametrize("verb", ["import", "replay"])
def test_a_file_of_another_kind_is_not_replaced(kdvfs: Run, tmp_path: Path, verb: str) -> None:
    other = tmp_path / "thesis.txt"
    other.write_text("years of work")
    assert_refused(kdvfs(verb, LAYER, "-o", other), 3, "thesis.txt", "exists")
    assert other.read_text() == "years of work"


def test_a_name_that_promises_another_format_is_refused(kdvfs: Run, tmp_path: Path) -> None:
    assert_refused(kdvfs("import", LAYER, "-o", tmp_path / "layer.csv"), 3, "layer.csv", ".parquet")
    assert files_in(tmp_path) == []


def test_a_study_does_not_replace_a_file_of_another_kind(kdvfs: Run, tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text("[]")
    outcome = kdvfs("study", "switching", LAYER, "--out-dir", tmp_path)
    assert_refused(outcome, 3, "study.json", "exists")
    assert files_in(tmp_path) == ["study.json"]


def test_results_do_not_replace_a_file_of_another_kind(kdvfs: Run, tmp_path: Path) -> None:
    (tmp_path / "timeline.json").write_text("[]")
    outcome = kdvfs("optimize", LAYER, "--protocol", "free", "--out-dir", tmp_path)
    assert_refused(outcome, 3, "timeline.json", "exists")
    assert files_in(tmp_path) == ["timeline.json"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize("verb", ["import", "replay", "optimize", "study"])
def test_an_unwritable_folder_is_refused(kdvfs: Run, tmp_path: Path, verb: str) -> None:
    tmp_path.chmod(0o500)
    assert_refused(kdvfs(*arguments(verb, LAYER, tmp_path)), 3, str(tmp_path))


@pytest.mark.parametrize("verb", ["import", "replay", "optimize", "study"])
def test_a_folder_that_cannot_be_made_is_refused(kdvfs: Run, tmp_path: Path, verb: str) -> None:
    (tmp_path / "file").write_text("")
    outcome = kdvfs(*arguments(verb, LAYER, tmp_path / "file"))
    assert_refused(outcome, 3, str(tmp_path))
    assert files_in(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"[]", "not a schedule"),
        (b"{", "not JSON"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"format": "kdvfs-schedule", "schema_version": ' + b"9" * 5000 + b"}", "not JSON"),
        (b'{"format": "kdvfs-schedule", "schema_version": 99}', "99"),
        (
            b'{"format": "kdvfs-schedule", "schema_version": 1, "protocol": "free", "boundary": "periodic", '
            b'"requests": [{"launch": 100000, "stream": 7, "clocks": "sm=1410,mem=auto"}]}',
            "100000",
        ),
        (
            b'{"format": "kdvfs-schedule", "schema_version": 1, "protocol": "free", "boundary": "periodic", '
            b'"requests": [{"launch": 0, "stream": 7, "clocks": "sm=1411,mem=auto"}]}',
            "sm=1410",
        ),
    ],
)
def test_a_schedule_that_does_not_fit_is_refused(
    kdvfs: Run, tmp_path: Path, content: bytes, word: str
) -> None:
    schedule = tmp_path / "schedule.json"
    schedule.write_bytes(content)
    assert_refused(kdvfs("replay", LAYER, "--schedule", schedule), 3, word)


def test_a_schedule_without_requests_is_replayed_under_its_own_protocol(kdvfs: Run, tmp_path: Path) -> None:
    nothing = Schedule(requests=(), protocol="drain", boundary="one-shot")
    write_schedule(nothing, tmp_path / "schedule.json")
    done = kdvfs("replay", LAYER, "--schedule", tmp_path / "schedule.json")
    assert done.code == 0
    assert "a schedule of 0 requests under drain, one-shot" in done.stdout


def test_an_energy_budget_that_cannot_be_met_has_its_own_exit_code(kdvfs: Run) -> None:
    outcome = kdvfs("optimize", LAYER, "--protocol", "free", "--energy-budget", "1%", "--json")
    assert outcome.code == 4
    rows = json.loads(outcome.stdout)["policies"]
    assert {row["status"] for row in rows if row["name"] == "launch"} == {"infeasible"}


def test_an_unexpected_exception_is_our_bug_in_one_line(kdvfs: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.delenv("KDVFS_DEBUG", raising=False)
    monkeypatch.setattr("kdvfs_sim.study.workload.read_trace", broken)
    assert_refused(kdvfs("inspect", LAYER), 70, "our bug", "boom")


@pytest.mark.parametrize("verb", ["optimize", "study"])
def test_a_recording_that_takes_no_time_has_nothing_to_compare_with(
    kdvfs: Run, tmp_path: Path, verb: str
) -> None:
    """Of what lasts less than the clock that recorded it shows, no percentages can be given."""
    path = tmp_path / "short.csv"
    path.write_text("name,start_ns,duration_ns\na,0,0\nb,0,0\n")
    outcome = kdvfs(*arguments(verb, path, tmp_path), "--gpu", "h200")
    assert_refused(outcome, 3, "nothing to compare with", "takes no time")
    assert not files_in(tmp_path / "out")
