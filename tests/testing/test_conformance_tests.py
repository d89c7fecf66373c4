"""Laws as pytest tests: each its own, known failures expected, what is not judged skipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kdvfs_sim.testing import conformance_tests
from kdvfs_sim.testing.fake_device import FakeDevice

pytest_plugins = ["pytester"]

MODULE = """
from kdvfs_sim.testing import conformance_tests
from tests.testing.mutants import MUTANTS

broken = next(m for m in MUTANTS if m.breaks == "a_no_op_is_free")

@conformance_tests(broken.make(), "switching", n_examples=20, seed=7, known={known!r})
def test_model(law):
    law()
"""


@conformance_tests(FakeDevice, "device", n_examples=20)
def test_a_fake_device(law: Any) -> None:
    law()


ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'hw'}")


def test_a_broken_law_fails_with_its_case(pytester: Any) -> None:
    pytester.makepyfile(MODULE.format(known={}))
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(
        ["*law    A request for the clocks that are requested already costs nothing.*"]
    )
    result.stdout.fnmatch_lines(["*a_no_op_is_free(plugin, *)*"])
    result.stdout.fnmatch_lines(["*again  --only a_no_op_is_free --seed 7 --examples 20*"])


def test_a_known_failure_is_expected(pytester: Any) -> None:
    pytester.makepyfile(MODULE.format(known={"a_no_op_is_free": "the driver charges it"}))
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-rx")
    result.assert_outcomes(passed=3, xfailed=1)
    result.stdout.fnmatch_lines(["*the driver charges it*"])
