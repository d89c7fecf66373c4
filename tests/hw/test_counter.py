"""Energy by counter edges: whatever the reads and the luck, the energy of whole periods is exact."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kdvfs_hw.measure.counter import energy_between, find_edges, find_period
from kdvfs_hw.measure.statistics import interval, judge

from kdvfs_sim.core.device import EnergyReading

POWER_W = 500.0
MS = 1_000_000


def polled(
    period_ms: float, read_ms: float, pause_ms: float, n: int, *, phase_ms: float = 0.0, skip: int = 0
) -> list[EnergyReading]:
    """Reads one after another of a counter that moves every period; ``skip`` of them left out."""
    readings, t = [], phase_ms
    for i in range(n):
        updates = int((t + read_ms / 2) // period_ms)
        if not n // 2 <= i < n // 2 + skip:
            readings.append(
                EnergyReading(
                    called_ns=round(t * MS),
                    returned_ns=round((t + read_ms) * MS),
                    energy_mj=round(updates * period_ms * POWER_W),
                )
            )
        t += read_ms + pause_ms
    return readings


@settings(max_examples=60)
@given(
    period_ms=st.floats(20, 120),
    share=st.floats(0.01, 0.12),
    pause=st.floats(0, 0.1),
    phase_ms=st.floats(0, 120),
    skip=st.integers(0, 30),
)
@example(period_ms=20, share=0.1171875, pause=0.0625, phase_ms=0, skip=28)
def test_energy_of_whole_periods(
    period_ms: float, share: float, pause: float, phase_ms: float, skip: int
) -> None:
    read_ms, pause_ms = share * period_ms, pause * period_ms
    n = int(30 * period_ms / (read_ms + pause_ms))
    readings = polled(period_ms, read_ms, pause_ms, n, phase_ms=phase_ms, skip=skip)
    edges = find_edges(readings)
    period = find_period(edges)
    assert period is not None
    assert period.period_ns == pytest.approx(period_ms * MS, rel=0.02)
    window = energy_between(edges, period, readings[0].called_ns, readings[-1].returned_ns)
    assert window.energy_j == pytest.approx(window.n_periods * period_ms * 1e-3 * POWER_W, rel=1e-3)
    assert window.power_w == pytest.approx(POWER_W, rel=0.02)


def test_a_window_that_is_not_on_edges_would_be_wrong_by_per_cents() -> None:
    readings = polled(100, 5, 0, 140)
    from_ns, to_ns = readings[3].called_ns, readings[133].returned_ns
    naive_w = (readings[133].energy_mj - readings[3].energy_mj) * 1e-3 / ((to_ns - from_ns) * 1e-9)
    window = energy_between(find_edges(readings), find_period(find_edges(readings)), from_ns, to_ns)
    assert abs(naive_w / POWER_W - 1) > 0.04
    assert window.power_w == pytest.approx(POWER_W, rel=1e-3)


def test_updates_out_of_turn_do_not_halve_the_period() -> None:
    readings = polled(100, 5, 0, 400)
    early = [
        EnergyReading(called_ns=r.called_ns, returned_ns=r.returned_ns, energy_mj=r.energy_mj + 7)
        if 30 <= i < 40
        else r
        for i, r in enumerate(readings)
    ]
    period = find_period(find_edges(early))
    assert period is not None
    assert period.period_ns == pytest.approx(100 * MS, rel=0.02)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda i, mj: 1000, "did not move"),
        (lambda i, mj: mj - (200_000 if i > 150 else 0), "went back"),
        (lambda i, mj: min(mj, 200_000), "too short"),
    ],
)
def test_what_is_not_known_is_not_zero(change: object, reason: str) -> None:
    readings = [
        EnergyReading(called_ns=r.called_ns, returned_ns=r.returned_ns, energy_mj=change(i, r.energy_mj))  # type: ignore[operator]
        for i, r in enumerate(polled(100, 5, 0, 300))
    ]
    period = find_period(find_edges(polled(100, 5, 0, 300)))
    window = energy_between(find_edges(readings), period, readings[0].called_ns, readings[-1].returned_ns)
    assert window.energy_j is None
    assert window.power_w is None
    assert reason in window.reason


@given(st.lists(st.floats(0.9, 1.1), min_size=3, max_size=30), st.floats(0.5, 2.0))
def test_an_answer_is_given_only_when_the_whole_interval_says_so(
    values: list[float], predicted: float
) -> None:
    found = interval(values)
    assert found is not None
    assert found.low <= found.mean * (1 + 1e-12)
    assert found.mean <= found.high * (1 + 1e-12)
    answer = judge(found, predicted, 0.02)
    off = [abs(bound / predicted - 1) for bound in (found.low, found.high)]
    if answer == "agrees":
        assert max(off) <= 0.02 + 1e-9
    if answer == "disagrees":
        assert min(off) >= 0.02 - 1e-9
    assert judge(interval(values[:2]), predicted, 0.02) == "not enough data"


def test_the_interval_covers_the_mean_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    hits = [
        found.low <= 1.0 <= found.high
        for _ in range(150)
        if (found := interval(rng.normal(1.0, 0.1, 12).tolist())) is not None
    ]
    assert 0.82 <= np.mean(hits) <= 0.99
