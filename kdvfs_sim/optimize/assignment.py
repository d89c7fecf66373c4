"""One row of the cost table for every launch, as a schedule and back."""

from __future__ import annotations

import numpy as np

from kdvfs_sim.core.errors import ScheduleError
from kdvfs_sim.core.problem import Problem
from kdvfs_sim.core.schedule import ClockRequest, Schedule
from kdvfs_sim.optimize.additive import Ints


def as_schedule(problem: Problem, rows: Ints) -> Schedule:
    """``rows`` (n_launches,): a request where the row changes, or ahead of it if the protocol anticipates."""
    chain, wanted = problem.chain, rows.tolist()
    before = problem.start if problem.boundary == "one-shot" else None
    changes = [i for i, row in enumerate(wanted) if row != (wanted[i - 1] if i else before)]
    lead = _lead(problem, wanted, changes) if problem.protocol.anticipates else [(i, 0) for i in changes]
    requests = tuple(
        ClockRequest(
            clocks=problem.costs.clocks[wanted[at]],
            launch=launch,
            offset_ns=offset,
            stream=chain.stream,
            device=chain.device,
        )
        for at, (launch, offset) in zip(changes, lead, strict=True)
    )
    return Schedule(requests=requests, protocol=problem.protocol.name, boundary=problem.boundary)


def as_rows(problem: Problem, schedule: Schedule) -> Ints:
    """The row asked for when each launch starts, (n_launches,).

    Switching times are left out: where a protocol anticipates, a row may begin some launches early. Raises
    ScheduleError for a request that is anchored elsewhere than on the problem's stream.
    """
    costs, n = problem.costs, len(problem.chain)
    requests = schedule.requests
    if problem.boundary == "one-shot" or not requests:
        row = costs.auto if problem.start is None else problem.start
    else:
        row = costs.index(requests[-1].clocks)
    rows = np.full(n, row, dtype=np.int64)
    chain = problem.chain
    for number, request in enumerate(requests):
        here = request.device in (None, chain.device) and request.stream in (None, chain.stream)
        if not here or request.launch >= n:
            raise ScheduleError(
                f"schedule request {number}",
                f"launch {request.launch} of device/stream {request.device}/{request.stream} is none of the "
                f"problem's: {chain.device}/{chain.stream}, launches 0..{n - 1}",
            )
        rows[request.launch + (request.offset_ns > 0) :] = costs.index(request.clocks)
    return rows


def _lead(problem: Problem, wanted: list[int], changes: list[int]) -> list[tuple[int, int]]:
    """Anchor and offset of each request, early enough to land on its boundary if times were to add."""
    chain, costs, switching = problem.chain, problem.costs, problem.switching.switching_ns
    duration = np.rint(chain.duration_ns * costs.ratio[chain.kind, wanted]).astype(np.int64)
    start = np.concatenate([[0], np.cumsum(duration[:-1] + chain.lag_ns[1:])])
    found, earliest = [], 0
    for at in changes:
        latency = int(switching[wanted[at - 1], wanted[at]]) if at else 0
        when = max(int(start[at]) - latency, earliest)
        launch = int(np.searchsorted(start, when, side="right")) - 1
        found.append((launch, when - int(start[launch])))
        earliest = when
    return found
