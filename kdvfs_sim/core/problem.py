"""What an optimizer is given and what it gives back. A solution can be checked without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf, nan
from typing import Literal, TypeAlias

from kdvfs_sim.core.chain import Chain
from kdvfs_sim.core.checks import finite, one_of
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
    """The result of one run, in seconds: everything up to here counts whole nanoseconds.

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

    def pct_of(self, base: Metrics) -> tuple[float, float]:
        """Time and energy against ``base``, in per cent more; NaN for an energy that is not known, and
        against one of 0."""
        time_pct = 100 * (self.time_s / base.time_s - 1)
        if self.energy_j is None or not base.energy_j:
            return time_pct, nan
        return time_pct, 100 * (self.energy_j / base.energy_j - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What to minimize, under at most one budget (absolute, in the units of the name; None: none).

    Raises InputError for two budgets, and for one that is not finite and at least 0.
    """

    minimize: Minimize = "energy"
    max_time_s: float | None = None
    max_energy_j: float | None = None

    def __post_init__(self) -> None:
        one_of("Objective: minimize", self.minimize, Minimize)
        for name in ("max_time_s", "max_energy_j"):
            budget = getattr(self, name)
            if budget == inf:
                raise InputError(f"Objective: {name} is infinite; None means no budget")
            if budget is not None:
                finite(f"Objective: {name}", budget)
        if self.max_time_s is not None and self.max_energy_j is not None:
            raise InputError("Objective: give a time budget or an energy budget, not both")

    @property
    def unit(self) -> str:
        """Of the number to minimize."""
        return {"energy": "J", "time": "s", "edp": "J s", "ed2p": "J s^2"}[self.minimize]

    def value(self, time_s: float, energy_j: float) -> float:
        """The number to minimize, in J, s, J s or J s^2."""
        if self.minimize == "energy":
            return energy_j
        if self.minimize == "time":
            return time_s
        return energy_j * time_s if self.minimize == "edp" else energy_j * time_s**2

    def value_of(self, metrics: Metrics | None) -> float:
        """The number to minimize; infinite where the energy is unknown or the budget is broken."""
        if metrics is None or metrics.energy_j is None or not self.allows(metrics.time_s, metrics.energy_j):
            return inf
        return self.value(metrics.time_s, metrics.energy_j)

    def allows(self, time_s: float, energy_j: float) -> bool:
        """Is the budget kept? Compared exactly: callers state their own rounding."""
        return (self.max_time_s is None or time_s <= self.max_time_s) and (
            self.max_energy_j is None or energy_j <= self.max_energy_j
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """Plain values. ``evaluate`` replays a schedule and is the judge of every answer.

    ``start``: row of the clocks in force before the first operation (one-shot boundary only;
    under ``periodic`` the start is free and the way back is charged). Raises InputError for an empty chain
    and for rows that the cost table does not have.
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
        one_of("Problem: boundary", self.boundary, Boundary)
        one_of("Problem: granularity", self.granularity, Granularity)
        one_of("Problem: aggregation", self.aggregation, Aggregation)
        if not len(self.chain):
            raise InputError("Problem: the chain is empty: there is nothing to choose clocks for")
        if self.switching.n_clocks != self.costs.n_clocks:
            raise InputError(
                f"Problem: switching covers {self.switching.n_clocks} clocks, costs {self.costs.n_clocks}"
            )
        if int(self.chain.kind.max()) >= self.costs.n_kinds:
            raise InputError("Problem: the chain names a kernel kind that the cost table lacks")
        if int(self.chain.kind.min()) < 0:
            raise InputError(
                "Problem: a kernel kind of the chain is negative; rows of the cost table are right"
            )
        if self.start is not None and not 0 <= self.start < self.costs.n_clocks:
            raise InputError(
                f"Problem: start is {self.start}; a row of the costs, 0..{self.costs.n_clocks - 1}, is right"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """An optimizer's answer.

    ``status``: ``optimal``, the lower bound is met; ``feasible``, the budget is kept and a gap to the bound
    is open, or there is no bound; ``not exact``, times do not add over the chain (``message`` says why), so
    that the bound leaves something out; ``infeasible``, no schedule within the budget was found;
    ``not applicable``, the question makes no sense here (say, passes of a recording without ranges).
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

    def __post_init__(self) -> None:
        one_of("Solution: status", self.status, Status)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A schedule that a search wants evaluated. ``number`` identifies it; no search gives one twice."""

    number: int
    schedule: Schedule
