"""What a GPU offers to this process, found out without changing anything."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from kdvfs_hw.driver_errors import RIGHTS_REMEDY
from kdvfs_sim.core.device import Capability, Feature
from kdvfs_sim.core.errors import DeviceLostError, DevicePermissionError, DriverError

if TYPE_CHECKING:
    from kdvfs_hw.nvml_read import NvmlDevice

VOLTA, AMPERE, ARCH_UNKNOWN = 5, 7, 0xFFFFFFFF  # nvmlDeviceArchitecture_t
MIG_ON: Final = "MIG is on: clocks belong to the whole GPU"
_UNEXPLAINED = 999  # NVML_ERROR_UNKNOWN of one call says nothing about the others
_SYS_ADMIN_BIT = 21

# Our own table, by value: the binding renamed its constants from "throttle" to "event" reasons.
REASON_BITS: Final[dict[int, str]] = {
    0x001: "idle",
    0x002: "clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake",
    0x100: "display_setting",
    0x200: "board_limit",
    0x400: "reliability",
}


def decode_reasons(bits: int) -> frozenset[str]:
    """Names of nvmlClocksEventReason bits; a bit we do not know keeps its number."""
    known = {name for bit, name in REASON_BITS.items() if bits & bit}
    unknown = bits & ~sum(REASON_BITS)
    return frozenset(known | ({f"unknown_{unknown:#x}"} if unknown else set()))


def has_sys_admin() -> bool:
    """Whether this process has the capability that the driver checks for clock locks.

    open-gpu-kernel-modules, nv-linux.h: NV_IS_SUSER() is capable(CAP_SYS_ADMIN). Root in a
    container usually lacks it.
    """
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            for line in status:
                if line.startswith("CapEff:"):
                    return bool(int(line.split()[1], 16) >> _SYS_ADMIN_BIT & 1)
    except OSError:
        pass
    return hasattr(os, "geteuid") and os.geteuid() == 0


def probe_capabilities(device: NvmlDevice) -> Mapping[Feature, Capability]:
    """Read one real value of each kind, and judge the locks by what is known. Raises DeviceLostError."""
    probes: dict[Feature, Callable[[], str]] = {
        Feature.READ_CLOCKS: lambda: str(device.observed_clocks()),
        Feature.ENERGY_COUNTER: lambda: f"{device.energy_counter().energy_mj} mJ",
        Feature.INSTANT_POWER: lambda: f"{device.power('instant').power_w:g} W",
        Feature.AVERAGE_POWER: lambda: f"{device.power('average').power_w:g} W",
        Feature.THROTTLE_REASONS: lambda: ", ".join(sorted(device.throttle_reasons().reasons)) or "none",
        Feature.TEMPERATURE: lambda: f"{device.temperature_c()} C",
        Feature.PROCESSES: lambda: f"{len(device.foreign_processes())} by others",
    }
    found = {feature: _probe(read) for feature, read in probes.items()}
    found[Feature.LOCK_SM] = _lock_capability(device, VOLTA, "Volta")
    found[Feature.LOCK_MEM] = _lock_capability(device, AMPERE, "Ampere")
    return found


def _probe(read: Callable[[], str]) -> Capability:
    # a function that exists may still have no answer on this GPU: only a real value is a yes
    try:
        return Capability("yes", f"reads {read()}")
    except DevicePermissionError as error:
        return Capability("needs rights", error.words, error.remedy)
    except DriverError as error:
        if isinstance(error, DeviceLostError) and error.code != _UNEXPLAINED:
            raise
        return Capability("no", error.words, error.remedy)


def _lock_capability(device: NvmlDevice, since: int, generation: str) -> Capability:
    try:
        n_clocks = sum(map(len, device.supported_clocks.values()))
    except DriverError as error:
        return Capability("no", f"supported clocks: {error.words}", error.remedy)
    if device.architecture < since:
        return Capability("no", f"needs {generation} or newer (nvml.h)", "leave this clock to the driver")
    if device.mig_enabled():
        return Capability("no", MIG_ON, "turn it off: nvidia-smi -mig 0")
    if not n_clocks:
        return Capability("no", "the driver lists no supported clocks", "leave this clock to the driver")
    if not device.session.may_lock():
        return Capability("needs rights", "the driver wants root for clock locks (nvml.h)", RIGHTS_REMEDY)
    return Capability("yes", "not tried: only a lock would tell")
