"""Extension points that need only core nouns. A plug-in imports nothing from here and inherits
nothing; the static check and the conformance checks of ``kdvfs_sim.testing`` carry the weight.
"""

from __future__ import annotations

from typing import Protocol

from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.core.problem import Candidate, Metrics, Problem, Solution
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.core.switching import SwitchCost


class LatencyModel(Protocol):
    """How long a kernel kind takes at effective clocks.

    Returns nanoseconds as a positive float; for every kind and every numeric pair of the GPU's
    clock table. Raises UnknownKernelError for a kind it cannot answer for. Pure and repeatable;
    may be called from several processes. Does not promise monotonicity in either clock. To optimize with
    one, put its answers into a CostTable. Optional: ``kinds`` (KernelKinds it answers for) and
    ``clock_table`` (a ClockTable); the checks ask for nothing else then.
    """

    def duration_ns(self, kind: KernelKind, clocks: Clocks, /) -> float: ...


class PowerModel(Protocol):
    """Device power at effective clocks.

    Returns watts, finite and at least 0: ``busy_power_w`` with one kernel running alone,
    ``idle_power_w`` with none. Raises UnknownKernelError for a kind it cannot answer for. Pure
    and repeatable; may be called from several processes. Does not apply the power cap. Use and optional
    attributes as of a LatencyModel.
    """

    def busy_power_w(self, kind: KernelKind, clocks: Clocks, /) -> float: ...

    def idle_power_w(self, clocks: Clocks, /) -> float: ...


class SwitchingModel(Protocol):
    """What a change between two requests costs.

    Returns a SwitchCost; all zero when ``old == new``. For every pair of requestable clocks, AUTO
    included. Raises nothing inside that domain. Pure and repeatable; may be called from several
    processes. Does not promise symmetry or the triangle inequality. Optional: ``clock_table``, as of a
    LatencyModel; ``assumed``, names of the assumed numbers it leans on, which the SwitchTable carries on.
    """

    def switch(self, old: Clocks, new: Clocks, /) -> SwitchCost: ...


class Evaluator(Protocol):
    """Predicts what a schedule gives.

    Returns Metrics; for every schedule that fits the trace it was built for. Raises ScheduleError
    otherwise, NotApplicableError outside its stated domain. Repeatable; leaves its inputs alone.
    """

    def evaluate(self, schedule: Schedule, /) -> Metrics: ...


class Optimizer(Protocol):
    """Finds a schedule for a problem.

    Returns a Solution whose metrics were recomputed by ``problem.evaluate`` and are never worse
    than the best baseline; infeasible is a status. Same problem and seed, same answer. Leaves the
    problem untouched; may be called from several processes. ``lower_bound``, if given, holds. Optional:
    ``max_time_s`` and ``max_memory_mb``, within which 200 launches at 12 clocks are answered (5 s and 500 MB
    unless it says otherwise).
    """

    def solve(self, problem: Problem, /, *, seed: int) -> Solution: ...


class Search(Protocol):
    """Proposes schedules and learns what they gave: for evaluations that happen elsewhere, or take minutes.

    ``ask`` returns a Candidate with a number of its own, whose schedule fits the problem the search was made
    for, or None when it has nothing more to propose, for good. ``tell`` takes the metrics of a candidate that
    was asked for and not told yet, in any order, None for one that could not be run; it raises InputError for
    any other candidate. Several may be asked for before one is told. Same problem, seed and answers, same
    candidates. One thread at a time. Does not promise that later candidates are better.
    """

    def ask(self) -> Candidate | None: ...

    def tell(self, candidate: Candidate, metrics: Metrics | None, /) -> None: ...
