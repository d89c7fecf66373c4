"""NVML's return codes, sorted into our errors with what to do about each. By value: no binding needed.

Codes and their meaning: nvml.h (13.5), ``nvmlReturn_t``.
"""

from __future__ import annotations

from typing import Final

from kdvfs_sim.core.errors import (
    DeviceLostError,
    DevicePermissionError,
    DeviceUnsupportedError,
    DriverError,
)

RIGHTS_REMEDY: Final = "run as root; a container also needs the capability SYS_ADMIN: the driver checks it"

_SORTED: Final[dict[int, tuple[type[DriverError], str]]] = {
    1: (DriverError, "the driver session is closed: open the device again"),
    2: (DriverError, "the driver does not accept these arguments; please report it"),
    3: (DeviceUnsupportedError, "this GPU or driver does not offer it; nothing can be done but go without"),
    4: (DevicePermissionError, RIGHTS_REMEDY),
    6: (DriverError, "no such GPU here; kdvfs hw doctor lists those that are"),
    8: (DeviceLostError, "the GPU lacks external power: check its cables"),
    9: (DeviceLostError, "the NVIDIA driver is not loaded: load it (modprobe nvidia) or install it"),
    10: (DriverError, "the driver did not answer in time: try again"),
    12: (
        DeviceLostError,
        "no NVIDIA driver library here: install the driver, in a container start it with the GPU "
        "(docker run --gpus all), or use an emulated GPU (--device emulated:h200)",
    ),
    13: (DeviceUnsupportedError, "the driver library is older than this call: update the driver"),
    15: (
        DeviceLostError,
        "the GPU has fallen off the bus: see the kernel log; it needs a reset or a restart of the machine",
    ),
    16: (DeviceLostError, "the GPU needs a reset (nvidia-smi -r) or a restart of the machine"),
    17: (
        DevicePermissionError,
        "the operating system blocked it: check the device files and, in a container, its device rules",
    ),
    18: (
        DriverError,
        "driver and driver library are of different versions: reload the driver or restart the machine",
    ),
    19: (DriverError, "the GPU is in use by another program: wait for it or stop it"),
    24: (DeviceUnsupportedError, "the driver does not offer these clocks"),
    28: (DeviceLostError, "no GPU found by the driver: see nvidia-smi and the kernel log"),
    999: (
        DeviceLostError,
        "the driver gives no reason; in a container its right to use the GPU may have been revoked: "
        "restart the container, else see the kernel log",
    ),
}

# Worth another try, a little later: everything else stays as it is until somebody acts.
TRANSIENT_CODES: Final = frozenset({10, 19, 999})


def driver_error(device: str, call: str, code: int, words: str) -> DriverError:
    """Our error for NVML's ``code`` from ``call``, with the driver's own ``words``."""
    error, remedy = _SORTED.get(
        code, (DriverError, "see the driver's documentation of this code, and please report it")
    )
    return error(device, call, code, words, remedy)
