"""The NVML library of emulated GPUs: C functions with the real names, made without a compiler.

Signatures: nvml.h (13.5). A function that is not here is absent, as from an older driver.
"""

from __future__ import annotations

import ctypes as c
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from kdvfs_hw.emulator import structs as s
from kdvfs_hw.emulator.behaviour import Domain
from kdvfs_hw.emulator.cabi import Address, RefusedError, c_function, put, put_list, put_text, there
from kdvfs_hw.emulator.gpu import EmulatedGpu
from kdvfs_hw.emulator.state import State

_HANDLE, _OUT, _UINT, _INT = c.c_void_p, c.c_void_p, c.c_uint, c.c_int
_FOREIGN_PID: Final = 4_000_001
_CONTEXT_BYTES: Final = 500 * 2**20

_ENTRIES: dict[str, tuple[tuple[Any, ...], Callable[..., int | None]]] = {}


def entry(name: str, *argtypes: Any) -> Callable[[Callable[..., int | None]], Callable[..., int | None]]:
    """Makes a method the library function ``name``: it raises RefusedError, or returns None for success."""

    def register(method: Callable[..., int | None]) -> Callable[..., int | None]:
        _ENTRIES[name] = (argtypes, method)
        return method

    return register


class EmulatedLibrary:
    """Stands in for the loaded libnvidia-ml: a function of it is an attribute, an absent one is not."""

    def __init__(self, gpus: Sequence[EmulatedGpu]) -> None:
        self.gpus = tuple(gpus)
        self._n_started = 0
        self._pid = 0
        self._memory = [c.create_string_buffer(8) for _ in self.gpus]
        self._by_handle = {
            c.addressof(memory): gpu for memory, gpu in zip(self._memory, self.gpus, strict=True)
        }
        self._words = {code: c.create_string_buffer(words) for code, words in s.WORDS.items()}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in _ENTRIES:
            raise AttributeError(name)
        argtypes, method = _ENTRIES[name]

        pointer = c_function(
            lambda *args: self._answer(name, argtypes, method, args),
            c.c_void_p if name == "nvmlErrorString" else c.c_int,
            argtypes,
        )
        setattr(self, name, pointer)
        return pointer

    def caller_may_lock(self) -> bool:
        """Whether this process would look entitled to lock clocks, to somebody who does not try."""
        faults = [gpu.view().fault("no_permission") for gpu in self.gpus]
        return not any(fault and fault.value == 0 for fault in faults)

    def _answer(
        self, name: str, argtypes: Sequence[Any], method: Callable[..., int | None], args: Sequence[Any]
    ) -> int:
        gpu = self._by_handle.get(args[0]) if args else None
        numbers = [arg for kind, arg in zip(argtypes, args, strict=True) if kind is _UINT]
        for each in [gpu] if gpu else self.gpus:
            each.log_call(name, numbers)
        try:
            return method(self, *args) or s.SUCCESS
        except RefusedError as refusal:
            return refusal.code

    def _started(self) -> None:
        if not self._n_started or self._pid != os.getpid():  # a fork does not inherit the session
            raise RefusedError(s.UNINITIALIZED)

    def _device(self, handle: Address | None) -> tuple[EmulatedGpu, State]:
        self._started()
        gpu = self._by_handle.get(handle or 0)
        if gpu is None:
            raise RefusedError(s.INVALID_ARGUMENT)
        state = gpu.view()
        if state.fault("lost"):
            raise RefusedError(s.GPU_IS_LOST)
        if state.fault("unknown_error"):
            raise RefusedError(s.UNKNOWN)
        return gpu, state

    # the library itself

    @entry("nvmlInitWithFlags", _UINT)
    def _init(self, flags: int) -> None:
        self._n_started = 1 if self._pid != os.getpid() else self._n_started + 1
        self._pid = os.getpid()

    @entry("nvmlShutdown")
    def _shutdown(self) -> None:
        self._started()
        self._n_started -= 1

    @entry("nvmlErrorString", _UINT)
    def _error_string(self, code: int) -> Address:
        return c.addressof(self._words.get(code, self._words[s.UNKNOWN]))

    @entry("nvmlSystemGetDriverVersion", _OUT, _UINT)
    def _driver(self, out: Address, length: int) -> None:
        self._started()
        put_text(out, length, self.gpus[0].spec.driver if self.gpus else "emulated")

    @entry("nvmlSystemGetNVMLVersion", _OUT, _UINT)
    def _nvml(self, out: Address, length: int) -> None:
        self._started()
        put_text(out, length, self.gpus[0].spec.nvml if self.gpus else "emulated")

    @entry("nvmlDeviceGetCount_v2", _OUT)
    def _count(self, out: Address) -> None:
        self._started()
        put(c.c_uint, out, len(self.gpus))

    @entry("nvmlDeviceGetHandleByIndex_v2", _UINT, _OUT)
    def _by_index(self, index: int, out: Address) -> None:
        self._started()
        if index >= len(self.gpus):
            raise RefusedError(s.INVALID_ARGUMENT)
        handle = c.addressof(self._memory[index])
        self._device(handle)
        put(c.c_void_p, out, handle)

    @entry("nvmlDeviceGetHandleByUUID", c.c_char_p, _OUT)
    def _by_uuid(self, uuid: bytes | None, out: Address) -> None:
        self._started()
        for handle, gpu in self._by_handle.items():
            if gpu.uuid.encode() == uuid:
                self._device(handle)
                put(c.c_void_p, out, handle)
                return
        raise RefusedError(s.NOT_FOUND)

    # identity

    @entry("nvmlDeviceGetName", _HANDLE, _OUT, _UINT)
    def _name(self, handle: Address, out: Address, length: int) -> None:
        put_text(out, length, self._device(handle)[0].spec.name)

    @entry("nvmlDeviceGetUUID", _HANDLE, _OUT, _UINT)
    def _uuid(self, handle: Address, out: Address, length: int) -> None:
        put_text(out, length, self._device(handle)[0].uuid)

    @entry("nvmlDeviceGetPciInfo_v3", _HANDLE, _OUT)
    def _pci(self, handle: Address, out: Address) -> None:
        bus_id = self._device(handle)[0].spec.pci_bus_id
        info = s.PciInfo.from_address(there(out))
        domain, bus, device = bus_id.split(":")
        info.domain, info.bus, info.device = int(domain, 16), int(bus, 16), int(device.split(".")[0], 16)
        info.busId = bus_id.encode()
        info.busIdLegacy = f"{domain[-4:]}:{bus}:{device}".encode()

    @entry("nvmlDeviceGetArchitecture", _HANDLE, _OUT)
    def _architecture(self, handle: Address, out: Address) -> None:
        gpu, state = self._device(handle)
        put(c.c_uint, out, 6 if state.fault("no_mem_lock") else gpu.spec.architecture)

    @entry("nvmlDeviceGetPersistenceMode", _HANDLE, _OUT)
    def _persistence(self, handle: Address, out: Address) -> None:
        put(c.c_uint, out, not self._device(handle)[1].fault("no_persistence"))

    @entry("nvmlDeviceGetMigMode", _HANDLE, _OUT, _OUT)
    def _mig(self, handle: Address, current: Address, pending: Address) -> None:
        is_on = bool(self._device(handle)[1].fault("mig"))
        put(c.c_uint, current, is_on)
        put(c.c_uint, pending, is_on)

    # clocks

    @entry("nvmlDeviceGetClockInfo", _HANDLE, _UINT, _OUT)
    def _clock(self, handle: Address, domain: int, out: Address) -> None:
        operating = self._device(handle)[1].operating
        clocks = {
            s.CLOCK_GRAPHICS: operating.sm_mhz,
            s.CLOCK_SM: operating.sm_mhz,
            s.CLOCK_MEM: operating.mem_mhz,
        }
        put(c.c_uint, out, _choose(clocks, domain))

    @entry("nvmlDeviceGetMaxClockInfo", _HANDLE, _UINT, _OUT)
    def _max_clock(self, handle: Address, domain: int, out: Address) -> None:
        behaviour = self._device(handle)[0].spec.behaviour
        sm_mhz, mem_mhz = behaviour.sm_mhz[-1], behaviour.mem_mhz[-1]
        clocks = {s.CLOCK_GRAPHICS: sm_mhz, s.CLOCK_SM: sm_mhz, s.CLOCK_MEM: mem_mhz}
        put(c.c_uint, out, _choose(clocks, domain))

    @entry("nvmlDeviceGetSupportedMemoryClocks", _HANDLE, _OUT, _OUT)
    def _memory_clocks(self, handle: Address, n_out: Address, out: Address | None) -> None:
        gpu, state = self._device(handle)
        if state.fault("no_lock"):
            raise RefusedError(s.NOT_SUPPORTED)
        put_list(gpu.spec.behaviour.mem_mhz[::-1], n_out, out)

    @entry("nvmlDeviceGetSupportedGraphicsClocks", _HANDLE, _UINT, _OUT, _OUT)
    def _sm_clocks(self, handle: Address, mem_mhz: int, n_out: Address, out: Address | None) -> None:
        behaviour = self._device(handle)[0].spec.behaviour
        if mem_mhz not in behaviour.mem_mhz:
            raise RefusedError(s.NOT_FOUND)
        put_list(behaviour.sm_clocks(mem_mhz)[::-1], n_out, out)

    @entry("nvmlDeviceGetCurrentClocksEventReasons", _HANDLE, _OUT)
    def _reasons(self, handle: Address, out: Address) -> None:
        state = self._device(handle)[1]
        if state.fault("no_reasons"):
            raise RefusedError(s.NOT_SUPPORTED)
        bits = 0 if state.queue else s.REASON_IDLE
        bits |= s.REASON_SW_POWER_CAP if state.capped else 0
        bits |= s.REASON_HW_THERMAL | s.REASON_HW_SLOWDOWN if state.fault("throttling") else 0
        put(c.c_ulonglong, out, bits)

    # sensors

    @entry("nvmlDeviceGetTotalEnergyConsumption", _HANDLE, _OUT)
    def _energy(self, handle: Address, out: Address) -> None:
        gpu, state = self._device(handle)
        if state.fault("no_energy"):
            raise RefusedError(s.NOT_SUPPORTED)
        gpu.time.sleep_ns(gpu.spec.sensors.counter_read_ns)
        put(c.c_ulonglong, out, gpu.spec.sensors.energy_mj(gpu.view(), gpu.loaded.start_ns))

    @entry("nvmlDeviceGetPowerUsage", _HANDLE, _OUT)
    def _power(self, handle: Address, out: Address) -> None:
        gpu, state = self._device(handle)
        if state.fault("no_power"):
            raise RefusedError(s.NOT_SUPPORTED)
        put(c.c_uint, out, gpu.spec.sensors.average_mw(state, gpu.loaded.start_ns))

    @entry("nvmlDeviceGetFieldValues", _HANDLE, _INT, _OUT)
    def _fields(self, handle: Address, n_values: int, out: Address) -> None:
        gpu, state = self._device(handle)
        for field in (s.FieldValue * n_values).from_address(there(out)):
            self._fill(field, gpu, state)

    def _fill(self, field: s.FieldValue, gpu: EmulatedGpu, state: State) -> None:
        sensors, start_ns = gpu.spec.sensors, gpu.loaded.start_ns
        field.timestamp = time.time_ns() // 1000
        field.latencyUsec = 2
        field.nvmlReturn = s.SUCCESS
        if field.fieldId == s.FIELD_POWER_INSTANT and not state.fault("no_power"):
            field.valueType, field.value.uiVal = s.VALUE_UINT, sensors.instant_mw(state, start_ns)
        elif field.fieldId == s.FIELD_POWER_AVERAGE and not state.fault("no_power"):
            field.valueType, field.value.uiVal = s.VALUE_UINT, sensors.average_mw(state, start_ns)
        elif field.fieldId == s.FIELD_TOTAL_ENERGY and not state.fault("no_energy"):
            gpu.time.sleep_ns(sensors.counter_read_ns)
            field.latencyUsec = sensors.counter_read_ns // 1000
            field.valueType, field.value.ullVal = s.VALUE_ULONG_LONG, sensors.energy_mj(gpu.view(), start_ns)
        else:
            field.nvmlReturn = s.NOT_SUPPORTED

    @entry("nvmlDeviceGetEnforcedPowerLimit", _HANDLE, _OUT)
    def _power_limit(self, handle: Address, out: Address) -> None:
        gpu, state = self._device(handle)
        lowered = state.fault("power_limit")
        limit_w = min(gpu.spec.power_limit_w, lowered.value) if lowered else gpu.spec.power_limit_w
        put(c.c_uint, out, round(limit_w * 1000))

    @entry("nvmlDeviceGetTemperatureV", _HANDLE, _OUT)
    def _temperature(self, handle: Address, out: Address) -> None:
        state = self._device(handle)[1]
        reading = s.Temperature.from_address(there(out))
        if reading.version != s.TEMPERATURE_V1:
            raise RefusedError(s.ARGUMENT_VERSION_MISMATCH)
        reading.temperature = 95 if state.fault("throttling") else round(state.temperature_c)

    @entry("nvmlDeviceGetComputeRunningProcesses_v3", _HANDLE, _OUT, _OUT)
    def _processes(self, handle: Address, n_out: Address, out: Address | None) -> None:
        state = self._device(handle)[1]
        pids = sorted({work.pid for work in state.queue})
        pids += [_FOREIGN_PID] if state.fault("foreign_process") else []
        n_room = c.c_uint.from_address(there(n_out)).value
        put(c.c_uint, n_out, len(pids))
        if not pids:
            return
        if n_room < len(pids) or not out:
            raise RefusedError(s.INSUFFICIENT_SIZE)
        for info, pid in zip((s.ProcessInfo * len(pids)).from_address(out), pids, strict=True):
            info.pid, info.usedGpuMemory = pid, _CONTEXT_BYTES
            info.gpuInstanceId = info.computeInstanceId = s.NO_INSTANCE

    # setters

    @entry("nvmlDeviceSetGpuLockedClocks", _HANDLE, _UINT, _UINT)
    def _lock_sm(self, handle: Address, low_mhz: int, high_mhz: int) -> None:
        self._set(handle, "sm", low_mhz, high_mhz)

    @entry("nvmlDeviceResetGpuLockedClocks", _HANDLE)
    def _reset_sm(self, handle: Address) -> None:
        self._set(handle, "sm", None, None)

    @entry("nvmlDeviceSetMemoryLockedClocks", _HANDLE, _UINT, _UINT)
    def _lock_mem(self, handle: Address, low_mhz: int, high_mhz: int) -> None:
        self._set(handle, "mem", low_mhz, high_mhz)

    @entry("nvmlDeviceResetMemoryLockedClocks", _HANDLE)
    def _reset_mem(self, handle: Address) -> None:
        self._set(handle, "mem", None, None)

    def _set(self, handle: Address, domain: Domain, low_mhz: int | None, high_mhz: int | None) -> None:
        gpu, state = self._device(handle)
        if state.fault("no_lock") or (domain == "mem" and state.fault("no_mem_lock")):
            raise RefusedError(s.NOT_SUPPORTED)
        if state.fault("no_permission"):
            raise RefusedError(s.NO_PERMISSION)
        if low_mhz is not None and high_mhz is not None and not 0 < low_mhz <= high_mhz < 2**31:
            raise RefusedError(s.INVALID_ARGUMENT)
        old = state.accepted[domain]
        gpu.request(domain, high_mhz)
        # the change is on its way while the caller still waits: who is killed here has locked the clock
        cost = gpu.spec.behaviour.switch(domain, old, gpu.view().accepted[domain])
        gpu.time.sleep_ns(cost.host_call_ns)


def _choose(clocks: dict[int, int], domain: int) -> int:
    if domain not in clocks:
        raise RefusedError(s.NOT_SUPPORTED)
    return clocks[domain]
