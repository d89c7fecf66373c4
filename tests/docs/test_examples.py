"""Commands, Python and CSV shown in README and docs are run as they stand."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kdvfs_sim.cli import main
from kdvfs_sim.cli.app import build
from kdvfs_sim.trace.readers import read_trace
from kdvfs_sim.trace.recordings import find_shipped

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SWEEP = "kernel,sm_mhz,mem_mhz,time_s,power_w\n" + "".join(
    f"g,{mhz},1593,{1.0 + 300 / mhz},{100 + mhz * 0.2}\n" for mhz in range(510, 1411, 150)
)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(page: Path) -> Iterator[tuple[str, int]]:
    """Indented lines that call ``kdvfs``, also inside a one-line set-up command, and their exit codes.

    Those that need a real GPU are left out: ``hw`` on anything but an emulated one. So are validations, which
    take minutes of real time; tests/hw runs them.
    """
    for line in page.read_text().splitlines():
        if line.startswith("    ") and (match := re.search(r"(?:^ {4}|/bin/)kdvfs (.*)", line)):
            command, _, comment = match.group(1).partition("  #")
            code = re.search(r"exit code (\d+)", comment)
            if command.startswith("hw validate") or (
                command.startswith("hw ") and "emulated:" not in command
            ):
                continue
            yield command.strip(), int(code.group(1)) if code else 0


def typed(page: Path) -> Iterator[str]:
    """Every call of ``kdvfs`` on a page, in its sentences and in its blocks, without comments."""
    text = page.read_text().replace("\\\n", " ")
    yield from (" ".join(span.split()) for span in re.findall(r"(?<!`)`kdvfs ([^`]+)`", text))
    for line in text.splitlines():
        if match := re.match(r"(?: {4}|\$ |)kdvfs (?=[a-z])(.*)", line):
            yield match.group(1).partition("  #")[0].strip()


def blocks(page: Path, language: str) -> list[str]:
    return [body for kind, body in BLOCK.findall(page.read_text()) if kind == language]


def pages_with(find: str) -> list[Path]:
    if find == "commands":
        return [page for page in PAGES if any(commands(page))]
    return [page for page in PAGES if blocks(page, find)]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the pages call the reader's own trace."""
    recording = find_shipped("h200_gpt3xl_layer_train")
    assert recording is not None
    shutil.copy(recording.path, tmp_path / "step.json.gz")
    for example in (ROOT / "docs").rglob("*.py"):
        shutil.copy(example, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", pages_with("commands"), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_the_commands_of_a_page_run_in_order(
    desk: Path, page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert desk.is_dir()
    for command, code in commands(page):
        with pytest.raises(SystemExit) as exit_:
            main(command.split())
        assert exit_.value.code == code, (command, capsys.readouterr().err)
        assert capsys.readouterr().out, command


def misread(call: str) -> str | None:
    """The first word of a call that the command does not know: a verb or an option."""
    command = build()
    for word in call.split():
        if word == "--":
            break
        verbs = getattr(command, "commands", None)
        if verbs and not word.startswith("-"):
            if word not in verbs:
                return word
            command = verbs[word]
        elif word.startswith("-") and not word.lstrip("-")[:1].isdigit():
            known = {text for parameter in command.params for text in parameter.opts} | {"--help"}
            if word.partition("=")[0] not in known:
                return word
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_the_calls_on_a_page_have_verbs_and_options_that_exist(page: Path) -> None:
    assert [(call, wrong) for call in typed(page) if (wrong := misread(call)) is not None] == []


def test_a_verb_and_an_option_that_do_not_exist_are_noticed() -> None:
    assert misread("fit sweep.csv --gpu a100 -o mine.toml --suggest 10") is None
    assert misread("hw observe --workload w -- python --no-such-option") is None
    assert misread("fit sweep.csv --output-dir out") == "--output-dir"
    assert misread("measure sweep.csv") == "measure"
    assert misread("hw lock --device x") == "lock"


def test_the_quick_calls_of_the_readme_do_what_it_says(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (desk / "sweep.csv").write_text(SWEEP)
    quick = [call for call in typed(ROOT / "README.md") if call.split()[0] in ("fit", "import")]
    assert {call.split()[0] for call in quick} == {"fit", "import"}
    for call in quick:
        with pytest.raises(SystemExit) as end:
            main(call.split())
        assert not end.value.code, (call, capsys.readouterr().err)
        assert (desk / call.split()[call.split().index("-o") + 1]).is_file()


@pytest.mark.parametrize("page", pages_with("python"), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_the_python_of_a_page_runs(desk: Path, page: Path) -> None:
    assert desk.is_dir()
    for body in blocks(page, "python"):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(body, str(page), "exec"), {"__name__": "__main__"})
        assert printed.getvalue()


@pytest.mark.parametrize("page", pages_with("csv"), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_the_csv_of_a_page_is_a_trace(desk: Path, page: Path) -> None:
    for body in blocks(page, "csv"):
        (desk / "trace.csv").write_text(body)
        assert read_trace(desk / "trace.csv").n_ops == len(body.strip().splitlines()) - 1


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
