"""On a real GPU, observing only: ``pytest -m hw``. No test here asks the driver for any change."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pynvml
import pytest
from command import kdvfs
from kdvfs_hw.devices import open_device
from kdvfs_hw.doctor import examine
from kdvfs_hw.measure.observer import Observer
from kdvfs_hw.nvml_read import NvmlDevice, NvmlSession
from kdvfs_hw.runs.record import read_record

from kdvfs_sim.core.device import Feature
from kdvfs_sim.core.errors import DeviceUnsupportedError, DriverError

pytestmark = pytest.mark.hw

CHANGES = re.compile(r"nvml\w*(Set|Reset|Clear|Remove|Freeze|Validate)\w*")
SETTINGS = (
    ("nvmlDeviceGetPowerManagementLimit",),
    ("nvmlDeviceGetEnforcedPowerLimit",),
    ("nvmlDeviceGetPersistenceMode",),
    ("nvmlDeviceGetComputeMode",),
    ("nvmlDeviceGetMigMode",),
    ("nvmlDeviceGetEccMode",),
    ("nvmlDeviceGetApplicationsClock", pynvml.NVML_CLOCK_SM),
    ("nvmlDeviceGetApplicationsClock", pynvml.NVML_CLOCK_MEM),
    ("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_SM),
    ("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_MEM),
    ("nvmlDeviceGetAutoBoostedClocksEnabled",),
)


@pytest.fixture
def name() -> str:
    """UUID of the first GPU that the driver shows; without one the test is skipped."""
    try:
        with NvmlSession() as session:
            usable = [identity.uuid for identity in session.gpus() if identity.error is None]
    except DriverError as error:
        pytest.skip(f"no GPU here: {error.words}")
    if not usable:
        pytest.skip("no GPU here: the driver shows none that can be read")
    return usable[0]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the driver's functions, as this process looks them up for each call."""
    names: list[str] = []
    look_up = pynvml._nvmlGetFunctionPointer

    def noted(name: str) -> object:
        names.append(name)
        return look_up(name)

    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer", noted)
    return names


def settings_of(name: str) -> dict[str, object]:
    """What somebody could have set; None where this GPU has no such setting."""
    found: dict[str, object] = {}
    with open_device(name) as opened:
        for function, *arguments in SETTINGS:
            try:
                value = opened.device.ask(str(function), *arguments)
            except DeviceUnsupportedError:
                value = None
            found[f"{function} {arguments}"] = value
    assert any(value is not None for value in found.values())
    return found


def offers(gpu: NvmlDevice, feature: Feature) -> bool:
    return gpu.capabilities()[feature].support == "yes"


def test_doctor_finds_the_gpu_and_changes_no_setting(name: str, asked: list[str]) -> None:
    before = settings_of(name)
    (found,) = examine(name).gpus
    assert found.error is None
    assert found.capabilities is not None
    assert set(found.capabilities) == set(Feature)
    assert found.capabilities[Feature.READ_CLOCKS].support == "yes"
    assert settings_of(name) == before
    assert len(asked) > 20
    assert not [function for function in asked if CHANGES.match(function)]


def test_doctor_as_typed_says_what_is_there(name: str) -> None:
    before = settings_of(name)
    done = kdvfs("doctor", "--device", name, "--json")
    assert done.returncode == 0, done.stderr
    with open_device(name) as opened:
        assert opened.device.uuid in json.dumps(json.loads(done.stdout))
    assert settings_of(name) == before


def test_readings_are_possible_and_carry_their_times(name: str, asked: list[str]) -> None:
    with open_device(name) as opened:
        gpu = opened.device
        before_ns = gpu.time.now_ns()
        clocks, throttle = gpu.observed_clocks(), gpu.throttle_reasons()
        after_ns = gpu.time.now_ns()
        for reading in (clocks, throttle):
            assert before_ns <= reading.called_ns <= reading.returned_ns <= after_ns
        highest_sm_mhz, highest_mem_mhz = gpu.max_clocks()
        assert 0 < clocks.sm_mhz <= highest_sm_mhz
        assert 0 < clocks.mem_mhz <= highest_mem_mhz
        limit_w = gpu.power_limit_w()
        assert limit_w > 10
        assert 0 < gpu.temperature_c() < 120
        if offers(gpu, Feature.INSTANT_POWER):
            assert 1 < gpu.power("instant").power_w < 2 * limit_w
        listed = [pair.sm_mhz for pair in gpu.clock_table() if isinstance(pair.sm_mhz, int)]
        assert max(listed, default=highest_sm_mhz) <= highest_sm_mhz
    assert not [function for function in asked if CHANGES.match(function)]


def test_the_energy_counter_agrees_with_the_power_and_its_period_is_found(
    name: str, asked: list[str]
) -> None:
    before = settings_of(name)
    with open_device(name) as opened:
        gpu = opened.device
        if not offers(gpu, Feature.ENERGY_COUNTER):
            pytest.skip(f"{gpu.name} has no energy counter")
        with Observer(gpu) as observer:
            observer.await_period()
            from_ns = gpu.time.now_ns()
            gpu.time.sleep_ns(3_000_000_000)
            seen = observer.between(from_ns, gpu.time.now_ns())
        assert observer.period is not None
        assert 1_000_000 <= observer.period.period_ns <= 1_000_000_000
        assert seen.power_w is not None, seen.energy.reason
        assert 1 < seen.power_w < 2 * gpu.power_limit_w()
        if seen.instant_w is not None:
            assert seen.power_w == pytest.approx(seen.instant_w, rel=0.2)
    assert settings_of(name) == before
    assert not [function for function in asked if CHANGES.match(function)]


def test_observe_as_typed_measures_a_command_and_changes_no_setting(name: str, tmp_path: Path) -> None:
    before = settings_of(name)
    nap = (sys.executable, "-c", "import time; time.sleep(2)")
    done = kdvfs("observe", "--device", name, "--out-dir", "run", "--", *nap, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (reading,) = [line for line in read_record(tmp_path / "run") if line["kind"] == "command"]
    assert reading["exit_code"] == 0
    assert 2 <= reading["time_s"] < 10
    with open_device(name) as opened:
        if offers(opened.device, Feature.ENERGY_COUNTER):
            assert 1 < reading["energy_j"] / reading["time_s"] < 2 * opened.device.power_limit_w()
    assert settings_of(name) == before
