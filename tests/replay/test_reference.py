"""The replay against a reference that steps through every nanosecond."""

from __future__ import annotations

import math

from hypothesis import given

from kdvfs_sim.core.switching import SwitchDraws
from kdvfs_sim.replay.simulate import replay
from kdvfs_sim.testing.reference import reference_replay
from kdvfs_sim.testing.strategies import Scene, scenes, single_stream, traces


def check_against_reference(scene: Scene, draws: SwitchDraws | None = None) -> None:
    expected = reference_replay(scene.program, **scene.arguments, draws=draws)
    result = replay(scene.program, **scene.arguments, draws=draws)
    assert result.timeline.start_ns.tolist() == expected.start_ns
    assert result.timeline.end_ns.tolist() == expected.end_ns
    metrics = result.metrics
    if math.isnan(expected.energy_j):
        assert metrics.energy_j is None
        assert metrics.energy_reason
    else:
        assert metrics.energy_j is not None
        gross_j = result.timeline.gross_energy_j
        assert abs(metrics.energy_j - expected.energy_j) <= max(1e-9 * gross_j, 1e-18)
    assert metrics.n_switches == expected.n_switches
    assert ("requests_dropped" in metrics.flags) == expected.dropped
    assert ("periodic_not_settled" in metrics.flags) == (not expected.settled)


@given(scenes(trace=single_stream(host=False)))
def test_a_chain(scene: Scene) -> None:
    check_against_reference(scene)


@given(scenes(trace=single_stream()))
def test_a_chain_with_its_host(scene: Scene) -> None:
    check_against_reference(scene)


@given(scenes(trace=traces()))
def test_streams_overlaps_waits_and_a_host(scene: Scene) -> None:
    check_against_reference(scene)
