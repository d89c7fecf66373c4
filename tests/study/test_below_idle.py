"""Kernels below the idle power: noise is borne, energies below 0 are refused, early and in one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.core.errors import InputError
from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.optimize.solve import solve
from kdvfs_sim.study.equal_slack import equal_slack
from kdvfs_sim.study.plans import PLANS, Budget
from kdvfs_sim.study.scene import Scene, build_scene
from kdvfs_sim.testing.notation import costs, problem, trace
from kdvfs_sim.trace.table import Trace

CLOCKS = ["auto", "sm=1410,mem=auto", "sm=900,mem=auto"]
TIME = [[1, 1.2, 1.6], [1, 1.0, 1.1]]
KINDS = (KernelKind(name="wide", category="gemm"), KernelKind(name="narrow", category="reduction"))
USUAL = [[300, 250, 120], [250, 200, 110]]


def beside(n_streams: int) -> Trace:
    """Kernels of two kinds in turn, on so many streams at once."""
    rows = [(i % 2, i * 1_000_000, 900_000, stream) for i in range(4) for stream in range(n_streams)]
    return replace(trace(*rows), kinds=KINDS)


def scene(n_streams: int, power_w: Sequence[Sequence[float]], idle_w: Sequence[float]) -> Scene:
    return build_scene(
        beside(n_streams), gpu="h200", costs=costs(CLOCKS, time=TIME, power_w=power_w, idle_w=idle_w)
    )


@pytest.mark.parametrize(
    ("n_streams", "power_w", "idle_w", "words"),
    [
        (2, [[20, 15, 10], [25, 20, 15]], [100, 90, 80], "at sm=auto,mem=auto the idle device draws 100 W"),
        (4, [[300, 250, 10], [250, 200, 70]], [100, 90, 80], "at sm=900,mem=auto the idle device draws 80 W"),
        (4, [[300, 250, 0], [250, 200, 0]], [0, 0, 90], "'wide' draws 0 W, 'narrow' draws 0 W"),
    ],
)
def test_what_takes_less_than_no_energy_is_refused_before_anything_is_solved(
    n_streams: int, power_w: list[list[float]], idle_w: list[float], words: str
) -> None:
    with pytest.raises(InputError, match="or more there is right") as caught:
        scene(n_streams, power_w, idle_w)
    assert words in str(caught.value)
    assert "'wide' draws" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("n_streams", "power_w", "idle_w"),
    [
        (1, [[300, 250, 78], [250, 200, 10]], [100, 90, 80]),  # one at a time: never below 0
        (3, [[300, 250, 78], [250, 200, 79]], [100, 90, 80]),  # noise
        (2, [[60, 55, 50], [60, 55, 50]], [100, 90, 80]),  # far below, and above 0 together
    ],
)
def test_what_is_below_idle_and_does_no_harm_is_borne(
    n_streams: int, power_w: list[list[float]], idle_w: list[float]
) -> None:
    table = equal_slack(
        scene(n_streams, power_w, idle_w),
        budget=Budget(slack_pct=50),
        protocols=["free", "drain"],
        plans=PLANS,
    )
    for row in table.rows:
        assert row.energy_pct is None or row.energy_pct > -100


def test_a_schedule_that_leads_there_is_refused_when_it_is_replayed() -> None:
    """Slow kernels overlap for longer than they were recorded to."""
    recording = replace(trace(*((0, at, 100, s) for at in (0, 1000) for s in (0, 1))), kinds=KINDS)
    table = costs(CLOCKS[:2], time=[[1, 50], [1, 50]], power_w=[[300, 10], [300, 10]], idle_w=[100, 100])
    made = build_scene(recording, gpu="h200", costs=table)
    slow = made.static(Clocks.parse(CLOCKS[1]), "free")
    for ask in (made.judge("free"), lambda schedule: made.replay(schedule, "free")):
        with pytest.raises(InputError, match="'wide' draws 10 W: what runs at once"):
            ask(slow)
    with pytest.raises(InputError, match="'wide' draws 10 W: what runs at once"):
        equal_slack(made, budget=Budget(slack_pct=10_000), protocols="free", plans=PLANS)


def test_an_edp_below_0_is_not_our_bug() -> None:
    """A problem made by hand, of which nobody has seen the powers: ED2P falls with time there."""
    table = costs(CLOCKS[:2], time=[[1, 1.5]], power_w=[[0, 0]], idle_w=[50, 50])
    posed = problem(trace((0, 0, 400, 0), (0, 200, 100, 1)), table, stream=(0, 0), minimize="ed2p")
    with pytest.raises(InputError, match="idle_power_w at its clocks is right"):
        solve(posed, seed=0)
