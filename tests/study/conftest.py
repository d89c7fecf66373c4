"""A recorded layer, and the table of what its policies save."""

from __future__ import annotations

import pytest

from kdvfs_sim.core.switching import PROTOCOLS
from kdvfs_sim.study.equal_slack import EqualSlack, equal_slack
from kdvfs_sim.study.plans import Budget, Plan
from kdvfs_sim.study.scene import Scene, build_scene
from kdvfs_sim.trace.readers import read_trace

PLANS = (Plan(granularity="kind"), Plan(granularity="launch"))


@pytest.fixture(scope="session")
def layer() -> Scene:
    return build_scene(read_trace("h200_gpt3xl_layer_train"))


@pytest.fixture(scope="session")
def table(layer: Scene) -> EqualSlack:
    return equal_slack(layer, budget=Budget(slack_pct=1.0), protocols=list(PROTOCOLS), plans=PLANS)
