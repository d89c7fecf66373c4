"""Reading GPUs through NVML. All text, units and errors of the driver are translated here.

This file is the only one that imports the binding ``pynvml`` (distribution nvidia-ml-py), and names no
function of it that changes anything. Functions: nvml.h (13.5).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pynvml

from kdvfs_hw.capabilities import AMPERE, ARCH_UNKNOWN, decode_reasons, has_sys_admin, probe_capabilities
from kdvfs_hw.driver_errors import driver_error
from kdvfs_hw.timing import WallTime
from kdvfs_sim.core.clocks import AUTO, ClockMhz, Clocks, ClockTable
from kdvfs_sim.core.device import (
    Capability,
    EnergyReading,
    Feature,
    GpuProcess,
    ObservedClocks,
    PowerKind,
    PowerReading,
    ThrottleReading,
    TimeSource,
)
from kdvfs_sim.core.errors import DeviceError, DeviceUnsupportedError, DriverError, InvariantError

_READS: Final = re.compile(r"nvml(InitWithFlags|Shutdown|(Device|System)Get\w+)")
_SM, _MEM = 1, 2  # nvmlClockType_t
_FIELD_POWER_AVERAGE, _FIELD_POWER_INSTANT = 185, 186
_ABSENT: Final = 13  # NVML_ERROR_FUNCTION_NOT_FOUND
_NO_MEMORY_VALUE: Final = 2**64 - 1


def text(value: Any) -> str:
    """Text from the driver: bindings answer ``bytes`` or ``str``."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def call(device: str, name: str, *args: Any, may_change: Collection[str] = ()) -> Any:
    """Call the binding's function ``name``; its errors become ours, naming ``device`` and the call.

    Raises InvariantError for one that may change something, unless the caller names it in ``may_change``.
    """
    if not _READS.fullmatch(name) and name not in may_change:
        raise InvariantError(f"{device}: {name} is no reading; what changes a GPU goes through ClockControl")
    function: Callable[..., Any] | None = getattr(pynvml, name, None)
    if function is None:
        raise DeviceUnsupportedError(
            device, name, _ABSENT, f"not in the binding {pynvml.__file__}", "update nvidia-ml-py"
        )
    try:
        return function(*args)
    except pynvml.NVMLError as error:
        raise driver_error(device, name, error.value, str(error)) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuIdentity:
    """One GPU as the driver lists it. ``error`` says why it cannot be used; then the rest may be empty."""

    index: int
    uuid: str = ""
    name: str = ""
    pci_bus_id: str = ""
    pci_order: tuple[int, int, int] = (0, 0, 0)
    error: str | None = None


class NvmlSession:
    """The driver library, started once for this process; a context manager.

    ``library`` takes the place of libnvidia-ml (the emulated GPU); None is the machine's own. The
    session survives a fork: the child starts the library again on its first call.
    """

    _open: NvmlSession | None = None

    def __init__(self, library: Any = None, *, time: TimeSource | None = None) -> None:
        if NvmlSession._open is not None:
            raise InvariantError("a driver session is already open in this process; close it first")
        self.time: TimeSource = time or WallTime()
        self.emulated = library is not None
        self._library = library
        self._pid: int | None = None
        self._handles: dict[str, Any] = {}
        if self.emulated:  # the machine's own library is left as it is: others here may use it too
            _use_library(library)
        try:
            self.ensure()
        except BaseException:
            self._restore_library()
            raise
        NvmlSession._open = self

    def __enter__(self) -> NvmlSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Shut the library down. Later calls on its devices raise DriverError."""
        if NvmlSession._open is not self:
            return
        NvmlSession._open = None
        self._handles.clear()
        try:
            call("NVML", "nvmlShutdown")
        except DriverError:
            pass  # a lost GPU refuses even this; there is nothing left to keep
        finally:
            self._restore_library()

    def _restore_library(self) -> None:
        if self.emulated:
            _use_library(None)

    def ensure(self) -> None:
        """Start the library if this process has not: driver state does not survive a fork.

        Raises DeviceError if the binding is not NVIDIA's or the driver refuses.
        """
        pid = os.getpid()
        if self._pid == pid:
            return
        if not hasattr(pynvml, "nvmlInitWithFlags"):
            raise DeviceError(
                f"the module pynvml at {pynvml.__file__} is not NVIDIA's binding: "
                "uninstall the packages pynvml and nvidia-ml-py3, then install nvidia-ml-py"
            )
        self._handles.clear()
        call("NVML", "nvmlInitWithFlags", 0)
        self._pid = pid

    def handle(self, uuid: str) -> Any:
        """The driver's handle of a GPU, in this process."""
        self.ensure()
        if uuid not in self._handles:
            self._handles[uuid] = call(uuid, "nvmlDeviceGetHandleByUUID", uuid)
        return self._handles[uuid]

    def forget(self, uuid: str) -> None:
        """Drop a handle after an error: a stale one is never used again."""
        self._handles.pop(uuid, None)

    def gpus(self) -> tuple[GpuIdentity, ...]:
        """All GPUs, each on its own: one that is lost does not hide the others."""
        self.ensure()
        n_gpus = int(call("NVML", "nvmlDeviceGetCount"))
        return tuple(self._identify(index) for index in range(n_gpus))

    def _identify(self, index: int) -> GpuIdentity:
        where = f"GPU {index}"
        try:
            handle = call(where, "nvmlDeviceGetHandleByIndex", index)
            pci = call(where, "nvmlDeviceGetPciInfo", handle)
            return GpuIdentity(
                index=index,
                uuid=text(call(where, "nvmlDeviceGetUUID", handle)),
                name=text(call(where, "nvmlDeviceGetName", handle)),
                pci_bus_id=text(pci.busId),
                pci_order=(int(pci.domain), int(pci.bus), int(pci.device)),
            )
        except DriverError as error:
            return GpuIdentity(index=index, error=str(error))

    def may_lock(self) -> bool:
        """Whether this process has the capability that the driver checks for clock locks."""
        if self._library is not None:
            return bool(self._library.caller_may_lock())
        return has_sys_admin()

    def software(self) -> dict[str, str]:
        """Versions of driver, driver library and binding."""
        self.ensure()
        return {
            "driver": text(call("NVML", "nvmlSystemGetDriverVersion")),
            "nvml": text(call("NVML", "nvmlSystemGetNVMLVersion")),
            "binding": f"{_binding_version()} at {pynvml.__file__}",
        }


def _use_library(library: Any) -> None:
    pynvml.nvmlLib = library
    pynvml._nvmlGetFunctionPointer_cache.clear()


def _binding_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"nvidia-ml-py {version('nvidia-ml-py')}"
    except PackageNotFoundError:
        return "unknown version"


class NvmlDevice:
    """One GPU, read through NVML: the ``Device`` Protocol."""

    def __init__(self, session: NvmlSession, identity: GpuIdentity) -> None:
        if identity.error is not None:
            raise DeviceError(identity.error)
        self.session = session
        self.identity = identity

    @property
    def uuid(self) -> str:
        return self.identity.uuid

    @property
    def name(self) -> str:
        return self.identity.name

    @property
    def time(self) -> TimeSource:
        return self.session.time

    def ask(self, function: str, *args: Any, may_change: Collection[str] = ()) -> Any:
        """Call a function of the binding that takes this GPU's handle first. ``may_change``: see ``call``."""
        try:
            return call(self.uuid, function, self.session.handle(self.uuid), *args, may_change=may_change)
        except DriverError:
            self.session.forget(self.uuid)
            raise

    def _timed(self, function: str, *args: Any) -> tuple[Any, int, int]:
        called_ns = self.time.now_ns()
        value = self.ask(function, *args)
        return value, called_ns, self.time.now_ns()

    def software(self) -> Mapping[str, str]:
        return self.session.software()

    def observed_clocks(self) -> ObservedClocks:
        sm_mhz, called_ns, _ = self._timed("nvmlDeviceGetClockInfo", _SM)
        mem_mhz, _, returned_ns = self._timed("nvmlDeviceGetClockInfo", _MEM)
        return ObservedClocks(
            sm_mhz=int(sm_mhz), mem_mhz=int(mem_mhz), called_ns=called_ns, returned_ns=returned_ns
        )

    def max_clocks(self) -> tuple[int, int]:
        """The highest SM and memory clock of this GPU, MHz."""
        return int(self.ask("nvmlDeviceGetMaxClockInfo", _SM)), int(
            self.ask("nvmlDeviceGetMaxClockInfo", _MEM)
        )

    def energy_counter(self) -> EnergyReading:
        energy_mj, called_ns, returned_ns = self._timed("nvmlDeviceGetTotalEnergyConsumption")
        return EnergyReading(energy_mj=int(energy_mj), called_ns=called_ns, returned_ns=returned_ns)

    def power(self, kind: PowerKind, /) -> PowerReading:
        field = _FIELD_POWER_INSTANT if kind == "instant" else _FIELD_POWER_AVERAGE
        try:
            values, called_ns, returned_ns = self._timed("nvmlDeviceGetFieldValues", [field])
            if values[0].nvmlReturn != 0:
                code = int(values[0].nvmlReturn)
                raise driver_error(self.uuid, f"power field {field}", code, str(pynvml.NVMLError(code)))
            power_mw = int(values[0].value.uiVal)
        except DeviceUnsupportedError:
            # nvmlDeviceGetPowerUsage is instantaneous before Ampere, a mean over 1 s from Ampere on;
            # for GA100, an Ampere that is instantaneous, the architecture does not tell: no answer
            if kind != ("instant" if self.architecture < AMPERE else "average") or self._is_ga100:
                raise
            power_mw, called_ns, returned_ns = self._timed("nvmlDeviceGetPowerUsage")
        return PowerReading(
            power_w=power_mw / 1000, power_kind=kind, called_ns=called_ns, returned_ns=returned_ns
        )

    def power_limit_w(self) -> float:
        return int(self.ask("nvmlDeviceGetEnforcedPowerLimit")) / 1000

    def throttle_reasons(self) -> ThrottleReading:
        try:
            bits, called_ns, returned_ns = self._timed("nvmlDeviceGetCurrentClocksEventReasons")
        except DeviceUnsupportedError as error:
            if error.code != _ABSENT:
                raise
            # its name before driver 535
            bits, called_ns, returned_ns = self._timed("nvmlDeviceGetCurrentClocksThrottleReasons")
        return ThrottleReading(
            reasons=decode_reasons(int(bits)), called_ns=called_ns, returned_ns=returned_ns
        )

    def temperature_c(self) -> int:
        try:
            return int(self.ask("nvmlDeviceGetTemperatureV", 0))
        except DeviceUnsupportedError as error:
            if error.code != _ABSENT:
                raise
            # drivers before 560 have only the older call
            return int(self.ask("nvmlDeviceGetTemperature", 0))

    def foreign_processes(self, own_pids: Collection[int] = ()) -> tuple[GpuProcess, ...]:
        own = {os.getpid(), *own_pids}
        listed = self.ask("nvmlDeviceGetComputeRunningProcesses")
        return tuple(
            GpuProcess(
                pid=int(process.pid),
                memory_bytes=None
                if process.usedGpuMemory in (None, _NO_MEMORY_VALUE)
                else int(process.usedGpuMemory),
            )
            for process in listed
            if int(process.pid) not in own
        )

    def persistence_mode(self) -> bool:
        """Whether the driver stays loaded without a client; when it does not, it forgets settings."""
        return bool(self.ask("nvmlDeviceGetPersistenceMode"))

    def mig_enabled(self) -> bool:
        """Whether the GPU is divided into instances: clocks and energy are of the whole GPU then."""
        try:
            return bool(self.ask("nvmlDeviceGetMigMode")[0])
        except DeviceUnsupportedError:
            return False

    @cached_property
    def architecture(self) -> int:
        """nvmlDeviceArchitecture_t: newer is larger."""
        try:
            return int(self.ask("nvmlDeviceGetArchitecture"))
        except DeviceUnsupportedError:
            return ARCH_UNKNOWN

    @property
    def _is_ga100(self) -> bool:
        return any(chip in self.name for chip in ("A100", "A800", "A30"))

    @cached_property
    def supported_clocks(self) -> dict[int, tuple[int, ...]]:
        """Memory clock to the SM clocks that the driver lists for it, MHz."""
        memory = [int(mhz) for mhz in self.ask("nvmlDeviceGetSupportedMemoryClocks")]
        return {
            mhz: tuple(int(sm) for sm in self.ask("nvmlDeviceGetSupportedGraphicsClocks", mhz))
            for mhz in memory
        }

    def clock_table(self) -> ClockTable:
        """The pairs that may be requested; a domain that cannot be locked is AUTO throughout."""
        capabilities = self.capabilities()
        sm_may = capabilities[Feature.LOCK_SM].support != "no"
        mem_may = capabilities[Feature.LOCK_MEM].support != "no"
        pairs = []
        for mem_mhz, sm_clocks in self.supported_clocks.items() if sm_may or mem_may else ():
            mem: list[ClockMhz] = [mem_mhz, AUTO] if mem_may else [AUTO]
            sm: list[ClockMhz] = [*sm_clocks, AUTO] if sm_may else [AUTO]
            pairs += [Clocks(s, m) for m in mem for s in sm]
        return ClockTable(self.name, tuple(pairs))

    def capabilities(self) -> Mapping[Feature, Capability]:
        return self._capabilities

    @cached_property
    def _capabilities(self) -> Mapping[Feature, Capability]:
        return probe_capabilities(self)


if TYPE_CHECKING:
    from kdvfs_sim.core.device import Device

    def _keeps_the_protocol(device: NvmlDevice) -> Device:
        return device
