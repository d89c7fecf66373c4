"""The laws of a plug-in as pytest tests, one each. The only module that needs pytest, and only when it is
used."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from kdvfs_sim.testing.law import Broken, Kind, Law, laws_of
from kdvfs_sim.testing.run import EXAMPLES, report, run_law


def conformance_tests(
    plugin: Any,
    kind: Kind,
    *,
    known: Mapping[str, str] | None = None,
    n_examples: int = EXAMPLES,
    seed: int = 0,
) -> Callable[[Any], Any]:
    """Parametrize a test over the laws of a kind of plug-in::

        @conformance_tests(MyOptimizer(), "optimizer", known={"more_slack_is_never_worse": "a heuristic"})
        def test_my_optimizer(law):
            law()

    ``law()`` fails with the law, the smallest case as code and the seed. A law that is known to break becomes
    an expected failure with its reason, one that no case says anything about is skipped with why.
    """
    import pytest

    reasons = known or {}
    tests = [
        pytest.param(
            functools.partial(_test, law, plugin, n_examples, seed, reasons.get(law.name, "")), id=law.name
        )
        for law in laws_of(kind)
    ]
    return pytest.mark.parametrize("law", tests)


def _test(law: Law, plugin: Any, n_examples: int, seed: int, reason: str) -> None:
    import pytest

    verdict = run_law(law, plugin, n_examples=n_examples, seed=seed, reason=reason)
    if verdict.outcome == "broken":
        raise Broken("\n" + report(verdict))
    if verdict.outcome == "known":
        pytest.xfail(reason)
    if verdict.outcome == "not judged":
        pytest.skip(verdict.found)
