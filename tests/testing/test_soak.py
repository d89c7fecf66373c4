"""The soak command judges as many cases as asked for, of every law."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kdvfs_sim.testing import run, soak


@pytest.mark.soak
def test_the_soak_command_finds_nothing() -> None:
    n = int(os.environ.get("KDVFS_SOAK_EXAMPLES", "20000"))
    command = [sys.executable, "-m", "kdvfs_sim.testing.soak", "--examples", str(n), "--seconds", "3000"]
    assert subprocess.run(command, check=False).returncode == 0


FATAL = """
import os

class Fatal:
    format_name = "fatal"

    def can_read(self, path, /):
        os.abort()

    def read(self, path, /):
        raise ValueError
"""


def test_a_plug_in_that_ends_its_process_is_a_failure_with_its_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fatal.py").write_text(FATAL)
    task = (f"{tmp_path / 'fatal.py'}:Fatal", "reader", "it_leaves_other_files_alone")
    monkeypatch.setattr(soak, "tasks", lambda also: [task])
    monkeypatch.setattr(soak, "warm_up", lambda: None)
    tallies = soak.soak(n_examples=100, n_processes=1, seconds=60, seed=7, progress=False)
    (text,) = tallies[task].reports
    assert "a process ended in this" in text
    assert "seed 7" in text


def test_what_fails_while_a_law_is_judged_is_a_failure_with_its_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a defect of ours")

    monkeypatch.setattr(run, "run_law", fails)
    monkeypatch.setattr(soak, "_subject", lambda name, kind: None)
    task = ("any", "reader", "it_leaves_other_files_alone")
    _, n_judged, _, text, no_more = soak.round_of(task, 100, 7)
    assert (n_judged, no_more) == (0, True)
    assert "a defect of ours" in text
    assert "100 examples, seed 7" in text
