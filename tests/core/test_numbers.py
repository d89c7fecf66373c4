"""Numbers as text, and numbers that several rooms ask for."""

from __future__ import annotations

import math
import os

import pytest

from kdvfs_sim.core.errors import InputError, UsageError
from kdvfs_sim.core.problem import Metrics, Objective
from kdvfs_sim.core.processes import usable_cores
from kdvfs_sim.core.units import parse_percent
from kdvfs_sim.gpu.fit.residuals import margin_level
from kdvfs_sim.trace.exact import to_ns

PYTHONS_OWN = ("1_0", "\uff11\uff10", "\u0661\u0660", "5\u00b2")


@pytest.mark.parametrize("text", PYTHONS_OWN)
def test_digits_that_only_python_reads_are_no_number(text: str) -> None:
    with pytest.raises(UsageError, match="is not a percentage"):
        parse_percent(f"{text}%")
    with pytest.raises(InputError, match="p50 to p99"):
        margin_level(f"p{text}")
    assert to_ns(text) is None
    assert to_ns(f"{text}.5e1") is None


def test_the_number_to_minimize_is_infinite_over_budget_and_where_unknown() -> None:
    objective = Objective(minimize="edp", max_time_s=2.0)
    assert objective.value_of(Metrics(time_s=2.0, energy_j=3.0)) == 6.0
    assert objective.value_of(Metrics(time_s=2.1, energy_j=3.0)) == math.inf
    assert objective.value_of(Metrics(time_s=1.0, energy_j=None)) == math.inf
    assert objective.value_of(None) == math.inf


def test_per_cent_of_an_unknown_energy_are_no_number() -> None:
    base = Metrics(time_s=2.0, energy_j=4.0)
    assert Metrics(time_s=3.0, energy_j=3.0).pct_of(base) == (50.0, -25.0)
    time_pct, energy_pct = Metrics(time_s=1.0, energy_j=None).pct_of(base)
    assert time_pct == -50.0
    assert math.isnan(energy_pct)


def test_where_the_system_names_no_cores_to_run_on_all_there_are_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert usable_cores() == 7
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3}, raising=False)
    assert usable_cores() == 2
