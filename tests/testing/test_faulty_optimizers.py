"""Optimizers with mistakes that people make are caught, by cases that a person can read."""

from __future__ import annotations

from typing import Any

import pytest

from kdvfs_sim.core.problem import Problem
from kdvfs_sim.testing.law import Broken
from kdvfs_sim.testing.laws import optimizer as laws
from kdvfs_sim.testing.run import run_law
from tests.testing.faulty import FAULTY


@pytest.mark.parametrize(
    ("faulty", "name"), FAULTY.items(), ids=lambda value: getattr(value, "__name__", value)
)
def test_a_faulty_optimizer_is_caught_by_a_small_case(faulty: Any, name: str) -> None:
    law = getattr(laws, name)
    verdict = run_law(law, faulty(), n_examples=1000)
    assert verdict.outcome == "broken"
    problem = verdict.case if isinstance(verdict.case, Problem) else verdict.case[0]
    assert len(problem.chain) <= 5
    assert problem.costs.n_clocks <= 3
    # what is printed is code that breaks the same law again
    with pytest.raises(Broken):
        exec(verdict.code(), {"plugin": faulty()})
