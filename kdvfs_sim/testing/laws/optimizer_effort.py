"""The law of an Optimizer about time and memory, on one problem of some size."""

from __future__ import annotations

import signal
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st

from kdvfs_sim.core.problem import Problem
from kdvfs_sim.core.protocols import Optimizer
from kdvfs_sim.core.switching import DRAIN
from kdvfs_sim.testing.law import ask, law, require
from kdvfs_sim.testing.notation import costs, switching, trace
from kdvfs_sim.testing.notation import problem as pose

STATED_S: Final = 5.0  # what an optimizer may take, if it states nothing else
STATED_MB: Final = 500.0
LARGE: Final = (200, 12)  # launches, clocks


@law("optimizer", lambda _: st.just(LARGE), once=True)
def keeps_its_time_and_memory(optimizer: Optimizer, size: tuple[int, int]) -> None:
    """A problem of 200 launches and 12 clocks is answered within the optimizer's ``max_time_s`` and
    ``max_memory_mb`` (5 s and 500 MB unless it states others); what is compiled first does not count."""
    problem = _large(*size)
    limit_s = float(getattr(optimizer, "max_time_s", STATED_S))
    limit_mb = float(getattr(optimizer, "max_memory_mb", STATED_MB))
    ask(optimizer.solve, _large(8, 3), seed=0)
    with _interrupted_after(4 * limit_s):
        tracemalloc.start()
        try:
            began = time.perf_counter()
            ask(optimizer.solve, problem, seed=0)
            took_s, peak_mb = time.perf_counter() - began, tracemalloc.get_traced_memory()[1] / 1e6
        finally:
            tracemalloc.stop()
    require(took_s <= limit_s, f"it took {took_s:.1f} s; {limit_s:g} s is stated")
    require(peak_mb <= limit_mb, f"it took {peak_mb:.0f} MB; {limit_mb:g} MB is stated")


def _large(n_launches: int, n_clocks: int) -> Problem:
    kinds = [i * i % 7 for i in range(n_launches)]
    durations = [1000 * (1 + k) for k in kinds]
    starts = np.cumsum([0, *durations[:-1]]).tolist()
    clocks = ["auto", *(f"sm={100 * (i + 1)},mem=auto" for i in range(n_clocks - 1))]
    speed = [1.0, *((i + 1) / n_clocks for i in range(n_clocks - 1))]
    share = [k / 6 for k in range(7)]
    table = costs(
        clocks,
        time=[[s / f + 1 - s for f in speed] for s in share],
        power_w=[[50 + 250 * f * f * (0.5 + s / 2) for f in speed] for s in share],
        idle_w=[50.0] * n_clocks,
    )
    cost = [[0 if a == b else 500 for b in range(n_clocks)] for a in range(n_clocks)]
    recording = trace(*zip(kinds, starts, durations, strict=True), n_kinds=7)
    return pose(
        recording,
        table,
        switching(call_ns=cost, lands_ns=cost),
        protocol=DRAIN,
        max_time_s=sum(durations) * 1.05e-9,
    )


@contextmanager
def _interrupted_after(seconds: float) -> Iterator[None]:
    """Ends a block that takes too long, where the platform can: a hang must not hang the check."""

    def stop(*_: Any) -> None:
        require(False, f"it was interrupted after {seconds:.0f} s, four times what is stated")

    if not hasattr(signal, "SIGALRM") or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
