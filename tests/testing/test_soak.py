"""The soak command judges as many cases as asked for, of every law."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.soak
def test_the_soak_command_finds_nothing() -> None:
    n = int(os.environ.get("KDVFS_SOAK_EXAMPLES", "20000"))
    command = [sys.executable, "-m", "kdvfs_sim.testing.soak", "--examples", str(n), "--seconds", "3000"]
    assert subprocess.run(command, check=False).returncode == 0
