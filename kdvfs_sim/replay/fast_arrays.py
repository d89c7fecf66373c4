"""What the compiled loop of the fast evaluator is given and gives back, and a program in that form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from kdvfs_sim.core.errors import NotApplicableError

if TYPE_CHECKING:
    from kdvfs_sim.core.switching import SwitchProtocol
    from kdvfs_sim.replay.program import Program

Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

DONE: Final = 0
UNKNOWN_DURATION: Final = 1
OUT_OF_ORDER: Final = 2


class Ops(NamedTuple):
    """(n_ops,): columns of Program; ``lag_ns``: after the end of the operation before it (the first: after
    0); ``launch``: position in Actions (-1: none); ``may_hold``: a draining launch thread can make the
    request before this launch."""

    kind: Int64s
    duration_ns: Int64s
    lag_ns: Int64s
    launch: Int64s
    launch_lag_ns: Int64s
    may_hold: Bools


class Actions(NamedTuple):
    """(n_actions,): columns of Host, of those actions that a launch depends on, each after what it
    depends on itself; an action is known by its position here."""

    thread: Int64s
    is_launch: Bools
    start_ns: Int64s
    length_ns: Int64s
    prev_any: Int64s
    gap_ns: Int64s
    prev_own: Int64s
    awaits: Int64s
    await_lag_ns: Int64s


class Costs(NamedTuple):
    """(n_kinds, n_clocks) by request: ``ratio`` of scaled to recorded duration, ``busy_w``, and ``stalled_w``
    without progress; ``idle_w`` (n_clocks,); the rest (n_clocks, n_clocks) as in SwitchTable."""

    ratio: Floats
    busy_w: Floats
    stalled_w: Floats
    idle_w: Floats
    host_call_ns: Int64s
    switching_ns: Int64s
    stall_ns: Int64s
    extra_energy_j: Floats


class Rules(NamedTuple):
    """A switch protocol and a boundary, as the loop asks for them; ``start`` is a row."""

    charged: bool
    drains: bool
    blocks_thread: bool
    trigger_ns: int
    relaunch_ns: int
    periodic: bool
    start: int
    max_rounds: int
    n_threads: int


class Requests(NamedTuple):
    """Those of schedule i are ``first[i]`` up to ``first[i + 1]``: anchor operation, offset, row, and what
    chance makes of the switching time."""

    first: Int64s
    op: Int64s
    offset_ns: Int64s
    row: Int64s
    factor: Floats
    late_ns: Int64s


class Results(NamedTuple):
    """(n_schedules,). Where ``status`` is not DONE: ``where`` is the number of the request that is out of
    order, or kind * n_clocks + request row of the unknown duration. Where the energy is NaN ``where``
    is that of the first unknown power, and with idle power -1 - request row."""

    time_ns: Int64s
    energy_j: Floats
    n_switches: Int64s
    switching_ns: Int64s
    settled: Bools
    dropped: Bools
    status: Int64s
    where: Int64s


def ints(values: npt.ArrayLike) -> Int64s:
    """As the compiled loop takes them."""
    return np.ascontiguousarray(values, dtype=np.int64)


def floats(values: npt.ArrayLike) -> Floats:
    """As the compiled loop takes them."""
    return np.ascontiguousarray(values, dtype=np.float64)


def compile_program(program: Program, protocol: SwitchProtocol) -> tuple[Ops, Actions]:
    """A program of one stream without overlaps as the loop walks it.

    Raises NotApplicableError where what a request delays, or what an operation waits for, depends on more
    than the order of operations.
    """
    order = _order(program)
    host = program.host
    place = np.full(len(host) + 1, -1, dtype=np.int64)  # the last is the place of none
    place[order] = np.arange(order.size)
    lag_ns = program.after_lag_ns.copy()
    lag_ns[0] = max(0, int(program.not_before_ns[0]))
    launch = program.launch
    first_of_launch = np.ones(program.n_ops, dtype=bool)
    first_of_launch[1:] = launch[1:] > np.maximum.accumulate(launch)[:-1]
    ops = Ops(
        kind=ints(program.kind),
        duration_ns=ints(program.duration_ns),
        lag_ns=ints(lag_ns),
        launch=ints(place[launch]),
        launch_lag_ns=ints(program.launch_lag_ns),
        may_hold=first_of_launch & (launch >= 0),
    )
    actions = Actions(
        thread=ints(host.thread[order]),
        is_launch=np.ascontiguousarray(host.is_launch[order]),
        start_ns=ints(host.start_ns[order]),
        length_ns=ints(host.length_ns[order]),
        prev_any=ints(place[host.prev_any[order]]),
        gap_ns=ints(host.gap_ns[order]),
        prev_own=ints(place[host.prev_own[order]]),
        awaits=ints(host.awaits[order]),
        await_lag_ns=ints(host.await_lag_ns[order]),
    )
    if protocol.charged and protocol.issuer == "launch_thread" and not _threads_are_chains(actions):
        raise NotApplicableError("fast evaluator: calls of one host thread overlap; use the replay")
    return ops, actions


def _order(program: Program) -> Int64s:
    """The host actions that launches depend on, each after what it depends on, in the order of the first
    operations that need them.

    Raises NotApplicableError if an operation depends on the end of a later one.
    """
    host = program.host
    before = np.stack([host.prev_any, host.prev_own], axis=1).tolist()
    awaits = host.awaits.tolist()
    order: list[int] = []
    done = [False] * len(host)
    for op, launch in enumerate(program.launch.tolist()):
        todo = [launch] if launch >= 0 and not done[launch] else []
        while todo:
            missing = [i for i in before[todo[-1]] if i >= 0 and not done[i]]
            if missing:
                todo += missing
                continue
            action = todo.pop()
            if done[action]:
                continue
            for i in before[action]:
                if i >= 0 and awaits[i] >= op:
                    raise NotApplicableError(
                        f"fast evaluator: operation {op} waits for the end of operation {awaits[i]}"
                    )
            done[action] = True
            order.append(action)
    return np.asarray(order, dtype=np.int64)


def _threads_are_chains(actions: Actions) -> bool:
    """Does every action follow the one before it on its thread?"""
    for thread in np.unique(actions.thread):
        own = np.flatnonzero(actions.thread == thread)
        follows = (actions.prev_any[own[1:]] == own[:-1]) | (actions.prev_own[own[1:]] == own[:-1])
        if not follows.all():
            return False
    return True
