"""A first run compiles for long: it says so, once, and a later run that finds the cache says nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kdvfs_sim.core.errors import InputError

SAID = "compiling the evaluators, once"
SCRIPT = """
import sys, numpy as np
from kdvfs_sim.cli.console import say_when_compiling
from kdvfs_sim.core.compiled import compiled
say_when_compiling()
say_when_compiling()
sys.path.insert(0, {folder!r})
import loop
assert loop.total(np.arange(4.0)) == loop.twice(np.arange(4.0)) / 2
"""
LOOP = """
from kdvfs_sim.core.compiled import compiled

@compiled
def total(x):
    s = 0.0
    for value in x:
        s += value
    return s

@compiled
def twice(x):
    return 2 * total(x)
"""


def stderr_of(folder: Path) -> str:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "cache")}
    script = SCRIPT.format(folder=str(folder))
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stderr


def test_compiling_is_said_once_and_only_where_something_is_compiled(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    assert stderr_of(tmp_path).count(SAID) == 1
    assert SAID not in stderr_of(tmp_path)


@pytest.mark.parametrize("command", [("optimize", "--protocol", "free"), ("study", "switching")])
def test_commands_that_compile_say_so(
    command: tuple[str, ...], kdvfs: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def said() -> None:
        raise InputError("it was asked to say so")

    monkeypatch.setattr("kdvfs_sim.cli.console.say_when_compiling", said)
    assert "it was asked to say so" in kdvfs(*command, "h200_gpt3xl_layer_train").stderr
