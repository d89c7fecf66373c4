"""Times with a margin: what was recorded stays, everything else takes longer, budgets hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kdvfs_sim.cli import main
from kdvfs_sim.core.errors import InputError
from kdvfs_sim.gpu.facts import Fact
from kdvfs_sim.study.equal_slack import equal_slack
from kdvfs_sim.study.margin import with_time_margin
from kdvfs_sim.study.plans import Budget, Plan
from kdvfs_sim.study.scene import Scene, build_scene
from kdvfs_sim.trace.readers import read_trace

TRACE = "h200_gpt3xl_layer_infer_cudagraph"


@pytest.fixture(scope="module")
def scene() -> Scene:
    return build_scene(read_trace(TRACE))


def fitted(scene: Scene, residual: float) -> Scene:
    fact = Fact(value=residual, source="a fit", kind="measured")
    return replace(scene, gpu=scene.gpu.with_facts({"latency.residual_p95": fact}))


def test_only_times_away_from_the_recorded_clocks_grow(scene: Scene) -> None:
    raised = with_time_margin(fitted(scene, 0.03))
    before, after = scene.costs["nominal"], raised.costs["nominal"]
    at_recorded = before.effective == before.effective[:, [before.recorded]]
    np.testing.assert_array_equal(after.ratio[at_recorded], 1.0)
    np.testing.assert_allclose(after.ratio[~at_recorded], 1.03 * before.ratio[~at_recorded])
    np.testing.assert_array_equal(after.power_w, before.power_w)
    assert raised.power_table is not None
    assert scene.power_table is not None
    limited, plain = (s.power_table("nominal", 500.0) for s in (raised, scene))  # type: ignore[misc]
    assert (limited.ratio >= plain.ratio).all()
    assert limited.ratio.max() > 1.02
    assert "margin of 3.0%" in raised.flags[-1]
    assert with_time_margin(fitted(scene, 0.0)).costs["nominal"] is before


def test_an_entry_that_was_not_fitted_has_no_margin(scene: Scene) -> None:
    with pytest.raises(InputError, match=r"latency\.residual_p95 is unknown"):
        with_time_margin(scene)


def test_what_is_chosen_with_the_margin_saves_less(scene: Scene) -> None:
    saved = []
    for one in (scene, with_time_margin(fitted(scene, 0.02))):
        table = equal_slack(
            one, budget=Budget(slack_pct=5.0), protocols=["free"], plans=[Plan(granularity="kind")]
        )
        row = next(row for row in table.rows if row.name == "kind")
        assert row.time_pct is not None
        assert row.energy_pct is not None
        assert row.time_pct <= 5.0 + 1e-6
        saved.append(-row.energy_pct)
    assert saved[1] < saved[0] - 0.2


def test_only_p95_is_known_to_an_entry(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["optimize", TRACE, "--margin", "p90"])
    assert end.value.code == 2
    assert "--margin 'p90': p95 is right" in capsys.readouterr().err
