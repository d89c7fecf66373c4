"""``kdvfs check``: what it prints, its exit codes, and its words for mistakes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kdvfs_sim.cli import main
from kdvfs_sim.core.problem import Problem
from kdvfs_sim.testing import check

ROOT = Path(__file__).resolve().parents[2]
FAULTY = ROOT / "tests" / "testing" / "faulty.py"
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'hw'}:{FAULTY.parent}"}


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as exit_:
        main([str(argument) for argument in arguments])
    code = exit_.value.code
    assert isinstance(code, int)
    return code


def test_a_broken_plug_in_ends_in_5_with_a_case_that_runs(capsys: pytest.CaptureFixture[str]) -> None:
    code = run("check", f"{FAULTY}:BetweenTheClocks", "--only", "clocks_are_on_the_table")
    printed = capsys.readouterr().out
    assert code == 5
    assert "law    Every request asks for a row of the cost table that may be requested." in printed
    assert "plugin = BetweenTheClocks()" in printed
    assert "--only clocks_are_on_the_table --seed 0 --examples 100" in printed
    case = printed.partition("  case\n")[2].partition("  again")[0]
    code_text = "\n".join(line.removeprefix("    ") for line in case.splitlines())
    ran = subprocess.run(
        [sys.executable, "-c", code_text],
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
    )
    assert "Broken: a request asks for" in ran.stderr


def test_a_correct_plug_in_ends_in_0(capsys: pytest.CaptureFixture[str]) -> None:
    name = "kdvfs_sim.optimize.search:SearchOptimizer"
    assert run("check", name, "--only", "clocks_are_on_the_table", "--examples", 20) == 0
    assert capsys.readouterr().out.startswith("held       clocks_are_on_the_table")


def test_a_known_failure_is_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    law = "clocks_are_on_the_table"
    code = run(
        "check", f"{FAULTY}:BetweenTheClocks", "--only", law, "--known", f"{law}=clocks are continuous"
    )
    assert code == 0
    assert "known      clocks_are_on_the_table  (clocks are continuous)" in capsys.readouterr().out


RAISING = """
from kdvfs_sim.optimize.solve import ExactOptimizer

class Always:
    def solve(self, problem, *, seed):
        raise RuntimeError("not today")

class Sometimes(ExactOptimizer):
    def solve(self, problem, *, seed):
        if len(problem.chain) > 1:
            raise RuntimeError("too long")
        return super().solve(problem, seed=seed)
"""


def test_cases_in_which_a_plug_in_raised_are_counted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "raising.py").write_text(RAISING)
    name = f"{tmp_path / 'raising.py'}:Sometimes"
    options = ("--only", "clocks_are_on_the_table", "--only", "same_seed_same_answer", "--examples", "20")
    assert run("check", name, *options) == 0
    *lines, total = capsys.readouterr().out.splitlines()
    found = [re.search(r"; in (\d+) more .*solve raised RuntimeError: too long", line) for line in lines[:2]]
    counts = [int(each.group(1)) for each in found if each is not None]
    assert len(counts) == 2
    assert total == f"the plug-in raised in {sum(counts)} cases that were not judged therefore"
    assert run("check", name, *options, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["n_raised"] == sum(counts)
    assert [each["n_raised"] for each in document["laws"]] == counts


def test_a_plug_in_that_always_raises_has_not_passed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Nor where that is said beforehand: what else is known of it was not judged."""
    (tmp_path / "raising.py").write_text(RAISING)
    name, other = f"{tmp_path / 'raising.py'}:Always", ("--only", "clocks_are_on_the_table")
    assert run("check", name, *other, "--examples", "10") == 5
    printed = capsys.readouterr().out
    assert "Always.solve raised RuntimeError: not today in all 10 cases)" in printed
    assert "raised in 10 cases that were not judged therefore, and no other case of 1 law was left" in printed
    total = ("--only", "answers_every_problem", "--known", "answers_every_problem=it raises")
    assert run("check", name, *total, *other, "--examples", "10") == 5
    assert run("check", name, *total, "--examples", "10") == 0


def test_json_alone_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    law = "clocks_are_on_the_table"
    assert run("check", f"{FAULTY}:BetweenTheClocks", "--only", law, "--json") == 5
    document = json.loads(capsys.readouterr().out)
    assert document["broken"] == 1
    assert document["laws"][0]["law"] == law
    assert "plugin = BetweenTheClocks()" in document["laws"][0]["code"]


def test_a_model_of_two_kinds_is_held_to_both(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(
        "class Model:\n"
        "    def duration_ns(self, kind, clocks, /): return 1e6 / clocks.sm_mhz\n"
        "    def busy_power_w(self, kind, clocks, /): return 100.0\n"
        "    def idle_power_w(self, clocks, /): return 50.0\n"
    )
    assert run("check", f"{tmp_path / 'two.py'}:Model", "--examples", 10) == 0
    printed = capsys.readouterr().out
    assert "durations_are_positive" in printed
    assert "busy_power_is_a_number_of_watts" in printed


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["h200_gpt3xl_layer_train"], 2, "did you mean kdvfs inspect h200_gpt3xl_layer_train?"),
        ([""], 2, "write module:Object or file.py:Object"),
        (["nothing"], 2, "write module:Object or file.py:Object"),
        (["no.such.module:X"], 2, "no module 'no.such.module'"),
        (["missing.py:X"], 2, "missing.py: no such file"),
        (["kdvfs_sim.optimize.solve:Nothing"], 2, "it has: "),
        (["kdvfs_sim.core.clocks:AUTO"], 2, "has none of the methods that tell its kind"),
        (["kdvfs_sim.optimize.solve:ExactOptimizer", "--kind", "oracle"], 2, "--kind 'oracle': one of"),
        (["kdvfs_sim.optimize.solve:ExactOptimizer", "--only", "gravity"], 2, "no law 'gravity'"),
        (["kdvfs_sim.optimize.solve:ExactOptimizer", "--known", "x"], 2, "write LAW=REASON"),
        (["kdvfs_sim.gpu.model:AnalyticModel"], 5, "AnalyticModel() failed: TypeError"),
        (["kdvfs_sim.core.clocks:AUTO", "--kind", "optimizer"], 2, "is no optimizer: it has no solve()"),
        (["kdvfs_sim.core.clocks:AUTO", "--kind", "search"], 2, "is no search: it cannot be called"),
        (["kdvfs_sim.core.clocks:AUTO", "--kind", "device"], 2, "is no device: it cannot be called"),
        (["kdvfs_sim.core.problem:Metrics", "--kind", "evaluator", "--seed", "-1"], 2, "--seed"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_a_mistake_gets_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    assert run("check", *arguments) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert words in captured.err


ENDINGS = """
import ctypes, os, sys
print("printed at import")
os.write(1, b"written at import\\n")

class Plugin:
    def solve(self, problem, *, seed):
        print("printed in a law")
        {ending}

class Made:
    def __init__(self):
        {ending}
    def solve(self, problem, *, seed):
        return None

class Looked:
    @property
    def solve(self):
        {ending}
"""
LAWS = ("--only", "answers_every_problem", "--only", "clocks_are_on_the_table", "--examples", "5")


@pytest.mark.parametrize(
    ("ending", "found"),
    [
        ("raise SystemExit(0)", "Plugin.solve raised SystemExit: 0"),
        ("raise KeyboardInterrupt", "Plugin.solve raised KeyboardInterrupt"),
        ("raise GeneratorExit", "Plugin.solve raised GeneratorExit"),
        ("os._exit(0)", "it ended its process (exit code 0)"),
        ("os._exit(7)", "it ended its process (exit code 7)"),
        ("os.kill(os.getpid(), 9)", "its process died of SIGKILL"),
        ("ctypes.string_at(0)", "its process died of SIGSEGV"),
    ],
)
def test_whatever_a_plug_in_does_to_its_process_is_its_verdict(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, ending: str, found: str
) -> None:
    (tmp_path / "ends.py").write_text(ENDINGS.format(ending=ending))
    assert run("check", f"{tmp_path / 'ends.py'}:Plugin", *LAWS, "--json") == 5
    captured = capfd.readouterr()
    document = json.loads(captured.out)
    first, second = document["laws"]
    assert (first["law"], first["outcome"]) == ("answers_every_problem", "broken")
    assert found in first["found"]
    assert second["law"] == "clocks_are_on_the_table"  # tried though the first ended the process
    assert second["outcome"] != "held"
    assert "Traceback" not in captured.err
    for text in ("printed at import", "written at import", "printed in a law"):
        assert text in captured.err


@pytest.mark.parametrize("ending", ["raise SystemExit(0)", "raise KeyboardInterrupt", "os._exit(0)"])
@pytest.mark.parametrize("name", ["Made", "Looked"])
def test_a_plug_in_that_ends_before_the_first_law_is_one_line(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, ending: str, name: str
) -> None:
    (tmp_path / "ends.py").write_text(ENDINGS.format(ending=ending))
    assert run("check", f"{tmp_path / 'ends.py'}:{name}", "--kind", "optimizer") == 5
    captured = capfd.readouterr()
    assert captured.out == ""
    line = captured.err.splitlines()[-1]
    assert line.startswith("kdvfs: ")
    assert any(word in line for word in ("SystemExit", "KeyboardInterrupt", "exit code 0"))


@pytest.mark.parametrize(
    "text", ["raise SystemExit(0)", "raise KeyboardInterrupt", "import os; os._exit(0)", "def ("]
)
def test_a_module_that_ends_when_imported_is_one_line(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, text: str
) -> None:
    (tmp_path / "ends.py").write_text(text)
    assert run("check", f"{tmp_path / 'ends.py'}:Plugin") == 5
    captured = capfd.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert "ends.py" in captured.err


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", ">&- 2>&- <&-"])
def test_closed_streams_change_nothing_but_what_is_seen(tmp_path: Path, closed: str) -> None:
    (tmp_path / "ends.py").write_text(ENDINGS.format(ending="return None"))
    command = f"{sys.executable} -m kdvfs_sim check {tmp_path / 'ends.py'}:Plugin --json --only " + LAWS[1]
    done = subprocess.run(
        f"{command} --examples 3 {closed}",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
    )
    assert done.returncode == 5
    assert "ended its process" not in done.stdout + done.stderr
    if closed == "2>&-":
        assert json.loads(done.stdout)["broken"] == 1


def test_an_interrupt_ends_the_other_process_too(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import os, time\n"
        "class Plugin:\n"
        "    def solve(self, problem, *, seed):\n"
        f"        open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
        "        time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "kdvfs_sim", "check", f"{tmp_path / 'slow.py'}:Plugin"],
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    pid = tmp_path / "pid"
    wait_until(lambda: pid.exists() and pid.read_text() != "")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in said
    wait_until(lambda: not Path(f"/proc/{pid.read_text()}").exists())


def wait_until(done: Callable[[], bool], limit_s: float = 60.0) -> None:
    end = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_an_interrupt_is_the_users_where_interrupts_are_not_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.default_int_handler)

    class Interrupts:
        def solve(self, problem: Problem, *, seed: int) -> None:
            raise KeyboardInterrupt

    laws = check(Interrupts(), "optimizer", only=["answers_every_problem"])
    with pytest.raises(KeyboardInterrupt):
        next(laws)


def test_what_leaves_in_this_process_breaks_its_law_too() -> None:
    class Leaves:
        def solve(self, problem: Problem, *, seed: int) -> None:
            raise GeneratorExit

    (verdict,) = check(Leaves(), "optimizer", only=["answers_every_problem"])
    assert (verdict.outcome, verdict.found) == (
        "broken",
        f"{Leaves.solve.__qualname__} raised GeneratorExit: ",
    )


def test_a_model_that_cannot_say_what_it_is_for_breaks_its_laws() -> None:
    class Model:
        @property
        def clock_table(self) -> None:
            raise SystemExit(3)

        def duration_ns(self, kind: object, clocks: object, /) -> int:
            return 1

    (verdict,) = check(Model(), "latency", only=["durations_are_positive"])
    assert verdict.outcome == "broken"
    assert "SystemExit: 3" in verdict.found


def test_a_seed_decides_the_cases() -> None:
    def asked(seed: int) -> list[object]:
        cases: list[object] = []

        class Model:
            def duration_ns(self, kind: object, clocks: object, /) -> int:
                cases.append((kind, clocks))
                return 1

        (verdict,) = check(Model(), "latency", only=["durations_are_positive"], n_examples=20, seed=seed)
        assert (verdict.outcome, verdict.seed) == ("held", seed)
        return cases

    assert asked(1) == asked(1) != asked(2)


BLOCKER = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
"""


def without(folder: Path, names: set[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run where some packages cannot be imported, in every process."""
    (folder / "sitecustomize.py").write_text(BLOCKER.format(names=names))
    environment = {**ENVIRONMENT, "PYTHONPATH": f"{folder}:{ENVIRONMENT['PYTHONPATH']}"}
    return subprocess.run(
        [sys.executable, "-m", "kdvfs_sim", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=FAULTY.parent,
        env=environment,
    )


def test_without_hypothesis_one_line_says_what_to_install(tmp_path: Path) -> None:
    result = without(tmp_path, {"hypothesis", "pytest"}, "check", "faulty.py:OwnEstimate")
    assert result.returncode == 2
    assert result.stderr.splitlines() == [
        "kdvfs: kdvfs_sim.testing and kdvfs check need hypothesis: pip install 'kdvfs-sim[testing]'"
    ]


def test_it_works_without_pytest(tmp_path: Path) -> None:
    arguments = ("check", "faulty.py:OwnEstimate", "--only", "the_problem_is_left_alone", "--examples", "20")
    result = without(tmp_path, {"pytest", "_pytest"}, *arguments)
    assert result.returncode == 0, result.stderr
    assert "held       the_problem_is_left_alone" in result.stdout
