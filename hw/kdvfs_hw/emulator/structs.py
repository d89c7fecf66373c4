"""What NVML passes by pointer, written from nvml.h (13.5) and not from the binding that reads it."""

from __future__ import annotations

import ctypes as c
from typing import Final

SUCCESS: Final = 0
UNINITIALIZED: Final = 1
INVALID_ARGUMENT: Final = 2
NOT_SUPPORTED: Final = 3
NO_PERMISSION: Final = 4
NOT_FOUND: Final = 6
INSUFFICIENT_SIZE: Final = 7
GPU_IS_LOST: Final = 15
ARGUMENT_VERSION_MISMATCH: Final = 25
UNKNOWN: Final = 999

WORDS: Final[dict[int, bytes]] = {
    SUCCESS: b"Success",
    UNINITIALIZED: b"Uninitialized",
    INVALID_ARGUMENT: b"Invalid Argument",
    NOT_SUPPORTED: b"Not Supported",
    NO_PERMISSION: b"Insufficient Permissions",
    NOT_FOUND: b"Not Found",
    INSUFFICIENT_SIZE: b"Insufficient Size",
    GPU_IS_LOST: b"GPU is lost",
    ARGUMENT_VERSION_MISMATCH: b"Argument version mismatch",
    UNKNOWN: b"Unknown Error",
}

CLOCK_GRAPHICS: Final = 0
CLOCK_SM: Final = 1
CLOCK_MEM: Final = 2
FIELD_TOTAL_ENERGY: Final = 83
FIELD_POWER_AVERAGE: Final = 185
FIELD_POWER_INSTANT: Final = 186
VALUE_UINT: Final = 1
VALUE_ULONG_LONG: Final = 3
REASON_IDLE: Final = 0x01
REASON_SW_POWER_CAP: Final = 0x04
REASON_HW_SLOWDOWN: Final = 0x08
REASON_HW_THERMAL: Final = 0x40
NO_INSTANCE: Final = 0xFFFFFFFF


def struct_version(struct: type[c.Structure], version: int) -> int:
    """The header's NVML_STRUCT_VERSION: size in the low bits, version in the high byte."""
    return c.sizeof(struct) | version << 24


class PciInfo(c.Structure):
    """nvmlPciInfo_t"""

    _fields_ = (
        ("busIdLegacy", c.c_char * 16),
        ("domain", c.c_uint),
        ("bus", c.c_uint),
        ("device", c.c_uint),
        ("pciDeviceId", c.c_uint),
        ("pciSubSystemId", c.c_uint),
        ("busId", c.c_char * 32),
    )


class Value(c.Union):
    """nvmlValue_t"""

    _fields_ = (
        ("dVal", c.c_double),
        ("siVal", c.c_int),
        ("uiVal", c.c_uint),
        ("ulVal", c.c_ulong),
        ("ullVal", c.c_ulonglong),
        ("sllVal", c.c_longlong),
        ("usVal", c.c_ushort),
    )


class FieldValue(c.Structure):
    """nvmlFieldValue_t"""

    _fields_ = (
        ("fieldId", c.c_uint),
        ("scopeId", c.c_uint),
        ("timestamp", c.c_longlong),
        ("latencyUsec", c.c_longlong),
        ("valueType", c.c_uint),
        ("nvmlReturn", c.c_uint),
        ("value", Value),
    )


class ProcessInfo(c.Structure):
    """nvmlProcessInfo_t"""

    _fields_ = (
        ("pid", c.c_uint),
        ("usedGpuMemory", c.c_ulonglong),
        ("gpuInstanceId", c.c_uint),
        ("computeInstanceId", c.c_uint),
    )


class Temperature(c.Structure):
    """nvmlTemperature_v1_t"""

    _fields_ = (
        ("version", c.c_uint),
        ("sensorType", c.c_uint),
        ("temperature", c.c_int),
    )


TEMPERATURE_V1: Final = struct_version(Temperature, 1)
