"""From the clocks wanted at every launch to requests that a replay can issue.

A choice names, for every launch, the clocks wanted from its start on: in force under ``drain``
and ``lookahead``, asked for under ``follow``. Walking along the chain, a change is decided at the
first boundary at which the last one has landed and its call has returned. What cannot be had in
time is had late, or not at all if by then something else is wanted. That is a rule, too, for what
becomes of any choice, such as one clock pair a kernel kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.core.compiled import borrowing
from kdvfs_sim.core.schedule import ClockRequest, Schedule
from kdvfs_sim.core.switching import Boundary
from kdvfs_sim.optimize.additive import Floats, Ints
from kdvfs_sim.optimize.changes import AT_ONCE, Model, change, first_at_or_after

MAX_LAPS = 8


@dataclass(frozen=True, kw_only=True)
class Placed:
    """What a choice comes to: its requests (launch, offset in ns, clock row), time and energy.

    ``settled`` is False if a periodic choice did not come back to where it started.
    """

    requests: npt.NDArray[np.int64]
    time_ns: int
    energy_j: float
    settled: bool = True

    def schedule(
        self, clocks: tuple[Clocks, ...], *, protocol: str, boundary: Boundary, stream: int, device: int
    ) -> Schedule:
        requests = tuple(
            ClockRequest(
                clocks=clocks[row], launch=int(launch), offset_ns=int(offset), stream=stream, device=device
            )
            for launch, offset, row in self.requests
        )
        return Schedule(requests=requests, protocol=protocol, boundary=boundary)


class Course(NamedTuple):
    """The states that a walk passes, for every boundary from where it begins: the clocks in force, -1
    while a change is outstanding; and what the walk has come to until there."""

    clock: Ints
    time_ns: Ints
    energy_j: Floats


def place(model: Model, choice: Ints, begin: tuple[int, int]) -> Placed | None:
    """Walk along a choice; None if it would run a launch under clocks that it does not allow.

    ``begin``: launch and row of the clocks in force there, with no change outstanding. One-shot it
    is the beginning; periodic, any state from which the walk is to find its way into a round.
    """
    n = len(choice)
    requests = np.empty((2 * n + 1, 3), dtype=np.int64)
    if not model.rules.periodic:
        _, _, time_ns, energy_j, used = walk(model, choice, *begin, n, requests)
        kept = requests[:used] if used else np.array([[0, 0, begin[1]]])
        return Placed(requests=kept.copy(), time_ns=time_ns, energy_j=energy_j) if time_ns >= 0 else None
    state, settled = begin, False
    for _ in range(MAX_LAPS):
        arrival, clock, time_ns, energy_j, used = walk(model, choice, *state, n, requests)
        if time_ns < 0:
            return None
        settled = state == (arrival - n, clock)
        state = (arrival - n, clock)
        if settled:
            break
    kept = requests[:used] if used else np.array([[0, 0, state[1]]])
    kept[:, 0] %= n
    kept = kept[np.lexsort((kept[:, 1], kept[:, 0]))]
    return Placed(requests=kept, time_ns=time_ns, energy_j=energy_j, settled=settled)


@borrowing
def walk(
    model: Model,
    choice: Ints,
    i: int,
    c: int,
    stop: int,
    requests: npt.NDArray[np.int64],
    course: Course | None = None,
) -> tuple[int, int, int, float, int]:
    """From a state to boundary ``stop`` or beyond: (arrival, clock, ns, J, number of requests).

    Time -1 if a launch would run under clocks that it does not allow. ``course``, filled if given: room for
    the boundaries from ``i`` to ``stop`` and all that the last change may lead beyond it.
    """
    n, begin = len(choice), i
    runs, rules = model.runs, model.rules
    total_ns, total_j, used = 0, 0.0, 0
    while i < stop:
        starts = runs.start_ns[c]
        limit = i + n if rules.periodic else n
        wanted = _next_wanted(model, choice, i, c)
        arrival, time_ns, energy_j = -1, 0, 0.0
        b, anchor, offset_ns, landing, old = c, i, 0, AT_ONCE, c
        if wanted < limit + rules.periodic and (rules.anticipates or wanted == i):
            b = choice[wanted % n]
            issued_ns = starts[wanted] - rules.work_ns[c, b]
            if rules.anticipates and issued_ns >= starts[i]:
                # not beyond: launches that take no time start at the same one, and the end of the chain too
                anchor = min(first_at_or_after(starts, i, issued_ns + 1) - 1, wanted)
                offset_ns = issued_ns - starts[anchor]
                landing = wanted
            elif rules.anticipates:  # at once; if something else is wanted where it lands, that
                lands_in = first_at_or_after(starts, i, starts[i] + rules.work_ns[c, b] + 1) - 1
                b = choice[lands_in] if lands_in < n else c
                wanted = i + 1
            if b != c:
                arrival, time_ns, energy_j = change(model, i, c, b, landing)
        if 0 <= arrival <= limit:
            requests[used] = (anchor, offset_ns, b)
            used += 1
            c = b
        else:
            anchor = arrival = min(max(wanted, i + 1), stop)
            if runs.barred[c, arrival] != runs.barred[c, i]:
                return i, c, -1, 0.0, used
            time_ns = starts[arrival] - starts[i]
            energy_j = runs.energy_j[c, arrival] - runs.energy_j[c, i]
        if course is not None:
            for k in range(i, arrival):
                course.clock[k - begin] = old if k <= anchor else -1
                course.time_ns[k - begin] = total_ns + starts[k] - starts[i]
                course.energy_j[k - begin] = total_j + runs.energy_j[old, k] - runs.energy_j[old, i]
        total_ns += time_ns
        total_j += energy_j
        i = arrival
    if course is not None:
        course.clock[i - begin], course.time_ns[i - begin], course.energy_j[i - begin] = c, total_ns, total_j
    return i, c, total_ns, total_j, used


@borrowing
def _next_wanted(model: Model, choice: Ints, i: int, c: int) -> int:
    """The first boundary from ``i`` on at which other clocks are wanted and may be asked for, or,
    under lookahead, landed on."""
    rules, starts = model.rules, model.runs.start_ns[c]
    n = len(choice)
    stop = i + n + 1 if rules.periodic else n
    for m in range(i, stop):
        b = choice[m % n]
        if b == c or not rules.may_change[m % n]:
            continue
        in_time = not rules.anticipates or starts[m] - starts[i] >= rules.work_ns[c, b]
        if in_time or (i == 0 and rules.at_once):
            return m
    return stop
