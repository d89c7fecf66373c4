"""What a clock change costs on a GPU of the catalogue, and tables of any switching model's answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.core.domain_cost import DomainCost
from kdvfs_sim.core.errors import ContractError, UsageError
from kdvfs_sim.core.governor import DynamicGovernor, PowerBudget
from kdvfs_sim.core.protocols import SwitchingModel
from kdvfs_sim.core.switching import PROTOCOLS, SwitchCost, SwitchProtocol, SwitchTable
from kdvfs_sim.gpu.facts import Fact, GpuFacts, Level

LATENCY_SPREAD: Final = Fact(
    value=0.11,
    low=0.09,
    high=0.12,
    kind="assumed",
    source="sigma of a lognormal from quantiles of 13,000 locked-clock switches on an unnamed board: median "
    "24.5 to 25.3 ms, P95 29.0 to 30.8 ms, P99 31.9 to 32.7 ms; part of it may be the refresh of the reading",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainSwitching:
    """Two domains, two calls: the calls add, the switching times overlap (a SwitchingModel).

    ``assumed`` names the assumed numbers these costs lean on.
    """

    sm: DomainCost
    memory: DomainCost
    assumed: tuple[str, ...] = ()

    def switch(self, old: Clocks, new: Clocks, /) -> SwitchCost:
        """The cost of asking for ``new`` when ``old`` is what was asked for last."""
        sm_call, sm_switching = self.sm.between(old.sm_mhz, new.sm_mhz)
        memory_call, memory_switching = self.memory.between(old.mem_mhz, new.mem_mhz)
        return SwitchCost(
            host_call_ns=sm_call + memory_call, switching_ns=max(sm_switching, memory_switching)
        )

    def table(self, clocks: Sequence[Clocks]) -> SwitchTable:
        """``switch`` for all pairs at once."""
        sm_call, sm_switching = self.sm.table([pair.sm_mhz for pair in clocks])
        memory_call, memory_switching = self.memory.table([pair.mem_mhz for pair in clocks])
        n = len(clocks)
        return SwitchTable(
            host_call_ns=sm_call + memory_call,
            switching_ns=np.maximum(sm_switching, memory_switching),
            stall_ns=np.zeros((n, n), dtype=np.int64),
            extra_energy_j=np.zeros((n, n)),
            assumed=self.assumed,
        )


def switching_model(gpu: GpuFacts, level: Level = "nominal") -> DomainSwitching:
    """The GPU's switch costs at one end of what is believable, or in between.

    On a GPU with one memory clock a request for it is a call without a change. Raises InputError
    where the entry does not know a latency.
    """
    sm = _domain(gpu, "switching.sm", level)
    if len(gpu.memory) > 1:
        memory = _domain(gpu, "switching.memory", level)
    else:
        memory = DomainCost(host_call_ns=sm.host_call_ns, up_ns=0, down_ns=0)
    domains = ("sm", "memory") if len(gpu.requestable_memory()) > 1 else ("sm",)
    assumed = gpu.assumed(f"switching.{domain}." for domain in domains)
    return DomainSwitching(sm=sm, memory=memory, assumed=assumed)


def tabulate(model: SwitchingModel, clocks: Sequence[Clocks]) -> SwitchTable:
    """The answers of any switching model between all pairs of ``clocks`` (rows old, columns new).

    Raises ContractError, naming the pair, if an answer is not what the Protocol promises.
    """
    if type(model) is DomainSwitching:
        return model.table(clocks)
    n = len(clocks)
    host_call_ns, switching_ns, stall_ns = (np.zeros((n, n), dtype=np.int64) for _ in range(3))
    extra_energy_j = np.zeros((n, n))
    for i, old in enumerate(clocks):
        for j, new in enumerate(clocks):
            cost = _ask(model, old, new)
            host_call_ns[i, j] = cost.host_call_ns
            switching_ns[i, j] = cost.switching_ns
            stall_ns[i, j] = cost.stall_ns
            extra_energy_j[i, j] = cost.extra_energy_j
    return SwitchTable(
        host_call_ns=host_call_ns,
        switching_ns=switching_ns,
        stall_ns=stall_ns,
        extra_energy_j=extra_energy_j,
        assumed=tuple(getattr(model, "assumed", ())),
    )


def protocol_for(gpu: GpuFacts, name: str) -> SwitchProtocol:
    """The named switch protocol with this GPU's trigger and relaunch times. Raises UsageError."""
    try:
        protocol = PROTOCOLS[name]
    except KeyError:
        raise UsageError(f"protocol {name!r}: one of {', '.join(PROTOCOLS)} is right") from None
    if not protocol.charged:
        return protocol
    return protocol.with_timing(
        trigger_ns=round(gpu.need("protocol.trigger_ns").value),
        relaunch_ns=round(gpu.need("protocol.relaunch_ns").value),
    )


def dynamic_governor(gpu: GpuFacts) -> DynamicGovernor | None:
    """Time constants of the governor's own moves; None where nobody has measured them."""
    names = ("sense_ns", "fall_ns", "rise_ns")
    times = {name: gpu.get(f"governor.{name}") for name in names}
    if any(fact is None for fact in times.values()):
        return None
    return DynamicGovernor(
        **{name: round(fact.value) for name, fact in times.items() if fact is not None},
        steps=round(gpu.value("governor.steps", 4)),
        overshoot=gpu.value("governor.overshoot", 0.0),
        budget=_power_budget(gpu),
    )


def _power_budget(gpu: GpuFacts) -> PowerBudget | None:
    path = "governor.budget"
    if gpu.get(f"{path}.window_ns") is None:
        return None
    tick_ns, window_ns = (gpu.need(f"{path}.{name}").value for name in ("tick_ns", "window_ns"))
    gemm_burst = gpu.get(f"{path}.gemm_burst")
    shares = ("gain", "burst", "burst_gain", "most", "least", "rise")
    return PowerBudget(
        tick_ns=round(tick_ns),
        n_ticks=max(1, round(window_ns / tick_ns)),
        **{name: gpu.need(f"{path}.{name}").value for name in shares},
        burst_of=() if gemm_burst is None else (("gemm", gemm_burst.value),),
    )


def _domain(gpu: GpuFacts, path: str, level: Level) -> DomainCost:
    either = gpu.need(f"{path}.switching_ns")
    up, down = (gpu.get(f"{path}.{name}") or either for name in ("up_ns", "down_ns"))
    return DomainCost(
        host_call_ns=round(gpu.need(f"{path}.host_call_ns").at(level)),
        up_ns=round(up.at(level)),
        down_ns=round(down.at(level)),
    )


def _ask(model: SwitchingModel, old: Clocks, new: Clocks) -> SwitchCost:
    try:
        cost: object = model.switch(old, new)
    except Exception as error:
        raise _broken(model, old, new, f"the exception {error!r}", "a SwitchCost") from error
    if not isinstance(cost, SwitchCost):
        raise _broken(model, old, new, repr(cost), "a SwitchCost")
    if old == new and cost != SwitchCost(host_call_ns=0, switching_ns=0):
        raise _broken(model, old, new, str(cost), "no cost: a no-op is free")
    return cost


def _broken(model: SwitchingModel, old: Clocks, new: Clocks, got: str, expected: str) -> ContractError:
    return ContractError(type(model).__name__, f"switch({old} -> {new})", got, expected)
