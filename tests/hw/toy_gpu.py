"""A small GPU with round numbers, so that what the emulator does can be checked by hand.

Two memory clocks, eight SM clocks. "gemm" takes 1 ms at 1000 MHz, in inverse proportion to the SM
clock, and hits the 700 W cap above 1600 MHz; "copy" takes 1 ms at memory 2000, whatever the SM clock.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kdvfs_hw.emulator.behaviour import Load, TableBehaviour
from kdvfs_hw.emulator.sensors import Sensors
from kdvfs_hw.emulator.spec import DeviceSpec

from kdvfs_sim.core.clocks import AUTO, Clocks, ClockTable
from kdvfs_sim.core.domain_cost import DomainCost

SM_MHZ = (400, 600, 800, 1000, 1200, 1400, 1600, 2000)
MEM_MHZ = (1000, 2000)
CAP_W = 700.0
IDLE_MHZ = (2000, 2000)
SET_SM, RESET_SM = "nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks"


def gemm_power_w(sm_mhz: int) -> float:
    return 100.0 + 0.375 * sm_mhz


def behaviour(sm: DomainCost, mem: DomainCost) -> TableBehaviour:
    rows = tuple(ClockTable.grid("toy", SM_MHZ, MEM_MHZ))
    mhz = tuple(
        (row.sm_mhz if row.sm_mhz is not AUTO else 2000, row.mem_mhz if row.mem_mhz is not AUTO else 2000)
        for row in rows
    )
    place = {row: i for i, row in enumerate(rows)}
    return TableBehaviour(
        rows=rows,
        mhz=mhz,
        loads={
            "gemm": Load(
                duration_ns=tuple(1e9 / s for s, _ in mhz),
                power_w=tuple(gemm_power_w(s) for s, _ in mhz),
                effective=tuple(place[Clocks(min(s, 1600), m)] for s, m in mhz),
            ),
            "copy": Load(
                duration_ns=tuple(2e9 / m for _, m in mhz),
                power_w=tuple(200.0 + 0.1 * s for s, _ in mhz),
                effective=tuple(place[Clocks(s, m)] for s, m in mhz),
            ),
        },
        idle_w=tuple(80.0 + 0.01 * s for s, _ in mhz),
        idle_mhz=IDLE_MHZ,
        sm=sm,
        mem=mem,
    )


def toy_spec(*, host_call_ns: int = 1_000_000, switching_ns: int = 5_000_000, **changes: Any) -> DeviceSpec:
    domain = DomainCost(host_call_ns=host_call_ns, up_ns=switching_ns, down_ns=2 * switching_ns)
    spec = DeviceSpec(
        name="Toy GPU (emulated)",
        behaviour=behaviour(domain, domain),
        power_limit_w=CAP_W,
        sensors=Sensors(counter_read_ns=100_000),
    )
    return replace(spec, **changes)
