"""A GPU that can be read, and the separate thing that can change its clocks.

``Device`` has no method that changes anything: observe mode is given a ``Device`` and nothing else.
``ClockControl`` exists only while a guardian is armed (``kdvfs_hw.guardian``).

Three values are kept apart. *Requested*: what the caller asked for. *Target*: what the driver has
accepted. *Observed*: what the GPU was read to run at. Success of a call says nothing of the third.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, Protocol, TypeAlias

from kdvfs_sim.core.clocks import ClockMhz, Clocks, ClockTable

Support: TypeAlias = Literal["yes", "no", "needs rights"]
PowerKind: TypeAlias = Literal["instant", "average"]


class Feature(StrEnum):
    """What a GPU may or may not offer to this process."""

    READ_CLOCKS = "read_clocks"
    LOCK_SM = "lock_sm"
    LOCK_MEM = "lock_mem"
    ENERGY_COUNTER = "energy_counter"
    INSTANT_POWER = "instant_power"
    AVERAGE_POWER = "average_power"
    THROTTLE_REASONS = "throttle_reasons"
    TEMPERATURE = "temperature"
    PROCESSES = "processes"


@dataclass(frozen=True, slots=True)
class Capability:
    """Whether a feature is there, in the driver's words, and what would change a no.

    A lock is never tried to find out: ``yes`` for LOCK_SM and LOCK_MEM means that nothing known
    speaks against it.
    """

    support: Support
    words: str
    remedy: str = ""


class TimeSource(Protocol):
    """The clock that a device's readings are stamped with; wall time, or virtual in unit tests.

    Returns nanoseconds that never go back; only differences have a meaning. ``sleep_ns`` returns
    when at least that long has passed. Raises nothing. May be used from several threads.
    """

    def now_ns(self) -> int: ...

    def sleep_ns(self, duration_ns: int, /) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """When a value was read, on the device's TimeSource: the call began and returned."""

    called_ns: int
    returned_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedClocks(Reading):
    """What the GPU was read to run at. Always numbers: AUTO is a request, never an observation."""

    sm_mhz: int
    mem_mhz: int

    def __str__(self) -> str:
        return f"sm={self.sm_mhz},mem={self.mem_mhz}"

    def off_by_mhz(self, requested: Clocks) -> int:
        """The larger distance to the requested clocks, 0 for a part left to the driver."""
        return max(_off(self.sm_mhz, requested.sm_mhz), _off(self.mem_mhz, requested.mem_mhz))


def _off(observed_mhz: int, requested: ClockMhz) -> int:
    return abs(observed_mhz - requested) if isinstance(requested, int) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyReading(Reading):
    """The driver's energy counter, in millijoules since an unknown start."""

    energy_mj: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerReading(Reading):
    """Board power. ``average`` is the driver's running mean (about 1 s), ``instant`` its shortest window."""

    power_w: float
    power_kind: PowerKind


BENIGN_REASONS: Final = frozenset({"idle", "clocks_setting", "display_setting", "sync_boost"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottleReading(Reading):
    """Why the clocks are where they are. Decided by the driver's bits, never by the clock alone."""

    reasons: frozenset[str]

    @property
    def slowed_by(self) -> frozenset[str]:
        """The reasons that slow work down: idle and settings are not throttling."""
        return self.reasons - BENIGN_REASONS


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process with a context on the GPU. ``memory_bytes`` is None where the driver does not say."""

    pid: int
    memory_bytes: int | None


class Device(Protocol):
    """One physical GPU, read only.

    Methods return a reading in the units of its fields; for any time while the driver session is
    open. They raise DeviceUnsupportedError where the value does not exist (it is unknown, not 0),
    DeviceLostError once the GPU is gone, DriverError otherwise. Nothing is cached but identity,
    capabilities and the clock table. May be used from several threads, and after a fork. Does not
    promise that two readings are simultaneous: each carries its own times.
    """

    @property
    def uuid(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def time(self) -> TimeSource: ...

    def software(self) -> Mapping[str, str]: ...

    def capabilities(self) -> Mapping[Feature, Capability]: ...

    def clock_table(self) -> ClockTable: ...

    def observed_clocks(self) -> ObservedClocks: ...

    def energy_counter(self) -> EnergyReading: ...

    def power(self, kind: PowerKind, /) -> PowerReading: ...

    def power_limit_w(self) -> float: ...

    def throttle_reasons(self) -> ThrottleReading: ...

    def temperature_c(self) -> int: ...

    def foreign_processes(self, own_pids: Collection[int] = ()) -> tuple[GpuProcess, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedRequest:
    """A request that the driver accepted. ``n_calls`` is 0 if it already was the target."""

    clocks: Clocks
    n_calls: int
    issued_ns: int
    returned_ns: int


class ClockControl(Protocol):
    """Changes the clocks of one GPU while a guardian is armed; see ``kdvfs_hw.guardian``.

    ``request_clocks`` returns when the driver has accepted; whether the GPU gets there is read
    from the Device. For every pair of the device's clock table. Raises UnsupportedClocksError
    before the driver is asked, DevicePermissionError, DeviceUnsupportedError or DeviceLostError
    when it refuses, and DeviceError once the guardian is gone or has taken the clocks back (the
    clocks are released before it is raised). A part equal to the target is not asked again;
    ``reset_clocks`` asks for both, whatever is believed. One thread at a time. Does not promise when,
    or that, the GPU runs at the request.
    """

    @property
    def requested(self) -> Clocks | None: ...

    @property
    def target(self) -> Clocks | None: ...

    def request_clocks(self, clocks: Clocks, /) -> AcceptedRequest: ...

    def reset_clocks(self) -> AcceptedRequest: ...

    def beat(self) -> None: ...
