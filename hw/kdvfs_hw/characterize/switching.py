"""How long a clock change takes, pair by pair: from the request until the GPU is read at the new clocks."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from kdvfs_hw.measure.loop import keep_busy
from kdvfs_hw.measure.observer import Observer
from kdvfs_hw.readback import await_clocks
from kdvfs_hw.timing import begin, join
from kdvfs_hw.workloads.base import Workload
from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.core.device import ClockControl
from kdvfs_sim.core.errors import ClocksNotReachedError

_POLL_S: Final = 0.0005
_REST_S: Final = 0.02
_REPEATS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchReading:
    """One pair, several changes. Latencies are upper bounds by one poll (under 1 ms)."""

    old: Clocks
    new: Clocks
    host_call_ms: float
    latency_ms: float | None
    lowest_ms: float | None
    highest_ms: float | None
    n: int
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "old": str(self.old), "new": str(self.new)}


@contextmanager
def under_load(workload: Workload, observer: Observer) -> Iterator[None]:
    """The workload repeats its step in another thread while the block runs."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            keep_busy(workload, None, observer, lambda _: not stop.is_set())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="kdvfs-load", daemon=True)
    begin(thread, observer.device.time)
    try:
        yield
    finally:
        stop.set()
        join(thread, observer.device.time)
    if errors:
        raise errors[0]


def switching_latency(
    control: ClockControl,
    observer: Observer,
    pairs: Sequence[tuple[Clocks, Clocks]],
    *,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[SwitchReading, ...]:
    """Read every pair under the load that is running, pairs in random order within each repeat.

    A pair that is not reached says so; a GPU at its power cap never shows a lock above the cap.
    """
    device = observer.device
    rng = random.Random(0)
    took: dict[int, list[tuple[float, float]]] = {i: [] for i in range(len(pairs))}
    problems: dict[int, str] = {}
    for i_repeat in range(_REPEATS):
        say(f"switching, repeat {i_repeat + 1} of {_REPEATS}")
        for i in rng.sample(range(len(pairs)), len(pairs)):
            old, new = pairs[i]
            try:
                control.request_clocks(old)
                await_clocks(device, old, poll_s=_POLL_S)
                observer.pause(_REST_S * (1 + rng.random()))
                request = control.request_clocks(new)
                seen = await_clocks(device, new, poll_s=_POLL_S)
            except ClocksNotReachedError as error:
                problems[i] = f"not reached: observed {error.observed} ({error.reasons or 'no reason given'})"
                continue
            took[i].append(
                (
                    (request.returned_ns - request.issued_ns) * 1e-6,
                    (seen.returned_ns - request.issued_ns) * 1e-6,
                )
            )
    return tuple(_reading(*pair, took[i], problems.get(i, "")) for i, pair in enumerate(pairs))


def _reading(old: Clocks, new: Clocks, took: list[tuple[float, float]], problem: str) -> SwitchReading:
    calls, latencies = ([t[k] for t in took] for k in (0, 1))
    return SwitchReading(
        old=old,
        new=new,
        host_call_ms=float(np.median(calls)) if calls else float("nan"),
        latency_ms=float(np.median(latencies)) if latencies else None,
        lowest_ms=min(latencies, default=None),
        highest_ms=max(latencies, default=None),
        n=len(took),
        problem=problem,
    )
