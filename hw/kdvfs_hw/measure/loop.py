"""One reading: a kernel or a step repeated without a pause, its time, and energy by whole counter periods."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np

from kdvfs_hw.measure.counter import MIN_PERIODS
from kdvfs_hw.measure.observer import Observation, Observer
from kdvfs_hw.workloads.base import Workload
from kdvfs_sim.core.clocks import AUTO_CLOCKS, Clocks

_CHUNK_NS: Final = 25_000_000
_AHEAD: Final = 3  # chunks queued: the GPU never waits for the host
_TRIAL_NS: Final = 3_000_000
_SETTLE_S: Final = 0.25
_SETTLED_C: Final = 1
_SETTLED_SHARE: Final = 0.01


@dataclass(frozen=True, kw_only=True)
class Reading:
    """``time_s`` and ``energy_j`` of one launch (or one step), with what was seen meanwhile.

    ``chunk_s``: times per launch of consecutive chunks, each about 25 ms. ``void`` says why the
    reading must not be used.
    """

    part: str | None
    clocks: Clocks
    n_launches: int
    time_s: float
    seen: Observation
    chunk_s: tuple[float, ...] = ()
    void: str = ""

    @property
    def power_w(self) -> float | None:
        return self.seen.power_w

    @property
    def energy_j(self) -> float | None:
        return None if self.power_w is None else self.power_w * self.time_s

    @property
    def instant_energy_j(self) -> float | None:
        return None if self.seen.instant_w is None else self.seen.instant_w * self.time_s

    def to_json(self) -> dict[str, Any]:
        return {
            "part": self.part,
            "clocks": str(self.clocks),
            "n_launches": self.n_launches,
            "time_s": self.time_s,
            "energy_j": self.energy_j,
            "power_w": self.power_w,
            "instant_w": self.seen.instant_w,
            "sm_mhz": self.seen.sm_mhz,
            "mem_mhz": self.seen.mem_mhz,
            "sm_range_mhz": self.seen.sm_range_mhz,
            "temperature_c": self.seen.temperature_c,
            "capped": self.seen.capped,
            "energy_window": asdict(self.seen.energy),
            "marks": list(self.seen.marks),
            "void": self.void,
            "spread_of_chunks": float(np.std(self.chunk_s) / np.mean(self.chunk_s)) if self.chunk_s else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """``n`` launches that ended at ``host_ns`` and took ``gpu_ns``."""

    host_ns: int
    gpu_ns: int
    n: int


def launches_per(workload: Workload, part: str | None) -> int:
    """How many launches take about ``_CHUNK_NS``, found by running a few."""
    n = 1
    while True:
        begin, end = workload.launch(part, 0), workload.launch(part, n)
        begin_ns = workload.wait(begin)
        took_ns = max(1, workload.wait(end) - begin_ns)
        n = end.n
        if took_ns >= min(_CHUNK_NS, _TRIAL_NS):
            return max(1, round(n * _CHUNK_NS / took_ns))
        n *= max(2, min(64, round(_TRIAL_NS / took_ns)))


def keep_busy(
    workload: Workload, part: str | None, observer: Observer, go_on: Callable[[list[Chunk]], bool]
) -> list[Chunk]:
    """Repeat a part, always some chunks ahead, as long as ``go_on`` says so."""
    n = launches_per(workload, part)
    chunks: list[Chunk] = []
    last_ns = workload.wait(workload.launch(part, 0))
    queued = deque(workload.launch(part, n) for _ in range(_AHEAD))
    while queued:
        ticket = queued.popleft()
        end_ns = workload.wait(ticket)
        chunks.append(Chunk(host_ns=observer.device.time.now_ns(), gpu_ns=end_ns - last_ns, n=ticket.n))
        last_ns = end_ns
        observer.check()
        if len(queued) == _AHEAD - 1 and go_on(chunks):
            queued.append(workload.launch(part, n))
    return chunks


def settle(
    workload: Workload,
    observer: Observer,
    *,
    max_s: float = 30.0,
    beat: Callable[[], None] | None = None,
) -> bool:
    """Run until temperature and time per launch stand still; False if they did not in ``max_s``.

    ``beat``: called now and then, for a guardian that waits for it.
    Still: over three stretches of 1 s the temperature stays within 1 C and the time within 1 %.
    """
    begun_ns = observer.device.time.now_ns()
    history: list[tuple[float, float]] = []

    def go_on(chunks: list[Chunk]) -> bool:
        now_ns = chunks[-1].host_ns
        if beat is not None:
            beat()
        if now_ns - begun_ns > (len(history) + 1) * 1_000_000_000:
            recent = [each for each in chunks if each.host_ns > now_ns - 1_000_000_000]
            seen = observer.between(now_ns - 1_000_000_000, now_ns)
            heat = float(seen.temperature_c[1]) if seen.temperature_c else 0.0
            history.append((heat, sum(c.gpu_ns for c in recent) / max(1, sum(c.n for c in recent))))
        return not _still(history) and now_ns - begun_ns < max_s * 1e9

    keep_busy(workload, None, observer, go_on)
    return _still(history)


def _still(history: list[tuple[float, float]]) -> bool:
    if len(history) < 3:
        return False
    heats = [heat for heat, _ in history[-3:]]
    times = [time for _, time in history[-3:]]
    return max(heats) - min(heats) <= _SETTLED_C and max(times) / min(times) - 1 <= _SETTLED_SHARE


def measure(
    workload: Workload,
    part: str | None,
    observer: Observer,
    *,
    seconds: float,
    clocks: Clocks = AUTO_CLOCKS,
    settle_s: float = _SETTLE_S,
) -> Reading:
    """Repeat a part (None: the step) and read time and energy once it has run for ``settle_s``.

    At least ``seconds``, and until the energy counter has moved often enough or clearly will not.
    """
    begun_ns = observer.device.time.now_ns()
    from_ns = begun_ns + round(settle_s * 1e9)
    to_ns = from_ns + _stretch_ns(observer, seconds)
    chunks = keep_busy(workload, part, observer, lambda done: done[-1].host_ns < to_ns)
    ahead = chunks[: max(1, len(chunks) - _AHEAD + 1)]
    seen = observer.between(from_ns, ahead[-1].host_ns)
    window = seen.energy
    begin_ns, end_ns = (
        (window.begin_ns, window.end_ns) if window.energy_j is not None else (from_ns, ahead[-1].host_ns)
    )
    used = [
        chunk for before, chunk in pairwise(ahead) if before.host_ns >= begin_ns and chunk.host_ns <= end_ns
    ] or chunks[-1:]
    n_launches = sum(chunk.n for chunk in used)
    return Reading(
        part=part,
        clocks=clocks,
        n_launches=n_launches,
        time_s=sum(chunk.gpu_ns for chunk in used) * 1e-9 / n_launches,
        seen=seen,
        chunk_s=tuple(chunk.gpu_ns * 1e-9 / chunk.n for chunk in used),
    )


def _stretch_ns(observer: Observer, seconds: float) -> int:
    period = observer.period
    # whole periods lie inside only if the stretch is one period and a read longer
    least_ns = 0 if period is None else (MIN_PERIODS + 2) * period.period_ns + _AHEAD * _CHUNK_NS
    return max(round(seconds * 1e9), round(least_ns))


def reading_s(observer: Observer, seconds: float, settle_s: float = _SETTLE_S) -> float:
    """How long ``measure`` takes where nothing holds it up."""
    return settle_s + (_stretch_ns(observer, seconds) + _AHEAD * _CHUNK_NS) * 1e-9


def overhead_of_watching(
    workload: Workload, observer: Observer, *, seconds: float = 1.0, n_pairs: int = 4
) -> Mapping[str, float]:
    """How much slower the step is while it is watched: alternating stretches, watched and not."""
    times: dict[bool, list[float]] = {True: [], False: []}
    for i in range(2 * n_pairs):
        watched = i % 4 in (0, 3)
        with observer.suspended(not watched):
            begun_ns = observer.device.time.now_ns()
            chunks = keep_busy(
                workload,
                None,
                observer,
                lambda done, begun=begun_ns: done[-1].host_ns - begun < seconds * 1e9,  # type: ignore[misc]
            )
        times[watched].append(sum(c.gpu_ns for c in chunks) * 1e-9 / sum(c.n for c in chunks))
    with_s, without_s = float(np.mean(times[True])), float(np.mean(times[False]))
    spread = float(np.std(times[False]) / without_s)
    return {
        "watched_s": with_s,
        "unwatched_s": without_s,
        "overhead_pct": 100 * (with_s / without_s - 1),
        "noise_pct": 100 * spread,
    }
