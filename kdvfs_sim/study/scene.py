"""A trace on a GPU: everything that does not depend on the policy, built once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from kdvfs_sim.core.chain import Chain
from kdvfs_sim.core.clocks import AUTO_CLOCKS, Clocks
from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.core.errors import InputError, NotApplicableError
from kdvfs_sim.core.governor import DynamicGovernor
from kdvfs_sim.core.problem import Metrics
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.core.switching import PROTOCOLS, Boundary, SwitchProtocol, SwitchTable
from kdvfs_sim.gpu.build import cost_table
from kdvfs_sim.gpu.catalogue import load_gpu, match_device
from kdvfs_sim.gpu.facts import GpuFacts
from kdvfs_sim.gpu.switching import dynamic_governor, protocol_for, switching_model, tabulate
from kdvfs_sim.replay.fast import FastEvaluator
from kdvfs_sim.replay.program import Program
from kdvfs_sim.replay.simulate import ReplayResult, replay
from kdvfs_sim.trace.table import Trace

Level: TypeAlias = Literal["low", "nominal", "high"]
LEVELS: Final[tuple[Level, ...]] = ("low", "nominal", "high")


@dataclass(frozen=True, kw_only=True, eq=False)
class Scene:
    """One trace on one GPU.

    ``costs``: the cost table at the nominal assumptions and at both corners of them.
    ``switching``: the switch table at the low, nominal and high end of what is known.
    ``protocols``: the switch protocols with this GPU's own times. ``stream``: the stream whose
    launches policies drive. ``power_tables`` gives the cost table under another power limit.
    """

    trace: Trace
    program: Program
    chain: Chain
    gpu_name: str
    costs: Mapping[Level, CostTable]
    switching: Mapping[Level, SwitchTable]
    protocols: Mapping[str, SwitchProtocol]
    boundary: Boundary
    start: Clocks
    governor: DynamicGovernor | None = None
    power_limits_w: tuple[float, ...] = ()
    power_tables: Callable[[float], CostTable] | None = None
    flags: tuple[str, ...] = ()

    def replay(
        self,
        schedule: Schedule,
        protocol: SwitchProtocol,
        *,
        corner: Level = "nominal",
        level: Level = "nominal",
        governor: DynamicGovernor | None = None,
    ) -> ReplayResult:
        """The SimPy replay of a schedule at one corner of the assumptions."""
        return replay(
            self.program,
            costs=self.costs[corner],
            schedule=schedule,
            protocol=protocol,
            switching=self.switching[level],
            boundary=self.boundary,
            start=self.start,
            governor=governor,
        )

    def judge(
        self, protocol: SwitchProtocol, *, corner: Level = "nominal", level: Level = "nominal"
    ) -> Callable[[Schedule], Metrics]:
        """What evaluates schedules: the fast evaluator where it applies, else the replay."""
        try:
            fast = FastEvaluator(
                self.program,
                costs=self.costs[corner],
                switching=self.switching[level],
                protocol=protocol,
                boundary=self.boundary,
                start=self.start,
            )
        except NotApplicableError:
            return lambda schedule: self.replay(schedule, protocol, corner=corner, level=level).metrics
        return fast.evaluate
