"""Whole answers on shipped recordings. Counts and statuses exactly; percentages to 0.001 points, since sums
of floats differ in their last digits between maths libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kdvfs_sim.study.equal_slack import equal_slack
from kdvfs_sim.study.plans import Budget, Plan
from kdvfs_sim.study.scene import build_scene
from kdvfs_sim.trace.readers import read_trace
from kdvfs_sim.trace.recordings import shipped

from .conftest import FOLDER

CASES = {
    "layer_train_1pct": ("h200_gpt3xl_layer_train", 1.0),
    "infer_cudagraph_5pct": ("h200_gpt3xl_layer_infer_cudagraph", 5.0),
}
PLANS = (Plan(granularity="kind"), Plan(granularity="launch"))
NUMBERS = ("time_pct", "energy_pct", "lower_bound_pct")


@pytest.mark.parametrize("name", CASES)
def test_the_table_is_the_recorded_one(name: str, golden: Callable[[str, Any], Any]) -> None:
    recording, slack_pct = CASES[name]
    assert recording in shipped()
    table = equal_slack(
        build_scene(read_trace(recording)),
        budget=Budget(slack_pct=slack_pct),
        protocols=["free", "drain", "lookahead"],
        plans=PLANS,
    )
    answer = [
        {
            "protocol": row.protocol,
            "name": row.name,
            "status": row.status,
            **{n: None if getattr(row, n) is None else round(getattr(row, n), 4) for n in NUMBERS},
        }
        for row in table.rows
    ]
    for found, expected in zip(answer, golden(name, answer), strict=True):
        assert {k: v for k, v in found.items() if k not in NUMBERS} == {
            k: v for k, v in expected.items() if k not in NUMBERS
        }
        for number in NUMBERS:
            assert found[number] == pytest.approx(expected[number], abs=1e-3), (found, expected)


def test_every_golden_file_belongs_to_a_case() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} <= set(CASES)
