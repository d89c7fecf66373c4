"""The timeline file: what Perfetto is given adds up to what was replayed."""

from __future__ import annotations

import itertools
import json

import pytest

from kdvfs_sim.core.clocks import AUTO, Clocks
from kdvfs_sim.core.schedule import ClockRequest, Schedule
from kdvfs_sim.report.perfetto import REQUESTS_TRACK, write_perfetto
from kdvfs_sim.study.scene import build_scene
from kdvfs_sim.trace.readers import read_trace


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, object]:
    scene = build_scene(read_trace("h200_gpt3xl_layer_train"), boundary="one-shot")
    stream = scene.chain.stream
    schedule = Schedule(
        requests=(
            ClockRequest(clocks=Clocks(1410, AUTO), launch=5, stream=stream),
            ClockRequest(clocks=Clocks(1200, AUTO), launch=100, stream=stream),
        ),
        protocol="free",
        boundary="one-shot",
    )
    run = scene.replay(schedule, scene.protocols["free"])
    path = tmp_path_factory.mktemp("timeline") / "timeline.json"
    write_perfetto(run.timeline, path, title="test")
    return json.loads(path.read_text()), run


def test_every_operation_is_a_slice_with_its_exact_times(written: tuple[dict, object]) -> None:
    document, run = written
    slices = [e for e in document["traceEvents"] if e["ph"] == "X" and e["tid"] != REQUESTS_TRACK]
    expected = [(a, b - a) for a, b in zip(run.timeline.start_ns, run.timeline.end_ns, strict=True)]
    assert sorted((round(e["ts"] * 1000), round(e["dur"] * 1000)) for e in slices) == sorted(expected)


def test_power_is_a_counter_that_integrates_to_the_energy(written: tuple[dict, object]) -> None:
    document, run = written
    counter = [e for e in document["traceEvents"] if e["ph"] == "C" and e["name"] == "power (W)"]
    energy = sum(a["args"]["value"] * (b["ts"] - a["ts"]) * 1e-6 for a, b in itertools.pairwise(counter))
    assert energy == pytest.approx(run.metrics.energy_j, rel=1e-9)
    assert counter[-1]["ts"] == pytest.approx(run.metrics.time_s * 1e6)


def test_energies_of_operations_are_named_as_what_they_are(written: tuple[dict, object]) -> None:
    """They add up to the energy only together with the idle floor."""
    document, run = written
    of_each = [e["args"] for e in document["traceEvents"] if e["ph"] == "X" and e["tid"] != REQUESTS_TRACK]
    assert sum(args["energy_above_idle_j"] for args in of_each) < 0.95 * run.metrics.energy_j
    assert not any("energy_j" in args for args in of_each)


def test_requests_and_clocks_have_tracks(written: tuple[dict, object]) -> None:
    document, _ = written
    requests = [e["name"] for e in document["traceEvents"] if e["ph"] == "X" and e["tid"] == REQUESTS_TRACK]
    assert requests == ["sm=1410,mem=auto", "sm=1200,mem=auto"]
    clocks = {e["args"]["value"] for e in document["traceEvents"] if e.get("name") == "SM clock (MHz)"}
    assert {1410, 1200} <= clocks
