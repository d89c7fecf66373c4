"""The analytic model one cell at a time, as the documentation states it, with nothing vectorized."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kdvfs_sim.gpu.facts import GpuFacts

P = 4.0


@dataclass(frozen=True, kw_only=True)
class SlowKernel:
    """A kernel whose entry has all five fields, without a roofline, on one GPU."""

    gpu: GpuFacts
    path: str
    typical_ns: float

    def field(self, name: str) -> float:
        return self.gpu.need(f"{self.path}.{name}").value

    def voltage(self, sm_mhz: float) -> float:
        knee, rise = self.gpu.need("voltage.knee_mhz").value, self.gpu.need("voltage.rise").value
        if sm_mhz <= knee:
            return 1.0
        return 1.0 + rise * (sm_mhz - knee) / (self.gpu.ceiling_mhz - knee)

    def idle_w(self, sm_mhz: float, mem_mhz: float) -> float:
        floor, idle = self.gpu.need("power.floor_w").value, self.gpu.need("power.idle_w").value
        top = self.gpu.auto_ceiling_mhz
        tree = (idle - floor) / (self.voltage(top) ** 2 * top)
        memory = self.gpu.value("power.memory_w", 0.0) * (mem_mhz / self.gpu.default_memory_mhz - 1.0)
        return floor + memory + tree * self.voltage(sm_mhz) ** 2 * sm_mhz

    def relative_time(self, sm_mhz: float, mem_mhz: float) -> float:
        """1 at the operating point."""
        share, fixed = self.field("compute_share"), self.field("fixed_share")
        sm = share * self.field("sm_mhz") / sm_mhz
        memory = (1.0 - share) * self.gpu.default_memory_mhz / mem_mhz
        norm = (share**P + (1.0 - share) ** P) ** (1.0 / P)
        return (1.0 - fixed) * (sm**P + memory**P) ** (1.0 / P) / norm + fixed

    def power_w(self, sm_mhz: float, mem_mhz: float) -> float:
        at, work = self.field("sm_mhz"), self.field("work_share")
        dynamic = self.field("power_w") - self.idle_w(at, self.gpu.default_memory_mhz)
        clock = (self.voltage(sm_mhz) ** 2 * sm_mhz) / (self.voltage(at) ** 2 * at)
        rate = (self.voltage(sm_mhz) / self.voltage(at)) ** 2 / self.relative_time(sm_mhz, mem_mhz)
        return self.idle_w(sm_mhz, mem_mhz) + dynamic * ((1.0 - work) * clock + work * rate)

    def effective_mhz(self, request_mhz: float, mem_mhz: float, cap_w: float) -> int:
        """``request_mhz`` is math.inf for AUTO."""
        ceiling = self.gpu.auto_ceiling_mhz if math.isinf(request_mhz) else self.gpu.ceiling_mhz
        memory = next(clock for clock in self.gpu.memory if clock.mhz == mem_mhz)
        listed = self.gpu.sm_clocks(memory)
        allowed = [mhz for mhz in listed if mhz <= min(request_mhz, ceiling)]
        met = [mhz for mhz in allowed if self.power_w(mhz, mem_mhz) <= cap_w]
        return max(met, default=listed[0])

    def duration_ns(self, sm_mhz: float, mem_mhz: float) -> float:
        """The recording ran under AUTO and the default power limit."""
        default = self.gpu.default_memory_mhz
        recorded = self.effective_mhz(math.inf, default, self.gpu.need("power.limit_w").value)
        return self.typical_ns * self.relative_time(sm_mhz, mem_mhz) / self.relative_time(recorded, default)
