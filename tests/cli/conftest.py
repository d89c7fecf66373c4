"""Runs the command in this process: what it prints, where, and its exit code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from kdvfs_sim.cli import main


@dataclass(frozen=True)
class Outcome:
    code: int
    stdout: str
    stderr: str


@pytest.fixture
def kdvfs(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    def run(*arguments: object) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main([str(a) for a in arguments])
        captured = capsys.readouterr()
        code = exit_.value.code
        return Outcome(code if isinstance(code, int) else 0, captured.out, captured.err)

    return run
