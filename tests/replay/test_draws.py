"""Switching times that chance decides: the replay, its reference and the fast evaluator agree on them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdvfs_sim.core.errors import InputError
from kdvfs_sim.core.switching import SwitchDraws
from kdvfs_sim.replay.simulate import replay
from kdvfs_sim.testing.strategies import Scene, scenes, single_stream
from tests.replay.test_fast import check_equal, crowded, evaluator, outcome
from tests.replay.test_reference import check_against_reference


@st.composite
def draws_for(draw: st.DrawFn, n_requests: int) -> SwitchDraws:
    factors = st.sampled_from([0.0, 0.5, 1.0, 1.3, 2.5])
    late = st.integers(-5, 20)
    return SwitchDraws(
        factor=np.asarray(
            draw(st.lists(factors, min_size=n_requests, max_size=n_requests)), dtype=np.float64
        ),
        late_ns=np.asarray(draw(st.lists(late, min_size=n_requests, max_size=n_requests)), dtype=np.int64),
    )


@given(scenes(trace=single_stream()), st.data())
def test_the_replay_against_its_reference(scene: Scene, data: st.DataObject) -> None:
    check_against_reference(scene, data.draw(draws_for(len(scene.schedule))))


@given(crowded(), st.data())
def test_the_fast_evaluator_against_the_replay(scene: Scene, data: st.DataObject) -> None:
    draws = data.draw(draws_for(len(scene.schedule)))
    slow = outcome(lambda: replay(scene.program, **scene.arguments, draws=draws).metrics)
    check_equal(outcome(lambda: evaluator(scene).evaluate(scene.schedule, draws)), slow)


@given(crowded())
def test_no_luck_changes_nothing(scene: Scene) -> None:
    n = len(scene.schedule)
    draws = SwitchDraws(factor=np.ones(n), late_ns=np.zeros(n, dtype=np.int64))
    plain = outcome(lambda: evaluator(scene).evaluate(scene.schedule))
    assert outcome(lambda: evaluator(scene).evaluate(scene.schedule, draws)) == plain


@given(scenes(trace=single_stream()), st.data())
def test_a_batch_takes_each_schedule_at_its_own_luck(scene: Scene, data: st.DataObject) -> None:
    draws = [data.draw(draws_for(len(scene.schedule))) for _ in range(3)]
    fast = evaluator(scene)
    luck = SwitchDraws(
        factor=np.concatenate([d.factor for d in draws]), late_ns=np.concatenate([d.late_ns for d in draws])
    )
    batch = fast.evaluate_many(replace(fast.arrays([scene.schedule] * 3), draws=luck))
    for i, one in enumerate(draws):
        metrics = outcome(lambda one=one: fast.evaluate(scene.schedule, one))
        if isinstance(metrics, tuple):
            assert batch.time_ns[i] == -1
        else:
            assert batch.time_ns[i] / 1e9 == metrics.time_s


def test_draws_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="one of each per request"):
        SwitchDraws(factor=np.ones(2), late_ns=np.zeros(3, dtype=np.int64))
    with pytest.raises(InputError, match="finite"):
        SwitchDraws(factor=np.array([-1.0]), late_ns=np.zeros(1, dtype=np.int64))
