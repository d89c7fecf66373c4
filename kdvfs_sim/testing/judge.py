"""The judge of generated problems, and what can be said about a problem by trying everything."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.core.errors import NotApplicableError
from kdvfs_sim.core.problem import Metrics, Problem
from kdvfs_sim.core.schedule import ClockRequest, Schedule
from kdvfs_sim.core.switching import Boundary, SwitchProtocol, SwitchTable
from kdvfs_sim.replay.fast import FastEvaluator
from kdvfs_sim.replay.program import Program
from kdvfs_sim.replay.simulate import ReplayResult, replay
from kdvfs_sim.trace.table import Trace


@dataclass(frozen=True)
class Judge:
    """``Problem.evaluate`` of a generated problem: the fast evaluator where it applies, else the replay."""

    trace: Trace
    costs: CostTable
    switching: SwitchTable
    protocol: SwitchProtocol
    boundary: Boundary
    start: Clocks

    @cached_property
    def program(self) -> Program:
        return Program.from_trace(self.trace)

    @cached_property
    def fast(self) -> FastEvaluator | None:
        try:
            return FastEvaluator(
                self.program,
                costs=self.costs,
                switching=self.switching,
                protocol=self.protocol,
                boundary=self.boundary,
                start=self.start,
            )
        except NotApplicableError:
            return None

    def __call__(self, schedule: Schedule) -> Metrics:
        return self.replay(schedule).metrics if self.fast is None else self.fast.evaluate(schedule)

    def replay(self, schedule: Schedule) -> ReplayResult:
        """The SimPy replay, whatever the judge itself uses."""
        return replay(
            self.program,
            costs=self.costs,
            schedule=schedule,
            protocol=self.protocol,
            switching=self.switching,
            boundary=self.boundary,
            start=self.start,
        )


def replayed(problem: Problem, schedule: Schedule) -> Metrics:
    """What the SimPy replay measures. Raises what the replay raises."""
    judge = problem.evaluate
    assert isinstance(judge, Judge), "only generated problems know their trace"
    return judge.replay(schedule).metrics


def plans(problem: Problem) -> Iterator[Schedule]:
    """Every plan of a problem's decision space that is beyond doubt, lazily; for tiny problems.

    One clock pair per launch (per kind under that granularity). Under ``follow`` a request is made at the
    boundary and under ``lookahead`` it lands on one; plans in which one is decided before the one before is
    done with are left out, and so are stalls under ``lookahead`` and its changes across the iteration's edge.
    """
    rows = np.flatnonzero(problem.costs.requestable).tolist()
    chain = problem.chain
    if problem.granularity == "kind":
        kinds, group = np.unique(chain.kind, return_inverse=True)
        choices = (np.array(choice)[group].tolist() for choice in itertools.product(rows, repeat=len(kinds)))
    else:
        choices = (list(choice) for choice in itertools.product(rows, repeat=len(chain)))
    for choice in choices:
        schedule = _schedule(problem, choice)
        if schedule is not None:
            yield schedule


def _schedule(problem: Problem, rows: list[int]) -> Schedule | None:
    protocol, chain = problem.protocol, problem.chain
    offsets = _lead(problem, rows) if protocol.anticipates else _in_time(problem, rows)
    if offsets is None:
        return None
    requests = tuple(
        ClockRequest(
            clocks=problem.costs.clocks[row],
            launch=launch,
            offset_ns=offset,
            stream=chain.stream,
            device=chain.device,
        )
        for launch, offset, row in offsets
    )
    return Schedule(requests=requests, protocol=protocol.name, boundary=problem.boundary)


Requests = list[tuple[int, int, int]]  # launch, offset in ns, row


def _changes(problem: Problem, rows: list[int]) -> list[tuple[int, int, int]]:
    """Launch before which the clocks change, old and new row; across the edge as the first of them."""
    before = problem.start if problem.boundary == "one-shot" else rows[-1]
    pairs = zip([before, *rows], rows, strict=False)
    return [(i, old, new) for i, (old, new) in enumerate(pairs) if old is not None and old != new]


def _in_time(problem: Problem, rows: list[int]) -> Requests | None:
    requests = [(launch, 0, new) for launch, _, new in _changes(problem, rows)]
    if problem.boundary == "periodic" and not requests:
        requests = [(0, 0, rows[0])]
    if not problem.protocol.charged or problem.protocol.drains:
        return requests
    # never slower than this between two boundaries, whatever the clocks
    chain, ratio = problem.chain, problem.costs.ratio
    least = np.rint(chain.duration_ns * ratio.min(axis=1)[chain.kind]).astype(np.int64)
    start = np.cumsum([0, *(least[:-1] + chain.min_lag_ns[1:])])
    changes = _changes(problem, rows)
    total = int(start[-1] + least[-1])
    following = [int(start[launch]) for launch, _, _ in changes[1:]]
    if changes and problem.boundary == "periodic":
        following.append(total + int(start[changes[0][0]]))
    for (launch, old, new), then in zip(changes, following, strict=False):
        # decided at the boundary, done with when it has landed and its call returned
        busy = max(problem.switching.host_call_ns[old, new], problem.switching.switching_ns[old, new])
        if then < start[launch] + problem.protocol.trigger_ns + busy:
            return None
    return requests


def _lead(problem: Problem, rows: list[int]) -> Requests | None:
    chain, switching = problem.chain, problem.switching
    changes = _changes(problem, rows)
    if not changes:
        return [(0, 0, rows[0])] if problem.boundary == "periodic" else []
    if changes[0][0] == 0 or switching.stall_ns.any():
        return None
    duration = np.rint(chain.duration_ns * problem.costs.ratio[chain.kind, rows]).astype(np.int64)
    start = np.cumsum([0, *(duration[:-1] + chain.lag_ns[1:])]).tolist()
    requests, free_ns = [], 0
    for launch, old, new in changes:
        at = start[launch] - int(switching.switching_ns[old, new])
        # decided at the start of a launch with nothing in flight, and no call running
        if not any(free_ns <= then <= at for then in start):
            return None
        free_ns = at + int(max(switching.switching_ns[old, new], switching.host_call_ns[old, new]))
        anchor = max(i for i in range(len(chain)) if start[i] <= at)
        requests.append((anchor, at - start[anchor], new))
    return requests


def best_by_trying_all(problem: Problem) -> tuple[float, Schedule | None]:
    """Least value of the objective over ``plans`` within the budget, as judged; infinity if none keeps it."""
    best: tuple[float, Schedule | None] = (float("inf"), None)
    for schedule, metrics in judged(problem):
        if metrics.energy_j is None or not problem.objective.allows(metrics.time_s, metrics.energy_j):
            continue
        value = problem.objective.value(metrics.time_s, metrics.energy_j)
        if value < best[0]:
            best = (value, schedule)
    return best


def judged(problem: Problem) -> Iterator[tuple[Schedule, Metrics]]:
    """Every plan with what the judge says of it, in one batch where the fast evaluator applies."""
    schedules = list(plans(problem))
    judge = problem.evaluate
    if not isinstance(judge, Judge) or judge.fast is None or not schedules:
        yield from ((schedule, problem.evaluate(schedule)) for schedule in schedules)
        return
    batch = judge.fast.evaluate_many(judge.fast.arrays(schedules), n_threads=1)
    for i, schedule in enumerate(schedules):
        energy_j = float(batch.energy_j[i])
        yield (
            schedule,
            Metrics(
                time_s=int(batch.time_ns[i]) / 1e9,
                energy_j=None if np.isnan(energy_j) else energy_j,
                n_switches=int(batch.n_switches[i]),
            ),
        )
