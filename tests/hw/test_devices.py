"""Which GPU a name means, with four emulated ones behind one driver."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kdvfs_hw.cuda_order import cuda_devices
from kdvfs_hw.devices import emulated_gpu, emulated_session, open_device, resolve
from kdvfs_hw.emulator.cabi import c_function
from kdvfs_hw.emulator.faults import FAULTS, parse_fault
from kdvfs_hw.emulator.gpu import EmulatedGpu
from kdvfs_hw.nvml_read import GpuIdentity, NvmlDevice, NvmlSession
from toy_gpu import toy_spec

from kdvfs_sim.core.errors import DeviceError, DeviceLostError, DriverError, UnknownGpuError, UsageError
from kdvfs_sim.testing.fake_device import VirtualTime

PCI = ("00000000:C1:00.0", "00000000:1B:00.0", "00000001:1B:00.0", "00000000:43:00.0")


@pytest.fixture
def four(tmp_path: Path) -> Iterator[list[EmulatedGpu]]:
    time = VirtualTime()
    gpus = [
        EmulatedGpu.create(tmp_path / f"gpu{i}", toy_spec(pci_bus_id=bus_id), time=time)
        for i, bus_id in enumerate(PCI)
    ]
    yield gpus
    for gpu in gpus:
        gpu.close()


def touched(gpus: list[EmulatedGpu]) -> list[int]:
    return [
        i
        for i, gpu in enumerate(gpus)
        if any("Clock" in call["call"] or "Energy" in call["call"] for call in gpu.calls())
    ]


def test_the_visible_devices_decide_which_gpu_is_touched(four: list[EmulatedGpu]) -> None:
    with emulated_session(*four) as session:
        # in bus order the GPUs are 1, 3, 0, 2 of the driver's list
        environment = {"CUDA_VISIBLE_DEVICES": "2,3"}
        device = NvmlDevice(session, resolve("cuda:0", session.gpus(), environment))
        assert device.uuid == four[0].uuid
        device.observed_clocks()
        device.energy_counter()
    assert touched(four) == [0]


def test_one_lost_gpu_does_not_hide_the_others(four: list[EmulatedGpu]) -> None:
    four[1].script("lost")
    with emulated_session(*four) as session:
        gpus = session.gpus()
        assert [gpu.error is None for gpu in gpus] == [True, False, True, True]
        assert "lost" in str(gpus[1].error)
        assert resolve("pci:43:00.0", gpus, {}).uuid == four[3].uuid
        with pytest.raises(DeviceError, match="GPU is lost"):
            NvmlDevice(session, gpus[1])


@pytest.mark.parametrize(
    ("text", "index"),
    [("pci:c1:00.0", 0), ("pci:00000000:1B:00.0", 1), ("pci:1:1b:0", 2), ("cuda:0", 1), ("cuda:3", 2)],
)
def test_names_of_one_gpu(four: list[EmulatedGpu], text: str, index: int) -> None:
    with emulated_session(*four) as session:
        assert resolve(text, session.gpus(), {}).uuid == four[index].uuid
        assert resolve(four[index].uuid, session.gpus(), {}).uuid == four[index].uuid
        assert resolve(four[index].uuid[:12], session.gpus(), {}).uuid == four[index].uuid


@pytest.mark.parametrize(
    ("text", "environment", "error", "says"),
    [
        (None, {}, UsageError, "4 GPUs are visible: name one with --device"),
        (None, {"CUDA_VISIBLE_DEVICES": ""}, DeviceError, "CUDA shows no GPU"),
        ("GPU-", {}, UsageError, "fits 4 GPUs"),
        ("pci:1b:00.0", {}, UsageError, "fits 2 GPUs"),
        ("pci:zz", {}, UsageError, "as in pci:1b:00.0"),
        ("GPU-0000", {}, DeviceError, "no such GPU; there are: GPU-"),
        ("cuda:4", {}, DeviceError, "no such GPU"),
        ("0", {}, UsageError, "write a UUID"),
        ("nvidia", {}, UsageError, "write a UUID"),
    ],
)
def test_names_of_none_or_many(
    four: list[EmulatedGpu], text: str | None, environment: dict[str, str], error: Any, says: str
) -> None:
    with emulated_session(*four) as session, pytest.raises(error, match=says):
        resolve(text, session.gpus(), environment)


def gpu(index: int, name: str = "A", bus: int | None = None) -> GpuIdentity:
    return GpuIdentity(
        index=index, uuid=f"GPU-{index}{'0' * 7}", name=name, pci_order=(0, index if bus is None else bus, 0)
    )


@pytest.mark.parametrize(
    ("visible", "ordinals"),
    [
        (None, [2, 1, 0]),
        ("1", [1]),
        ("2,0", [0, 2]),
        ("0,-1,1", [2]),
        ("0,7,1", [2]),
        ("GPU-1", [1]),
        ("GPU-2,GPU-00", [2, 0]),
        ("GPU-9,0", []),
        ("GPU-,0", []),
        ("", []),
        (" 1 , 0 ", [1, 2]),
        ("NoDevFiles", []),
    ],
)
def test_visible_devices_of_one_model(visible: str | None, ordinals: list[int]) -> None:
    gpus = [gpu(0, bus=30), gpu(1, bus=20), gpu(2, bus=10)]
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert [found.index for found in cuda_devices(gpus, environment)] == ordinals


def test_speed_order_of_different_models_is_refused_not_guessed() -> None:
    gpus = [gpu(0, "H200"), gpu(1, "T4")]
    for environment in ({}, {"CUDA_VISIBLE_DEVICES": "0"}):
        with pytest.raises(DeviceError, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
            cuda_devices(gpus, environment)
    by_bus = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert [found.index for found in cuda_devices(gpus, by_bus)] == [0, 1]
    assert [found.index for found in cuda_devices(gpus, {"CUDA_VISIBLE_DEVICES": "GPU-1"})] == [1]


def test_instances_and_repeated_gpus_are_refused() -> None:
    with pytest.raises(DeviceError, match="whole GPU"):
        cuda_devices([gpu(0)], {"CUDA_VISIBLE_DEVICES": "MIG-11111111-2222-3333-4444-555555555555"})
    with pytest.raises(DeviceError, match="twice"):
        cuda_devices([gpu(0)], {"CUDA_VISIBLE_DEVICES": "0,GPU-0"})


@given(st.permutations(range(4)), st.lists(st.integers(0, 3), unique=True))
def test_an_ordinal_is_a_position_among_the_visible(buses: list[int], visible: list[int]) -> None:
    gpus = [gpu(i, bus=bus) for i, bus in enumerate(buses)]
    environment = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, visible))}
    assert [found.pci_order[1] for found in cuda_devices(gpus, environment)] == visible


def broken(code: int) -> Any:
    class Library:
        nvmlInitWithFlags = c_function(lambda flags: code, ctypes.c_int, [ctypes.c_uint])  # noqa: N815

    return Library()


@pytest.mark.parametrize(
    ("code", "error", "says"),
    [
        (18, DriverError, "reload the driver or restart the machine"),
        (9, DeviceLostError, "driver is not loaded"),
        (999, DeviceLostError, "restart the container"),
        (31, DriverError, "code 31"),
    ],
)
def test_a_driver_that_does_not_start_says_what_to_do(code: int, error: Any, says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        NvmlSession(broken(code))
    assert caught.value.code == code
    assert pynvml.nvmlLib is None


def test_no_driver_library_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise OSError(name)

    monkeypatch.setattr(pynvml, "CDLL", absent)
    with pytest.raises(DeviceLostError, match="--device emulated:h200"), open_device(None):
        pass


def test_emulated_gpus_of_the_catalogue_with_faults() -> None:
    plain = emulated_gpu("emulated:h200")
    again = emulated_gpu("emulated:H200")
    faulty = emulated_gpu("emulated:h200,lock_ignored,clipped=1200")
    assert plain.uuid == again.uuid != faulty.uuid
    state = faulty.view()
    clipped = state.fault("clipped")
    assert clipped is not None
    assert clipped.value == 1200
    assert state.fault("lock_ignored")
    assert plain.view().fault("clipped") is None
    for made in (plain, again, faulty):
        made.close()


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_has_bounds_that_hold_its_default(name: str, tmp_path: Path) -> None:
    kind = FAULTS[name]
    assert parse_fault(name) == (name, kind.default)
    if kind.value:
        assert parse_fault(f"{name}={kind.default}") == (name, kind.default)
        for value in (kind.least, kind.most):
            assert parse_fault(f"{name}={value}") == (name, value)
    gpu = EmulatedGpu.create(tmp_path / "gpu", toy_spec(), time=VirtualTime())
    for value in (kind.least - 1, kind.most * 2 + 1, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="is right" if kind.value else "takes no value"):
            parse_fault(f"{name}={value}")
        with pytest.raises(UsageError):
            gpu.script(name, value)
    gpu.close()


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("emulated:", UsageError, "name a GPU of the catalogue"),
        ("emulated:h2000", UnknownGpuError, "h2000"),
        ("emulated:h200,fire", UsageError, "no fault 'fire'"),
        ("emulated:h200,clipped=low", UsageError, "'low' is not a number"),
        ("emulated:h200,slower=-1", UsageError, r"'slower=-1': 0.01 to 1000 is right \(factor\)"),
        ("emulated:h200,slower=nan", UsageError, "'slower=nan': 0.01 to 1000 is right"),
        ("emulated:h200,slower=inf", UsageError, "'slower=inf': 0.01 to 1000 is right"),
        ("emulated:h200,slow_switching=0", UsageError, "'slow_switching=0': 0.001 to 10000 is right"),
        ("emulated:h200,lock_lost=-0.1", UsageError, r"is right \(seconds\)"),
        ("emulated:h200,no_permission=2", UsageError, "0 to 1 is right"),
        ("emulated:h200,lost=3", UsageError, "'lost' takes no value; write just lost"),
        ("emulated:h200,slower,slower=1.1", UsageError, "'slower' is named twice"),
        ("emulated:h200,", UsageError, "no fault ''"),
        ("emulated:/nowhere/at/all", DeviceError, "no emulated GPU there"),
        ("emulated:/nowhere,lost", UsageError, "when the GPU is made"),
    ],
)
def test_emulated_names_that_mean_nothing(text: str, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        emulated_gpu(text)


def test_the_emulated_h200_is_the_catalogues() -> None:
    with open_device("emulated:h200") as opened:
        table = opened.device.clock_table()
        assert {pair.sm_mhz for pair in table if isinstance(pair.sm_mhz, int)} == set(range(345, 1981, 15))
        assert opened.device.power_limit_w() == 700
        assert opened.emulated is not None
        behaviour = opened.emulated.spec.behaviour
        gemm = behaviour.steady("gemm", next(pair for pair in table if str(pair) == "sm=auto,mem=auto"))
        assert gemm.capped
        assert 1300 < gemm.sm_mhz < 1700
        assert opened.emulated.spec.governor is not None
