"""A trace on a GPU: everything that does not depend on the policy, built once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from kdvfs_sim.core.chain import Chain
from kdvfs_sim.core.checks import one_of
from kdvfs_sim.core.clocks import AUTO, AUTO_CLOCKS, Clocks
from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.core.errors import InputError, NotApplicableError
from kdvfs_sim.core.governor import DynamicGovernor
from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.core.problem import Aggregation, Granularity, Metrics, Objective, Problem
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.core.switching import PROTOCOLS, Boundary, SwitchDraws, SwitchProtocol, SwitchTable
from kdvfs_sim.gpu.build import cost_table
from kdvfs_sim.gpu.catalogue import load_gpu, match_device
from kdvfs_sim.gpu.facts import GpuFacts, Level
from kdvfs_sim.gpu.switching import dynamic_governor, protocol_for, switching_model, tabulate
from kdvfs_sim.gpu.transfer import Transfer, transfer_cost_table
from kdvfs_sim.replay.below_idle import refuse_below_zero, refuse_energy_below_zero
from kdvfs_sim.replay.fast import FastEvaluator
from kdvfs_sim.replay.program import Program
from kdvfs_sim.replay.simulate import ReplayResult, replay
from kdvfs_sim.trace.table import Trace

LEVELS: Final[tuple[Level, ...]] = ("low", "nominal", "high")
N_POWER_LIMITS: Final = 21
MAX_CLOCKS: Final = 700  # switch tables, and the search in them, grow with the square

Judge = Callable[[Schedule], Metrics]
PowerTable = Callable[[Level, float | None], CostTable]  # None: the default limit


@dataclass(frozen=True, kw_only=True, eq=False)
class Scene:
    """One device of one trace, on one GPU.

    ``program`` and ``chain`` (the busiest stream, which policies drive) with durations as on ``gpu``;
    ``costs`` and ``switching`` at the nominal assumptions and at both ends of what is believable;
    ``flags`` name what makes every result on this scene an estimate.
    """

    trace: Trace
    gpu: GpuFacts
    program: Program
    chain: Chain
    costs: Mapping[Level, CostTable]
    switching: Mapping[Level, SwitchTable]
    protocols: Mapping[str, SwitchProtocol]
    boundary: Boundary
    start: Clocks = AUTO_CLOCKS
    power_table: PowerTable | None = None
    flags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        one_of("Scene: boundary", self.boundary, Boundary)

    @cached_property
    def governor(self) -> DynamicGovernor | None:
        """The dynamic governor of this GPU, None where its time constants are unknown."""
        return dynamic_governor(self.gpu)

    @cached_property
    def choices(self) -> CostTable:
        """The nominal costs with one request for each effect: locking the only memory clock that a GPU
        runs at anyway changes nothing, costs a call, and would square the size of the search."""
        costs = self.costs["nominal"]
        auto_memory = {pair.sm_mhz: row for row, pair in enumerate(costs.clocks) if pair.mem_mhz is AUTO}
        keep = costs.requestable.copy()
        for row, pair in enumerate(costs.clocks):
            twin = auto_memory.get(pair.sm_mhz, row)
            same_clocks = bool((costs.effective[:, row] == costs.effective[:, twin]).all())
            if twin != row and same_clocks and costs.idle_power_w[row] == costs.idle_power_w[twin]:
                keep[row] = False
        return replace(costs, requestable=keep)

    @cached_property
    def power_limits_w(self) -> tuple[float, ...]:
        """Limits to try for the power-limit baseline, the default last; empty where unknown.

        On an entry fitted to a sweep, lower limits that push a kind below the clocks swept are left out.
        """
        low, high = self.gpu.get("power.limit_min_w"), self.gpu.get("power.limit_w")
        if low is None or high is None or self.power_table is None:
            return ()
        limits = tuple(float(w) for w in np.linspace(low.value, high.value, N_POWER_LIMITS))
        if self.gpu.swept_mhz is None:
            return limits
        return (*filter(self._stays_in_the_sweep, limits[:-1]), limits[-1])

    def _stays_in_the_sweep(self, power_limit_w: float) -> bool:
        assert self.power_table is not None
        costs = self.power_table("nominal", power_limit_w)
        ran_at = {costs.clocks[row] for row in costs.effective[:, costs.index(AUTO_CLOCKS)]}
        assert self.gpu.swept_mhz is not None
        return all(pair.sm_mhz is AUTO or pair.sm_mhz >= self.gpu.swept_mhz[0] for pair in ran_at)

    @cached_property
    def auto_metrics(self) -> Metrics:
        """What the workload takes at (AUTO, AUTO), the clocks that budgets are relative to."""
        return self.replay(self.static(AUTO_CLOCKS, "free"), "free").metrics

    def protocol(self, protocol: str | SwitchProtocol) -> SwitchProtocol:
        """The protocol of this name, with the GPU's own times; one that is given is taken as it is.

        Raises InputError with the names there are.
        """
        if isinstance(protocol, SwitchProtocol):
            return protocol
        if protocol not in self.protocols:
            raise InputError(f"no protocol {protocol!r}; there are: {', '.join(self.protocols)}")
        return self.protocols[protocol]

    def static(self, clocks: Clocks, protocol: str | SwitchProtocol) -> Schedule:
        """One setting for everything on the stream that policies drive."""
        return Schedule.static(
            clocks,
            stream=self.chain.stream,
            device=self.chain.device,
            protocol=self.protocol(protocol).name,
            boundary=self.boundary,
        )

    def problem(
        self,
        objective: Objective,
        protocol: str | SwitchProtocol,
        *,
        granularity: Granularity = "launch",
        aggregation: Aggregation = "global",
        switching: SwitchTable | None = None,
        evaluate: Judge | None = None,
    ) -> Problem:
        """What an optimizer is asked, at the nominal costs and, unless given, the nominal ``switching``."""
        return Problem(
            chain=self.chain,
            costs=self.choices,
            switching=switching or self.switching["nominal"],
            protocol=self.protocol(protocol),
            boundary=self.boundary,
            objective=objective,
            evaluate=evaluate or self.judge(protocol, switching=switching),
            granularity=granularity,
            aggregation=aggregation,
            start=self.costs["nominal"].index(self.start),
        )

    def replay(
        self,
        schedule: Schedule,
        protocol: str | SwitchProtocol,
        *,
        costs: CostTable | None = None,
        switching: SwitchTable | None = None,
        governor: DynamicGovernor | None = None,
        draws: SwitchDraws | None = None,
    ) -> ReplayResult:
        """The SimPy replay of a schedule; costs and switching other than the nominal ones may be given.
        Raises InputError where it takes less than no energy."""
        run = replay(
            self.program,
            costs=costs or self.costs["nominal"],
            schedule=schedule,
            protocol=self.protocol(protocol),
            switching=switching or self.switching["nominal"],
            boundary=self.boundary,
            start=self.start,
            governor=governor,
            draws=draws,
        )
        refuse_energy_below_zero(run.timeline, costs or self.costs["nominal"])
        return run

    def judge(
        self,
        protocol: str | SwitchProtocol,
        *,
        costs: CostTable | None = None,
        switching: SwitchTable | None = None,
    ) -> Judge:
        """What evaluates schedules: the fast evaluator where it applies, else the replay."""
        try:
            fast = FastEvaluator(
                self.program,
                costs=costs or self.costs["nominal"],
                switching=switching or self.switching["nominal"],
                protocol=self.protocol(protocol),
                boundary=self.boundary,
                start=self.start,
            )
        except NotApplicableError:
            return lambda schedule: self.replay(schedule, protocol, costs=costs, switching=switching).metrics
        return fast.evaluate


def build_scene(
    trace: Trace,
    *,
    gpu: str | None = None,
    costs: CostTable | None = None,
    boundary: Boundary = "periodic",
    device: int | None = None,
    start: Clocks = AUTO_CLOCKS,
    node_power_w: float = 0.0,
) -> Scene:
    """A trace on the GPU it was recorded on, or on another (a *transfer*, always flagged).

    ``costs``: a table measured or fitted for the kinds of this very trace, instead of the catalogue's
    model; it cannot be transferred, and the catalogue gives the switching. ``node_power_w`` is the rest
    of the node: it is drawn for as long as the run takes. Raises UnknownGpuError, and InputError if the
    trace's GPU is needed and not in the catalogue, if it holds several devices and none is named, or if
    kernels that overlap take less than no energy.
    """
    one_of("build_scene: boundary", boundary, Boundary)
    if device is None and len(trace.devices) > 1:
        raise InputError(f"{trace.source}: holds devices {list(trace.devices)}; name the device")
    program = Program.from_trace(trace, device=device)
    recorded_on, facts = _gpus(trace, gpu, device)
    flags = list(program.flags)
    if not recorded_gpu_name(trace, device):
        flags.append(f"the recording names no GPU; taken as recorded on {recorded_on.name}")
    flags += _swept_only(facts)
    power_table: PowerTable | None = None
    if costs is not None:
        if recorded_on.slug != facts.slug:
            raise InputError(
                f"{trace.source}: its costs were published for {recorded_on.name} and cannot be "
                f"transferred to {facts.name}; name no other GPU"
            )
        levels = dict.fromkeys(LEVELS, costs.with_node_power(node_power_w))
    else:
        sm_clocks = _thinned(facts)
        if sm_clocks is not None:
            flags.append(f"only {len(sm_clocks)} of {len(facts.sm.values_mhz)} SM clocks are tried")
        model = _Modelled(
            recorded_on=recorded_on,
            facts=facts,
            kinds=program.kinds,
            typical_ns=program.typical_ns,
            recorded=trace.recorded_clocks,
            sm_clocks=sm_clocks,
            node_power_w=node_power_w,
        )
        if model.is_transfer:
            flags.append(f"transfer from {recorded_on.title} to {facts.title}")
            program = _scaled(program, model.transfer("nominal", None).duration_scale)
        power_table = model
        levels = {level: power_table(level, None) for level in LEVELS}
    refuse_below_zero(program, levels.values())
    return Scene(
        trace=trace,
        gpu=facts,
        program=program,
        chain=program.chain(levels["nominal"], stream=_busiest(program), start=start),
        costs=levels,
        switching={level: tabulate(switching_model(facts, level), levels[level].clocks) for level in LEVELS},
        protocols={name: protocol_for(facts, name) for name in PROTOCOLS},
        boundary=boundary,
        start=start,
        power_table=power_table,
        flags=tuple(flags),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Modelled:
    """The catalogue's model of a program's kinds, tabulated by corner and power limit (a PowerTable)."""

    recorded_on: GpuFacts
    facts: GpuFacts
    kinds: tuple[KernelKind, ...]
    typical_ns: npt.NDArray[np.float64]
    recorded: Clocks
    sm_clocks: tuple[int, ...] | None
    node_power_w: float

    @property
    def is_transfer(self) -> bool:
        return self.recorded_on.slug != self.facts.slug

    def __call__(self, corner: Level, power_limit_w: float | None) -> CostTable:
        if self.is_transfer:
            costs = self.transfer(corner, power_limit_w).costs
        else:
            costs = cost_table(
                self.facts,
                self.kinds,
                self.typical_ns,
                recorded=self.recorded,
                corner=corner,
                power_limit_w=power_limit_w,
                sm_clocks=self.sm_clocks,
            )
        return costs.with_node_power(self.node_power_w)

    def transfer(self, corner: Level, power_limit_w: float | None) -> Transfer:
        return transfer_cost_table(
            self.facts,
            self.kinds,
            self.typical_ns,
            recorded_on=self.recorded_on,
            recorded=self.recorded,
            corner=corner,
            power_limit_w=power_limit_w,
            sm_clocks=self.sm_clocks,
        )


def catalogue_entry(trace: Trace, device: int | None = None) -> tuple[str | None, str]:
    """Name of the catalogue's entry for the GPU recorded, or None and why there is none."""
    name = recorded_gpu_name(trace, device)
    slug = match_device(name) if name else None
    if slug is not None:
        return slug, ""
    if not name:
        return None, "recorded on a GPU that the file does not name; name the GPU (kdvfs gpus lists them)"
    return None, (
        f"recorded on {name!r}, which is not in the catalogue; write a TOML entry for it and name that as "
        "the GPU (docs/how-to/another-gpu.md)"
    )


def recorded_gpu_name(trace: Trace, device: int | None = None) -> str:
    """The GPU that the recording names, "" for none."""
    return trace.device_name if device is None else trace.device_names.get(device, "")


def is_for(gpu: GpuFacts, recorded_name: str) -> bool:
    """Is this entry, perhaps a user's own, one of the GPU that a recording names?"""
    return any(fnmatchcase(recorded_name, pattern) for pattern in gpu.device_names)


def _swept_only(gpu: GpuFacts) -> Iterator[str]:
    """What an entry fitted to a sweep leaves out, and how to have it."""
    if gpu.swept_mhz is None:
        return
    low, high = gpu.swept_mhz
    if (low, high) != (gpu.sm.values_mhz[0], gpu.sm.values_mhz[-1]):
        yield (
            f"the sweep behind {gpu.slug} covers SM clocks from {low} to {high} MHz: no others are chosen; "
            "to widen that, see docs/how-to/fit-a-sweep.md"
        )
    if gpu.auto_ceiling_mhz > high:
        yield (
            f"AUTO may run at up to {gpu.auto_ceiling_mhz} MHz, above the {high} MHz swept: what it costs "
            "there is extrapolated"
        )


def _gpus(trace: Trace, wanted: str | None, device: int | None) -> tuple[GpuFacts, GpuFacts]:
    """The GPU recorded on and the GPU asked for."""
    slug, reason = catalogue_entry(trace, device)
    if wanted is None:
        if slug is None:
            raise InputError(f"{trace.source}: {reason}")
        return load_gpu(slug), load_gpu(slug)
    facts = load_gpu(wanted)
    name = recorded_gpu_name(trace, device)
    if not name or is_for(facts, name):
        # the recording does not say, or this entry (perhaps the user's own) is for its GPU
        return facts, facts
    if slug is None:
        raise InputError(
            f"{trace.source}: recorded on {name!r}, of which there is no model: its kernels cannot be "
            f"transferred to {facts.name}; write a TOML entry for it"
        )
    return load_gpu(slug), facts


def _thinned(gpu: GpuFacts) -> tuple[int, ...] | None:
    """Every n-th SM clock, the highest included, where the whole table is too large; else None."""
    every = -(-len(gpu.clock_table()) // MAX_CLOCKS)
    return None if every == 1 else gpu.sm.values_mhz[::-1][::every][::-1]


def _scaled(program: Program, scale: npt.NDArray[np.float64]) -> Program:
    """The program with every kind's durations scaled, and starts as they then come about."""
    scaled = program.scaled(scale)
    return replace(scaled, recorded_start_ns=replay(scaled).timeline.start_ns)


def _busiest(program: Program) -> tuple[int, int]:
    """The stream with most kernel time: copies take long, but no clock changes that."""
    is_kernel = np.asarray([kind.op_class == "kernel" for kind in program.kinds])[program.kind]
    busy = np.bincount(program.stream, program.duration_ns * is_kernel, minlength=len(program.streams))
    return program.streams[int(np.argmax(busy))]
