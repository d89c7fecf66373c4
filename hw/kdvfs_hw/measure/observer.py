"""A thread that watches a GPU while something runs on it, and says what it saw over a stretch of time."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, Self

import numpy as np

from kdvfs_hw.capabilities import MIG_ON
from kdvfs_hw.measure.counter import Edge, EnergyWindow, Period, energy_between, find_edges, find_period
from kdvfs_hw.timing import begin, join
from kdvfs_sim.core.device import Device, EnergyReading, Feature
from kdvfs_sim.core.errors import DeviceError, DeviceUnsupportedError

_TICK_NS: Final = 5_000_000
_SELDOM: Final = 20  # ticks between looks at temperature and processes
_LEAD_NS: Final = 12_000_000  # before an expected update, the counter is read back to back
_N_LEARN: Final = 10
_CAP: Final = "sw_power_cap"  # the power limit at work, as usual; any other slowdown is a disturbance
_OFTEN: Final = 0.02
STOOD_STILL: Final = "this process or the machine stood still"
_STILL_NS: Final = 500_000_000  # by then the GPU has run out of what was queued for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One tick: None where the GPU does not say."""

    t_ns: int
    sm_mhz: int | None = None
    mem_mhz: int | None = None
    instant_w: float | None = None
    temperature_c: int | None = None
    slowed_by: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What was seen between two instants. Means are over time; None is unknown, never 0.

    ``instant_w``: the instant power integrated, a cross-check of ``energy``. ``capped``: share of the
    time at the power limit. ``marks``: what makes it doubtful, in words; an empty tuple is good.
    """

    from_ns: int
    to_ns: int
    energy: EnergyWindow
    instant_w: float | None
    sm_mhz: float | None
    mem_mhz: float | None
    sm_range_mhz: tuple[int, int] | None
    temperature_c: tuple[int, int] | None
    capped: float
    marks: tuple[str, ...] = ()

    @property
    def power_w(self) -> float | None:
        return self.energy.power_w


@dataclass(slots=True, kw_only=True)
class Overhead:
    """What watching cost: driver calls, and the time spent in them (of the watching thread)."""

    n_calls: int = 0
    n_energy_reads: int = 0
    call_ns: int = 0
    energy_ns: int = 0
    elapsed_ns: int = 0

    def to_json(self) -> Mapping[str, Any]:
        share = self.call_ns / self.elapsed_ns if self.elapsed_ns else None
        each = self.energy_ns / self.n_energy_reads if self.n_energy_reads else None
        return {
            "n_calls": self.n_calls,
            "n_energy_reads": self.n_energy_reads,
            "mean_energy_read_ms": None if each is None else each * 1e-6,
            "share_of_time_in_driver_calls": share,
        }


@dataclass(slots=True)
class _Seen:
    readings: list[EnergyReading] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    foreign: dict[int, int] = field(default_factory=dict)  # pid: when first seen
    limits: list[tuple[int, float]] = field(
        default_factory=list
    )  # when seen, power limit in W, at each change


class Observer:
    """Watches ``device`` from ``with`` to its end. Changes nothing.

    ``own_pids``: processes that belong to the measurement, added as they start. ``alone``: nobody else may
    use the GPU, because its clocks are ours. Raises DeviceError, on leaving or from ``check``, if the GPU
    stopped answering or is no longer ours alone.
    """

    def __init__(
        self,
        device: Device,
        *,
        alone: bool = False,
    ) -> None:
        self.device = device
        self.overhead = Overhead()
        self.own_pids = set[int]()
        self._alone = alone
        self._has = {f: c.support == "yes" for f, c in device.capabilities().items()}
        self._seen = _Seen()
        self._stop = threading.Event()
        self._error: DeviceError | None = None
        self._thread = threading.Thread(target=self._watch, name="kdvfs-observer", daemon=True)
        self._next_read_ns = 0
        self._begun_ns = 0
        self._suspended = False

    def __enter__(self) -> Self:
        self._begun_ns = self.device.time.now_ns()
        begin(self._thread, self.device.time)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop.set()
        join(self._thread, self.device.time)
        if kind is None:
            self.check()

    def check(self) -> None:
        """Raises what ended the watching, if anything did."""
        if self._error is not None:
            raise self._error
        if self._alone and self._seen.foreign:
            pids = ", ".join(map(str, self._seen.foreign))
            raise DeviceError(
                f"{self.device.uuid}: another process ({pids}) has begun to use the GPU, and would run at "
                "clocks of ours: the run ends and leaves the clocks to the driver"
            )

    @contextmanager
    def suspended(self, really: bool = True) -> Iterator[None]:
        """Watch nothing inside the block, to learn what watching costs."""
        self._suspended = really
        try:
            yield
        finally:
            self._suspended = False

    def pause(self, seconds: float) -> None:
        """Sleep, unless the GPU stops answering."""
        self.device.time.sleep_ns(round(seconds * 1e9))
        self.check()

    @property
    def period(self) -> Period | None:
        return find_period(find_edges(self._seen.readings[-400:]))

    @property
    def updates(self) -> tuple[Edge, ...]:
        """Every update of the energy counter seen so far."""
        return find_edges(list(self._seen.readings))

    def await_period(self, timeout_s: float = 3.0) -> Period | None:
        """Wait until the counter's period is known; None if it does not show in time."""
        deadline_ns = self.device.time.now_ns() + round(timeout_s * 1e9)
        while self._has[Feature.ENERGY_COUNTER] and self.device.time.now_ns() < deadline_ns:
            found = self.period
            if found is not None and found.n_edges >= _N_LEARN:
                return found
            self.pause(0.02)
        return self.period

    def between(self, from_ns: int, to_ns: int) -> Observation:
        """What was seen between two instants of the device's TimeSource."""
        self.check()
        readings = list(self._seen.readings)
        looks = [look for look in list(self._seen.looks) if from_ns <= look.t_ns <= to_ns]
        if self._has[Feature.ENERGY_COUNTER]:
            edges = find_edges([r for r in readings if r.returned_ns >= from_ns - 10**9])
            energy = energy_between(edges, find_period(find_edges(readings)), from_ns, to_ns)
        else:
            reason = "no energy counter: " + self.device.capabilities()[Feature.ENERGY_COUNTER].words
            energy = EnergyWindow(begin_ns=from_ns, end_ns=to_ns, n_periods=0, energy_j=None, reason=reason)
        sm = [look.sm_mhz for look in looks if look.sm_mhz is not None]
        mem = [look.mem_mhz for look in looks if look.mem_mhz is not None]
        power = [look.instant_w for look in looks if look.instant_w is not None]
        heat = [look.temperature_c for look in looks if look.temperature_c is not None]
        reasons = Counter(reason for look in looks for reason in look.slowed_by)
        n_looks = len(looks)
        marks = [
            f"slowed by {reason} for {100 * n / n_looks:.0f} % of the time"
            for reason, n in sorted(reasons.items())
            if reason != _CAP and n / n_looks > _OFTEN
        ]
        if self.device.capabilities()[Feature.LOCK_SM].words == MIG_ON:
            marks.append("MIG is on: power, energy and clocks are those of all instances together")
        foreign = [pid for pid, since_ns in self._seen.foreign.items() if since_ns <= to_ns]
        if foreign:
            marks.append(f"other processes used the GPU: {', '.join(map(str, foreign))}")
        marks += self._changes_of_limit(from_ns, to_ns)
        seen_ns = [from_ns, *(look.t_ns for look in looks), to_ns]
        still_ns = max(later - earlier for earlier, later in pairwise(seen_ns))
        if still_ns > _STILL_NS:
            marks.append(f"nothing was seen for {still_ns * 1e-9:.1f} s: {STOOD_STILL}")
        return Observation(
            from_ns=from_ns,
            to_ns=to_ns,
            energy=energy,
            instant_w=float(np.mean(power)) if power else None,
            sm_mhz=float(np.mean(sm)) if sm else None,
            mem_mhz=float(np.mean(mem)) if mem else None,
            sm_range_mhz=(min(sm), max(sm)) if sm else None,
            temperature_c=(heat[0], heat[-1]) if heat else None,
            capped=reasons[_CAP] / n_looks if n_looks else 0.0,
            marks=tuple(marks),
        )

    def _changes_of_limit(self, from_ns: int, to_ns: int) -> list[str]:
        limits = list(self._seen.limits)
        known = [(t_ns, limit_w) for t_ns, limit_w in limits if t_ns <= to_ns]
        during = [limit_w for t_ns, limit_w in known if t_ns >= from_ns]
        before = [limit_w for t_ns, limit_w in known if t_ns < from_ns][-1:]
        other = [limit_w for limit_w in (*before, *during) if limit_w != limits[0][1]]
        return [f"the power limit is {other[-1]:g} W, and was {limits[0][1]:g} W"] if other else []

    def _watch(self) -> None:
        n_ticks = 0
        try:
            while not self._stop.is_set():
                tick_ns = self.device.time.now_ns()
                if self._suspended:
                    self.device.time.sleep_ns(_TICK_NS)
                    continue
                self._look(n_ticks)
                if self._has[Feature.ENERGY_COUNTER] and tick_ns >= self._next_read_ns:
                    self._read_counter()
                n_ticks += 1
                now_ns = self.device.time.now_ns()
                self.overhead.elapsed_ns = now_ns - self._begun_ns
                self.device.time.sleep_ns(max(500_000, tick_ns + _TICK_NS - now_ns))
        except DeviceError as error:
            self._error = error

    def _look(self, n_ticks: int) -> None:
        now_ns = self.device.time.now_ns()
        clocks = self._ask(Feature.READ_CLOCKS, self.device.observed_clocks)
        power = self._ask(Feature.INSTANT_POWER, lambda: self.device.power("instant"))
        reasons = self._ask(Feature.THROTTLE_REASONS, self.device.throttle_reasons)
        seldom = n_ticks % _SELDOM == 0
        heat = self._ask(Feature.TEMPERATURE, self.device.temperature_c) if seldom else None
        if seldom:
            self._look_at_limit(now_ns)
            for other in (
                self._ask(Feature.PROCESSES, lambda: self.device.foreign_processes(self.own_pids)) or ()
            ):
                self._seen.foreign.setdefault(other.pid, now_ns)
        self._seen.looks.append(
            Look(
                t_ns=now_ns,
                sm_mhz=None if clocks is None else clocks.sm_mhz,
                mem_mhz=None if clocks is None else clocks.mem_mhz,
                instant_w=None if power is None else power.power_w,
                temperature_c=heat,
                slowed_by=frozenset() if reasons is None else reasons.slowed_by,
            )
        )

    def _look_at_limit(self, now_ns: int) -> None:
        with suppress(DeviceUnsupportedError):
            limit_w = self.device.power_limit_w()
            if not self._seen.limits or self._seen.limits[-1][1] != limit_w:
                self._seen.limits.append((now_ns, limit_w))

    def _ask(self, feature: Feature, read: Callable[[], Any]) -> Any:
        if not self._has.get(feature, False):
            return None
        called_ns = self.device.time.now_ns()
        try:
            return read()
        except DeviceUnsupportedError:
            self._has[feature] = False
            return None
        finally:
            self.overhead.n_calls += 1
            self.overhead.call_ns += self.device.time.now_ns() - called_ns

    def _read_counter(self) -> None:
        reading: EnergyReading | None = self._ask(Feature.ENERGY_COUNTER, self.device.energy_counter)
        if reading is None:
            return
        readings = self._seen.readings
        self.overhead.n_energy_reads += 1
        self.overhead.energy_ns += reading.returned_ns - reading.called_ns
        moved = bool(readings) and reading.energy_mj != readings[-1].energy_mj
        readings.append(reading)
        if moved:
            period = self.period
            if period is not None and period.n_edges >= _N_LEARN:
                took_ns = reading.returned_ns - reading.called_ns
                wait_ns = period.period_ns - _LEAD_NS - 2 * took_ns
                self._next_read_ns = round(reading.called_ns + max(0.0, wait_ns))
