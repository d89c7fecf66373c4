"""What happens to results that cannot be printed: processes of their own, since stdout is the subject."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = f"{sys.executable} -m kdvfs_sim gpus h200"


def shell(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)


def test_a_reader_that_goes_away_is_no_error() -> None:
    result = shell(f"{COMMAND} | head -1; echo ${{PIPESTATUS[0]}}")
    assert result.stdout.splitlines()[-1] == "0"
    assert result.stderr == ""


def test_a_closed_stdout_is_no_error() -> None:
    result = shell(f"{COMMAND} >&-")
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line() -> None:
    result = shell(f"{COMMAND} >/dev/full")
    assert result.returncode == 3
    assert result.stderr.startswith("kdvfs: stdout: cannot be written")
    assert len(result.stderr.splitlines()) == 1
