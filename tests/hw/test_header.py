"""Structs, versions, numbers and signatures against NVIDIA's header (nvidia-nvml-dev, development only)."""

from __future__ import annotations

import ctypes as c
import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import pynvml
import pytest
from kdvfs_hw.capabilities import AMPERE, REASON_BITS, VOLTA
from kdvfs_hw.driver_errors import _SORTED
from kdvfs_hw.emulator import library, structs

OURS_AND_THEIRS = [
    (structs.PciInfo, "nvmlPciInfo_t", pynvml.nvmlPciInfo_t),
    (structs.FieldValue, "nvmlFieldValue_t", pynvml.c_nvmlFieldValue_t),
    (structs.ProcessInfo, "nvmlProcessInfo_t", pynvml.c_nvmlProcessInfo_v3_t),
    (structs.Temperature, "nvmlTemperature_v1_t", pynvml.c_nvmlTemperature_v1_t),
]
C_TYPES = {
    "unsigned int": c.c_uint,
    "int": c.c_int,
    "unsigned long long": c.c_ulonglong,
    "long long": c.c_longlong,
    "nvmlValueType_t": c.c_uint,
    "nvmlReturn_t": c.c_uint,
    "nvmlTemperatureSensors_t": c.c_uint,
    "nvmlValue_t": structs.Value,
    "double": c.c_double,
    "unsigned long": c.c_ulong,
    "unsigned short": c.c_ushort,
    "signed int": c.c_int,
    "signed long long": c.c_longlong,
}


@pytest.fixture(scope="module")
def header_path() -> Path:
    try:
        found = [entry for entry in files("nvidia-nvml-dev") or [] if entry.name == "nvml.h"]
    except PackageNotFoundError:
        pytest.skip("nvidia-nvml-dev is not installed: pip install nvidia-nvml-dev")
    return Path(str(found[0].locate()))


@pytest.fixture(scope="module")
def header(header_path: Path) -> str:
    text = re.sub(r"/\*.*?\*/", " ", header_path.read_text(), flags=re.S)
    return re.sub(r"//[^\n]*", "", text)


def struct_fields(header: str, name: str) -> list[tuple[str, str, int]]:
    """(field, C type, array length or 0) of a struct or union of the header."""
    match = re.search(rf"typedef (?:struct|union)\s*\w*\s*\{{([^}}]*)\}}[\w\s,]*\b{name}\s*;", header)
    assert match, f"no {name} in the header"
    found = []
    for line in filter(None, (part.strip() for part in match[1].split(";"))):
        field = re.fullmatch(r"([\w\s]+?)\s+(\w+)(?:\[(\w+)\])?", line)
        assert field, line
        length = field[3] or "0"
        if not length.isdigit():
            define = re.search(rf"#define\s+{length}\s+(\d+)", header)
            assert define, length
            length = define[1]
        found.append((field[2], " ".join(field[1].split()), int(length)))
    return found


def number(header: str, name: str) -> int:
    match = re.search(rf"(?:#define\s+{name}\s+|\b{name}\s*=\s*)(0x[0-9a-fA-F]+|\d+)", header)
    assert match, f"no {name} in the header"
    return int(match[1], 0)


@pytest.mark.parametrize(("ours", "name", "binding"), OURS_AND_THEIRS)
def test_structs_are_the_headers_field_by_field(
    header: str, ours: type[c.Structure], name: str, binding: type[c.Structure]
) -> None:
    fields = struct_fields(header, name)
    assert [field[0] for field in ours._fields_] == [field for field, _, _ in fields]
    for (field, kind), (_, c_type, length) in zip(ours._fields_, fields, strict=True):
        expected = c.c_char * length if c_type == "char" else C_TYPES[c_type]
        assert c.sizeof(kind) == c.sizeof(expected), f"{name}.{field}"
    assert c.sizeof(ours) == c.sizeof(binding)
    for field, _ in ours._fields_:
        assert getattr(ours, field).offset == getattr(binding, field).offset


def test_the_union_holds_the_headers_members(header: str) -> None:
    fields = struct_fields(header, "nvmlValue_t")
    assert {field for field, _, _ in fields} == {field for field, _ in structs.Value._fields_}
    assert c.sizeof(structs.Value) == c.sizeof(pynvml.c_nvmlValue_t)


def test_struct_versions(header: str) -> None:
    assert pynvml.nvmlTemperature_v1 == structs.TEMPERATURE_V1
    assert re.search(r"#define NVML_STRUCT_VERSION\(data, ver\)\s*\(unsigned int\)\(sizeof\(nvml", header)


def test_return_codes(header: str) -> None:
    for name in ("UNINITIALIZED", "INVALID_ARGUMENT", "NOT_SUPPORTED", "NO_PERMISSION", "NOT_FOUND"):
        assert getattr(structs, name) == number(header, f"NVML_ERROR_{name}")
    for name in ("INSUFFICIENT_SIZE", "GPU_IS_LOST", "ARGUMENT_VERSION_MISMATCH", "UNKNOWN"):
        assert getattr(structs, name) == number(header, f"NVML_ERROR_{name}")
    known = {int(code) for code in re.findall(r"NVML_ERROR_\w+\s*=\s*(\d+)", header)}
    assert set(_SORTED) <= known


def test_enums_fields_and_architectures(header: str) -> None:
    assert number(header, "NVML_CLOCK_GRAPHICS") == structs.CLOCK_GRAPHICS
    assert number(header, "NVML_CLOCK_SM") == structs.CLOCK_SM
    assert number(header, "NVML_CLOCK_MEM") == structs.CLOCK_MEM
    assert number(header, "NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION") == structs.FIELD_TOTAL_ENERGY
    assert number(header, "NVML_FI_DEV_POWER_AVERAGE") == structs.FIELD_POWER_AVERAGE
    assert number(header, "NVML_FI_DEV_POWER_INSTANT") == structs.FIELD_POWER_INSTANT
    assert number(header, "NVML_VALUE_TYPE_UNSIGNED_INT") == structs.VALUE_UINT
    assert number(header, "NVML_VALUE_TYPE_UNSIGNED_LONG_LONG") == structs.VALUE_ULONG_LONG
    assert number(header, "NVML_DEVICE_ARCH_VOLTA") == VOLTA
    assert number(header, "NVML_DEVICE_ARCH_AMPERE") == AMPERE


def test_reason_bits(header: str) -> None:
    names = {
        "idle": "EventReasonGpuIdle",
        "clocks_setting": "EventReasonApplicationsClocksSetting",
        "sw_power_cap": "EventReasonSwPowerCap",
        "hw_slowdown": "ThrottleReasonHwSlowdown",
        "sync_boost": "EventReasonSyncBoost",
        "sw_thermal_slowdown": "EventReasonSwThermalSlowdown",
        "hw_thermal_slowdown": "ThrottleReasonHwThermalSlowdown",
        "hw_power_brake": "ThrottleReasonHwPowerBrakeSlowdown",
        "display_setting": "EventReasonDisplayClockSetting",
        "board_limit": "EventReasonBoardLimit",
        "reliability": "EventReasonReliability",
    }
    assert {bit: number(header, f"nvmlClocks{names[ours]}") for bit, ours in REASON_BITS.items()} == {
        bit: bit for bit in REASON_BITS
    }


def test_signatures_of_every_emulated_function(header: str) -> None:
    """A parameter is a pointer, a handle, an enum or unsigned int, or an int: as we declared it."""
    for name, (argtypes, _) in library._ENTRIES.items():
        match = re.search(rf"DECLDIR (?:char\* )?{name}\(([^)]*)\)", header)
        assert match, f"{name} is not declared in the header"
        parameters = [part.strip() for part in match[1].split(",") if part.strip() not in ("", "void")]
        expected = [_kind(parameter) for parameter in parameters]
        assert [_our_kind(argtype) for argtype in argtypes] == expected, (name, parameters)


def _kind(parameter: str) -> str:
    if "*" in parameter or parameter.startswith("nvmlDevice_t"):
        return "pointer"
    return "int" if parameter.startswith("int ") else "unsigned"


def _our_kind(argtype: object) -> str:
    return {c.c_uint: "unsigned", c.c_int: "int"}.get(argtype, "pointer")  # type: ignore[call-overload]


def test_sizes_as_a_compiler_sees_them(header_path: Path, tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc here; the header was parsed instead")
    source = tmp_path / "sizes.c"
    lines = [f'printf("%zu\\n", sizeof({name}));' for _, name, _ in OURS_AND_THEIRS]
    lines += ['printf("%u\\n", nvmlTemperature_v1);']
    body = "".join(lines)
    source.write_text(
        f'#include <stdio.h>\n#include "{header_path}"\nint main(void) {{ {body} return 0; }}\n'
    )
    subprocess.run(["gcc", "-o", tmp_path / "sizes", source], check=True, capture_output=True)
    seen = [int(line) for line in subprocess.check_output([tmp_path / "sizes"], text=True).split()]
    assert seen == [*(c.sizeof(ours) for ours, _, _ in OURS_AND_THEIRS), structs.TEMPERATURE_V1]
