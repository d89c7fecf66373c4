"""A GPU in memory, in virtual time: the double for code that reads a Device or holds a ClockControl.

Round numbers, no driver. For the driver's own behaviour there is the emulated GPU of ``kdvfs_hw``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from kdvfs_sim.core.clocks import AUTO_CLOCKS, Auto, Clocks, ClockTable
from kdvfs_sim.core.device import (
    AcceptedRequest,
    Capability,
    EnergyReading,
    Feature,
    GpuProcess,
    ObservedClocks,
    PowerKind,
    PowerReading,
    ThrottleReading,
)
from kdvfs_sim.core.errors import (
    DeviceLostError,
    DevicePermissionError,
    DeviceUnsupportedError,
    DriverError,
)

# name: what it does
FAULTS: Final[Mapping[str, str]] = {
    "lost": "every call raises DeviceLostError",
    "no_permission": "requests raise DevicePermissionError",
    "no_energy": "the energy counter raises DeviceUnsupportedError",
    "unknown_error": "every call raises DriverError",
    "lock_ignored": "requests are accepted and change nothing",
    "throttled": "the SM clock is held at its lowest",
    "frozen_counter": "the energy counter stands still",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFault:
    """One fault of FAULTS, in force after ``n_calls_before`` calls for ``n_calls`` (None: for good)."""

    name: str
    n_calls_before: int = 0
    n_calls: int | None = None

    def active(self, call: int) -> bool:
        return self.n_calls_before <= call and (
            self.n_calls is None or call < self.n_calls_before + self.n_calls
        )


class VirtualTime:
    """A TimeSource that passes only when somebody sleeps. One thread; other processes cannot share it."""

    def __init__(self) -> None:
        self._now_ns = 1_000_000_000

    def now_ns(self) -> int:
        return self._now_ns

    def sleep_ns(self, duration_ns: int, /) -> None:
        self._now_ns += max(0, duration_ns)


class FakeDevice:
    """A Device whose power is ``50 W + 0.1 W`` a MHz of SM clock, and the ClockControl of the same GPU.

    A lock is in force ``switching_ns`` after it was accepted; a reading takes ``read_ns``. ``faults`` count
    the calls of this object.
    """

    def __init__(
        self,
        *,
        faults: tuple[DeviceFault, ...] = (),
        sm_mhz: tuple[int, ...] = (600, 900, 1200),
        mem_mhz: tuple[int, ...] = (1000,),
        switching_ns: int = 5_000_000,
        read_ns: int = 1_000,
    ) -> None:
        self.time = VirtualTime()
        self.faults = faults
        self.n_calls = 0
        self.interrupt = False  # cut requests off by KeyboardInterrupt, once the driver has been asked
        self.requested: Clocks | None = None
        self.target: Clocks | None = None
        self._table = ClockTable.grid("fake", sm_mhz, mem_mhz)
        self._switching_ns, self._read_ns = switching_ns, read_ns
        self._in_force, self._pending = AUTO_CLOCKS, (0, AUTO_CLOCKS)
        self._sm_mhz, self._mem_mhz = sm_mhz, mem_mhz
        self._energy_j, self._since_ns, self._frozen_mj = 0.0, self.time.now_ns(), 0

    uuid = "GPU-fake-0000"
    name = "fake"

    # -- reading

    def software(self) -> Mapping[str, str]:
        return {"driver": "fake 1.0"}

    def capabilities(self) -> Mapping[Feature, Capability]:
        call = self._call("capabilities")
        found = {feature: Capability("yes", "fake") for feature in Feature}
        if self._is("no_energy", call):
            found[Feature.ENERGY_COUNTER] = Capability("no", "not supported")
        if self._is("no_permission", call):
            for feature in (Feature.LOCK_SM, Feature.LOCK_MEM):
                found[feature] = Capability("needs rights", "no permission", "run as root")
        return found

    def clock_table(self) -> ClockTable:
        return self._table

    def observed_clocks(self) -> ObservedClocks:
        call, called_ns = self._call("observed_clocks"), self._read()
        return ObservedClocks(
            sm_mhz=self._running_mhz(call),
            mem_mhz=self._mem_mhz[-1] if isinstance(self._in_force.mem_mhz, Auto) else self._in_force.mem_mhz,
            called_ns=called_ns,
            returned_ns=self.time.now_ns(),
        )

    def energy_counter(self) -> EnergyReading:
        call, called_ns = self._call("energy_counter"), self._read()
        if self._is("no_energy", call):
            raise self._error(DeviceUnsupportedError, "energy_counter", "Not Supported")
        if not self._is("frozen_counter", call):
            self._frozen_mj = int(self._energy_j * 1000)
        return EnergyReading(energy_mj=self._frozen_mj, called_ns=called_ns, returned_ns=self.time.now_ns())

    def power(self, kind: PowerKind, /) -> PowerReading:
        call, called_ns = self._call("power"), self._read()
        return PowerReading(
            power_w=self._power_w(call),
            power_kind=kind,
            called_ns=called_ns,
            returned_ns=self.time.now_ns(),
        )

    def power_limit_w(self) -> float:
        self._call("power_limit_w")
        return 300.0

    def throttle_reasons(self) -> ThrottleReading:
        call, called_ns = self._call("throttle_reasons"), self._read()
        reasons = frozenset({"hw_slowdown"} if self._is("throttled", call) else ())
        return ThrottleReading(reasons=reasons, called_ns=called_ns, returned_ns=self.time.now_ns())

    def temperature_c(self) -> int:
        self._call("temperature_c")
        return 40

    def foreign_processes(self, own_pids: Collection[int] = ()) -> tuple[GpuProcess, ...]:
        self._call("foreign_processes")
        return ()

    # -- changing

    def request_clocks(self, clocks: Clocks, /) -> AcceptedRequest:
        self._table.index(clocks)
        issued_ns = self.time.now_ns()
        if clocks == self.target:
            self.requested = clocks
            return AcceptedRequest(clocks=clocks, n_calls=0, issued_ns=issued_ns, returned_ns=issued_ns)
        before, self.target = self.target or AUTO_CLOCKS, None
        self.requested = clocks
        call = self._call("request_clocks")
        if self._is("no_permission", call):
            raise self._error(DevicePermissionError, "request_clocks", "Insufficient Permissions")
        self._read()
        if not self._is("lock_ignored", call):
            self._pending = (issued_ns + self._switching_ns, clocks)
        if self.interrupt:
            raise KeyboardInterrupt
        self.target = clocks
        n_calls = max(1, (before.sm_mhz != clocks.sm_mhz) + (before.mem_mhz != clocks.mem_mhz))
        return AcceptedRequest(
            clocks=clocks, n_calls=n_calls, issued_ns=issued_ns, returned_ns=self.time.now_ns()
        )

    def reset_clocks(self) -> AcceptedRequest:
        self.target = None  # whatever is believed
        return self.request_clocks(AUTO_CLOCKS)

    def beat(self) -> None:
        self._call("beat")

    # -- inside

    def _call(self, name: str) -> int:
        self._pass()
        call, self.n_calls = self.n_calls, self.n_calls + 1
        if self._is("lost", call):
            raise self._error(DeviceLostError, name, "GPU is lost")
        if self._is("unknown_error", call):
            raise self._error(DriverError, name, "Unknown Error")
        return call

    def _is(self, name: str, call: int) -> bool:
        return any(fault.name == name and fault.active(call) for fault in self.faults)

    def _read(self) -> int:
        called_ns = self.time.now_ns()
        self.time.sleep_ns(self._read_ns)
        self._pass()
        return called_ns

    def _pass(self) -> None:
        """Book the energy since last time, at the clocks that were in force."""
        now_ns = self.time.now_ns()
        lands_ns, clocks = self._pending
        if self._in_force != clocks and lands_ns <= now_ns:
            self._book(max(lands_ns, self._since_ns))
            self._in_force = clocks
        self._book(now_ns)

    def _book(self, to_ns: int) -> None:
        self._energy_j += self._power_w(self.n_calls) * (to_ns - self._since_ns) * 1e-9
        self._since_ns = to_ns

    def _running_mhz(self, call: int) -> int:
        sm_mhz = self._in_force.sm_mhz
        highest = self._sm_mhz[-1] if isinstance(sm_mhz, Auto) else sm_mhz
        return self._sm_mhz[0] if self._is("throttled", call) else highest

    def _power_w(self, call: int) -> float:
        return 50.0 + 0.1 * self._running_mhz(call)

    def _error(self, cls: type[DriverError], call: str, words: str) -> DriverError:
        return cls(self.name, call, 999, words, "this is a fake GPU")
