"""A marker that the project promises marks something."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_hw_collects_the_tests_of_a_real_gpu() -> None:
    collect = (
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-n0",
        "-p",
        "no:cacheprovider",
        "-m",
        "hw",
        "tests/hw",
    )
    done = subprocess.run([sys.executable, *collect], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout
    found = [line for line in done.stdout.splitlines() if "::" in line]
    assert len(found) >= 4
    assert {line.partition("::")[0] for line in found} == {"tests/hw/test_real_gpu.py"}
