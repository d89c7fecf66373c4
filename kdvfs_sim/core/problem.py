"""What an optimizer is given and what it gives back. A solution can be checked without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from kdvfs_sim.core.chain import Chain
from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.core.errors import InputError
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.core.switching import Boundary, SwitchProtocol, SwitchTable

Minimize: TypeAlias = Literal["energy", "time", "edp", "ed2p"]
Granularity: TypeAlias = Literal["static", "pass", "segment", "kind", "launch"]
Aggregation: TypeAlias = Literal["local", "global"]
Status: TypeAlias = Literal["optimal", "feasible", "not exact", "infeasible", "not applicable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The result of one run. The only place with seconds.

    ``time_s``: from 0 to the end of the last GPU operation. ``energy_j`` is None, with
    ``energy_reason``, where some power was not known. ``flags`` name what makes the numbers
    bounds or estimates (``cross_stream_unknown``, ``overlap_energy_is_a_bound``, ...).
    """

    time_s: float
    energy_j: float | None
    n_switches: int = 0
    switching_s: float = 0.0
    energy_reason: str = ""
    flags: tuple[str, ...] = ()

    @property
    def mean_power_w(self) -> float | None:
        """Energy over time; None if the energy is unknown or no time passed."""
        return None if self.energy_j is None or self.time_s == 0 else self.energy_j / self.time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What to minimize, under at most one budget (absolute, in the units of the name)."""

    minimize: Minimize = "energy"
    max_time_s: float | None = None
    max_energy_j: float | None = None

    def __post_init__(self) -> None:
        if self.max_time_s is not None and self.max_energy_j is not None:
            raise InputError("Objective: give a time budget or an energy budget, not both")

    def value(self, time_s: float, energy_j: float) -> float:
        """The number to minimize, in J, s, J s or J s^2."""
        if self.minimize == "energy":
            return energy_j
        if self.minimize == "time":
            return time_s
        return energy_j * time_s if self.minimize == "edp" else energy_j * time_s**2

    def allows(self, time_s: float, energy_j: float) -> bool:
        """Is the budget kept? Compared exactly: callers state their own rounding."""
        return (self.max_time_s is None or time_s <= self.max_time_s) and (
            self.max_energy_j is None or energy_j <= self.max_energy_j
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """Plain values. ``evaluate`` replays a schedule and is the judge of every answer.

    ``start``: row of the clocks in force before the first operation (one-shot boundary only;
    under ``periodic`` the start is free and the way back is charged).
    """

    chain: Chain
    costs: CostTable
    switching: SwitchTable
    protocol: SwitchProtocol
    boundary: Boundary
    objective: Objective
    evaluate: Callable[[Schedule], Metrics] = field(repr=False)
    granularity: Granularity = "launch"
    aggregation: Aggregation = "global"
    start: int | None = None

    def __post_init__(self) -> None:
        if self.switching.n_clocks != self.costs.n_clocks:
            raise InputError(
                f"Problem: switching covers {self.switching.n_clocks} clocks, costs {self.costs.n_clocks}"
            )
        if len(self.chain) and int(self.chain.kind.max()) >= self.costs.n_kinds:
            raise InputError("Problem: the chain names a kernel kind that the cost table lacks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """An optimizer's answer.

    ``metrics`` were recomputed by ``Problem.evaluate``. ``lower_bound`` (in the objective's unit)
    was computed without the schedule and is None where the method has none. ``schedule`` is None
    only when ``status`` is ``infeasible`` or ``not applicable``; ``message`` then says why.

    With ``alternate`` the answer is a mix over iterations: a share ``share`` of them runs
    ``schedule``, the rest ``alternate``; ``metrics`` are those of the mean iteration.
    """

    status: Status
    message: str = ""
    schedule: Schedule | None = None
    metrics: Metrics | None = None
    lower_bound: float | None = None
    alternate: Schedule | None = None
    share: float = 1.0
    n_evaluations: int = 0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A schedule that a search wants evaluated. ``number`` identifies it; no search gives one twice."""

    number: int
    schedule: Schedule
