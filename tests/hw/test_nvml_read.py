"""The reader against the emulated driver, through the real pynvml."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import Any

import pytest
from toy_gpu import CAP_W, MEM_MHZ, SM_MHZ, gemm_power_w

from kdvfs_sim.core.clocks import AUTO, Clocks
from kdvfs_sim.core.device import Feature
from kdvfs_sim.core.errors import (
    DeviceLostError,
    DeviceUnsupportedError,
    DriverError,
    InvariantError,
)
from kdvfs_sim.testing.fake_device import VirtualTime


def test_identity_is_text_and_the_uuid_is_the_devices(open_toy: Any) -> None:
    opened = open_toy()
    assert opened.device.name == "Toy GPU (emulated)"
    assert opened.device.uuid == opened.emulated.uuid
    assert opened.device.uuid.startswith("GPU-")
    assert len(opened.device.uuid) == 40
    assert opened.device.identity.pci_bus_id == "00000000:1B:00.0"
    assert opened.device.identity.pci_order == (0, 0x1B, 0)
    assert opened.device.software()["driver"] == "emulated"
    assert "nvidia-ml-py" in opened.device.software()["binding"]


def test_units_of_an_idle_and_a_loaded_gpu(open_toy: Any) -> None:
    opened = open_toy()
    device, gpu = opened.device, opened.emulated
    gpu.time.sleep_ns(2_000_000_000)
    assert device.power("average").power_w == pytest.approx(100.0)
    before = device.energy_counter()
    gpu.launch("gemm", 1e9)
    gpu.time.sleep_ns(5_000_000_000)
    after = device.energy_counter()
    assert device.power("instant").power_w == pytest.approx(gemm_power_w(1600))
    assert device.power("average").power_w == pytest.approx(gemm_power_w(1600))
    joules = (after.energy_mj - before.energy_mj) / 1000
    assert joules == pytest.approx(5 * gemm_power_w(1600), abs=2 * 0.1 * CAP_W)
    assert device.power_limit_w() == CAP_W
    assert device.throttle_reasons().slowed_by == {"sw_power_cap"}
    observed = device.observed_clocks()
    assert (observed.sm_mhz, observed.mem_mhz) == (1600, 2000)


def test_readings_carry_the_time_the_call_took(open_toy: Any) -> None:
    device = open_toy().device
    reading = device.energy_counter()
    assert reading.returned_ns - reading.called_ns == 100_000


def test_the_counter_moves_once_a_period(open_toy: Any) -> None:
    opened = open_toy()
    values = []
    for _ in range(400):
        opened.emulated.time.sleep_ns(2_400_000)
        values.append((opened.device.energy_counter().energy_mj, opened.emulated.time.now_ns()))
    edges = [t for (a, _), (b, t) in pairwise(values) if a != b]
    steps = [b - a for a, b in pairwise(edges)]
    assert len(steps) == 8
    assert all(abs(step - 100_000_000) <= 2_500_000 for step in steps)


def test_clock_table_holds_the_drivers_pairs_and_auto(open_toy: Any) -> None:
    table = open_toy().device.clock_table()
    assert len(table) == (len(SM_MHZ) + 1) * (len(MEM_MHZ) + 1)
    assert Clocks(1400, 1000) in table
    assert Clocks(AUTO, AUTO) in table


def test_capabilities_of_a_whole_gpu(open_toy: Any) -> None:
    capabilities = open_toy().device.capabilities()
    assert set(capabilities) == set(Feature)
    assert {capability.support for capability in capabilities.values()} == {"yes"}
    assert capabilities[Feature.LOCK_SM].words == "not tried: only a lock would tell"


@pytest.mark.parametrize(
    ("fault", "feature", "support"),
    [
        ("no_permission", Feature.LOCK_SM, "needs rights"),
        ("no_lock", Feature.LOCK_SM, "no"),
        ("no_mem_lock", Feature.LOCK_MEM, "no"),
        ("no_energy", Feature.ENERGY_COUNTER, "no"),
        ("no_power", Feature.INSTANT_POWER, "no"),
        ("no_reasons", Feature.THROTTLE_REASONS, "no"),
    ],
)
def test_a_missing_feature_is_one_no_with_words_and_remedy(
    open_toy: Any, fault: str, feature: Feature, support: str
) -> None:
    capabilities = open_toy(fault).device.capabilities()
    assert capabilities[feature].support == support
    assert capabilities[feature].words
    assert capabilities[feature].remedy
    assert capabilities[Feature.READ_CLOCKS].support == "yes"
    assert capabilities[Feature.TEMPERATURE].support == "yes"


def test_without_a_memory_lock_schedules_have_one_dimension(open_toy: Any) -> None:
    table = open_toy("no_mem_lock").device.clock_table()
    assert {pair.mem_mhz for pair in table} == {AUTO}
    assert len(table) == len(SM_MHZ) + 1


def test_unsupported_is_an_error_and_never_zero(open_toy: Any) -> None:
    device = open_toy("no_energy", "no_power").device
    with pytest.raises(DeviceUnsupportedError, match="nvmlDeviceGetTotalEnergyConsumption: Not Supported"):
        device.energy_counter()
    for kind in ("instant", "average"):
        with pytest.raises(DeviceUnsupportedError):
            device.power(kind)


def test_a_lost_gpu_says_so_and_keeps_the_code(open_toy: Any) -> None:
    opened = open_toy()
    opened.device.observed_clocks()
    opened.emulated.script("lost")
    with pytest.raises(DeviceLostError, match="fallen off the bus") as caught:
        opened.device.observed_clocks()
    assert caught.value.code == 15
    with pytest.raises(DeviceLostError):
        opened.device.capabilities()
    opened.emulated.heal("lost")
    assert opened.device.observed_clocks().sm_mhz == 2000


def test_unknown_reason_bits_keep_their_number() -> None:
    from kdvfs_hw.capabilities import decode_reasons

    assert decode_reasons(0x1001) == {"idle", "unknown_0x1000"}
    assert decode_reasons(0) == frozenset()


def test_foreign_processes_are_those_of_others(open_toy: Any) -> None:
    opened = open_toy()
    opened.emulated.launch("copy", 1000)
    assert opened.device.foreign_processes() == ()
    opened.emulated.script("foreign_process")
    (other,) = opened.device.foreign_processes()
    assert other.pid not in (os.getpid(), 0)
    assert other.memory_bytes == 500 * 2**20
    assert opened.device.foreign_processes([other.pid]) == ()


def test_one_session_at_a_time_and_none_after_close(open_toy: Any) -> None:
    from kdvfs_hw.nvml_read import NvmlSession

    opened = open_toy()
    with pytest.raises(InvariantError, match="already open"):
        NvmlSession()
    opened.device.session.close()
    with pytest.raises(DriverError):
        opened.device.observed_clocks()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_reads_with_a_session_of_its_own(open_toy: Any) -> None:
    device = open_toy(time=VirtualTime()).device
    assert device.observed_clocks().sm_mhz == 2000
    child = os.fork()
    if not child:
        os._exit(0 if device.observed_clocks().sm_mhz == 2000 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_an_absent_function_is_unsupported_not_a_crash(open_toy: Any) -> None:
    device = open_toy().device
    with pytest.raises(DeviceUnsupportedError, match="Function Not Found"):
        device.ask("nvmlDeviceGetBrand")
    with pytest.raises(DeviceUnsupportedError, match="not in the binding"):
        device.ask("nvmlDeviceGetSomethingOfTheFuture")
