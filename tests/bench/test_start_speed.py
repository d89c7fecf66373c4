"""What every call pays: importing the package, and ``--help``. Run: pytest -m bench -s -n0"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.bench


def _median_s(*command: str, n: int = 9) -> float:
    times = []
    for _ in range(n):
        begin = time.perf_counter()
        subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def test_importing_the_package_takes_a_tenth_of_a_second_at_most() -> None:
    bare, imported = _median_s("-c", "pass"), _median_s("-c", "import kdvfs_sim")
    print(f"\nimport kdvfs_sim: {imported - bare:.3f} s over bare Python ({bare:.3f} s)")
    assert imported - bare <= 0.1


def test_help_takes_four_tenths_of_a_second_at_most() -> None:
    bare = _median_s("-c", "pass")
    shown = _median_s("-c", "from kdvfs_sim.cli import main; main(['--help'])")
    print(f"\nkdvfs --help: {shown - bare:.3f} s over bare Python ({bare:.3f} s)")
    assert shown - bare <= 0.4
