"""The replay of one plain stream as a compiled loop: many schedules at once, the same answers.

Times, counts and flags are those of the replay exactly, energy up to the order of summation; a property test
holds it to that. Outside its domain it refuses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kdvfs_sim.core.checks import one_of
from kdvfs_sim.core.clocks import AUTO_CLOCKS, Clocks
from kdvfs_sim.core.errors import InputError, NotApplicableError, ScheduleError
from kdvfs_sim.core.problem import Metrics
from kdvfs_sim.core.processes import usable_cores
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.core.switching import Boundary, SwitchDraws, SwitchProtocol, SwitchTable
from kdvfs_sim.replay.fast_arrays import (
    DONE,
    OUT_OF_ORDER,
    Bools,
    Costs,
    Floats,
    Int64s,
    Requests,
    Results,
    Rules,
    compile_program,
    floats,
    ints,
)
from kdvfs_sim.replay.fast_loop import evaluate_range
from kdvfs_sim.replay.plan import Request, plan_requests
from kdvfs_sim.replay.simulate import MAX_ROUNDS
from kdvfs_sim.replay.states import STEADY, States

if TYPE_CHECKING:
    from kdvfs_sim.core.costs import CostTable
    from kdvfs_sim.replay.program import Program

PARALLEL_FROM_OPS: Final = 20_000  # operations; less work than that is not worth a second thread


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestArrays:
    """Schedules as arrays: the requests of schedule i are ``first[i]`` up to ``first[i + 1]``.

    ``first`` (n_schedules + 1,) starts at 0; ``op``, ``offset_ns``, ``row`` (n_requests,): anchor operation
    of the program, offset from its start, row of the cost table asked for. ``draws`` (n_requests,): the luck
    of each; none without.
    """

    first: Int64s
    op: Int64s
    offset_ns: Int64s
    row: Int64s
    draws: SwitchDraws | None = None

    def __len__(self) -> int:
        return int(self.first.size) - 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchMetrics:
    """What each of a batch of schedules gives, (n_schedules,).

    ``time_ns`` is -1 and ``energy_j`` NaN where there is no answer: the schedule leads to clocks at which a
    duration is not known, or drains for its requests in another order than their anchors run.
    ``energy_j`` is also NaN where some power is not known. ``switching_ns``: sum over the switches.
    ``settled``, ``dropped``: not flagged ``periodic_not_settled``; flagged ``requests_dropped``.
    """

    time_ns: Int64s
    energy_j: Floats
    n_switches: Int64s
    switching_ns: Int64s
    settled: Bools
    dropped: Bools


class FastEvaluator:
    """Evaluates schedules of one program under one protocol: an ``Evaluator`` (core.protocols).

    Applies to one device with one stream of operations that follow one another, a serial device queue and
    the steady governor; the host is included. Raises NotApplicableError elsewhere, and InputError for
    costs that do not fit. ``start`` as in ``replay``.
    """

    def __init__(
        self,
        program: Program,
        *,
        costs: CostTable,
        switching: SwitchTable | None = None,
        protocol: SwitchProtocol,
        boundary: Boundary = "periodic",
        start: Clocks | None = None,
    ) -> None:
        one_of("boundary", boundary, Boundary)
        _check_applies(program, protocol)
        self._program = program
        self._costs = costs
        self._switching = switching
        self._protocol = protocol
        self._states = States(costs, program.kinds, program.recorded_clocks)
        if switching is not None and switching.n_clocks != costs.n_clocks:
            raise InputError(
                f"the SwitchTable covers {switching.n_clocks} clocks, the costs {costs.n_clocks}"
            )
        self._ops, self._actions = compile_program(program, protocol)
        table = SwitchTable.zero(costs.n_clocks) if switching is None else switching
        kinds = np.arange(costs.n_kinds)[:, None]
        self._tables = Costs(
            ratio=floats(costs.ratio),
            busy_w=floats(costs.power_w[kinds, costs.effective]),
            stalled_w=floats(costs.idle_power_w[costs.effective]),
            idle_w=floats(costs.idle_power_w),
            host_call_ns=ints(table.host_call_ns),
            switching_ns=ints(table.switching_ns),
            stall_ns=ints(table.stall_ns),
            extra_energy_j=floats(table.extra_energy_j),
        )
        self._rules = Rules(
            charged=protocol.charged,
            drains=protocol.drains,
            blocks_thread=protocol.charged and protocol.issuer == "launch_thread",
            trigger_ns=0 if protocol.drains or protocol.anticipates else protocol.trigger_ns,
            relaunch_ns=protocol.relaunch_ns,
            periodic=boundary == "periodic",
            start=costs.index(AUTO_CLOCKS if start is None else start),
            max_rounds=MAX_ROUNDS,
            n_threads=len(program.threads),
        )

    # -- one schedule ------------------------------------------------------------------------------

    def evaluate(self, schedule: Schedule, draws: SwitchDraws | None = None) -> Metrics:
        """What ``replay`` would measure. Raises what it would raise: ScheduleError, UnsupportedClocksError,
        InputError for a duration met that is not known."""
        results = self._run(_requests([self._plan(schedule, draws)]), n_threads=1)
        where = int(results.where[0])
        if results.status[0] == OUT_OF_ORDER:
            raise ScheduleError(
                f"schedule request {where}",
                "what it has to wait for waits for another request; order requests as their anchors run",
            )
        if results.status[0] != DONE:
            kind, row = divmod(where, self._costs.n_clocks)
            self._states.mode(row, row, STEADY, False)[(kind,)]  # raises, and says which it is
        energy_j = float(results.energy_j[0])
        unknown = np.isnan(energy_j)
        flags = list(self._program.flags)
        if not results.settled[0]:
            flags.append("periodic_not_settled")
        if results.dropped[0]:
            flags.append("requests_dropped")
        return Metrics(
            time_s=int(results.time_ns[0]) / 1e9,
            energy_j=None if unknown else energy_j,
            n_switches=int(results.n_switches[0]),
            switching_s=int(results.switching_ns[0]) * 1e-9,
            energy_reason=self._unknown_power(where) if unknown else "",
            flags=tuple(flags),
        )

    def _plan(self, schedule: Schedule, draws: SwitchDraws | None = None) -> tuple[Request, ...]:
        plan = plan_requests(self._program, schedule, self._costs, self._switching, self._protocol, draws)
        return plan.requests[0]

    def _unknown_power(self, where: int) -> str:
        costs = self._costs
        if where < 0:
            return f"no power is known for the idle device at {costs.clocks[-1 - where]}"
        kind, row = divmod(where, costs.n_clocks)
        clocks = costs.clocks[costs.effective[kind, row]]
        return f"no power is known for kernel kind {self._program.kinds[kind].name!r} at {clocks}"

    # -- many --------------------------------------------------------------------------------------

    def arrays(self, schedules: Iterable[Schedule]) -> RequestArrays:
        """Schedules as arrays. Raises as ``evaluate`` does for a schedule that does not fit."""
        requests = _requests([self._plan(schedule) for schedule in schedules])
        return RequestArrays(
            first=requests.first, op=requests.op, offset_ns=requests.offset_ns, row=requests.row
        )

    def evaluate_many(self, requests: RequestArrays, *, n_threads: int | None = None) -> BatchMetrics:
        """Evaluate a batch, on ``n_threads`` processors or all there are.

        Raises ScheduleError for a request that does not fit the program, the costs or the protocol.
        """
        self._check(requests)
        draws = requests.draws or _no_luck(requests.op.size)
        results = self._run(
            Requests(
                first=ints(requests.first),
                op=ints(requests.op),
                offset_ns=ints(requests.offset_ns),
                row=ints(requests.row),
                factor=floats(draws.factor),
                late_ns=ints(draws.late_ns),
            ),
            n_threads,
        )
        return BatchMetrics(
            time_ns=results.time_ns,
            energy_j=results.energy_j,
            n_switches=results.n_switches,
            switching_ns=results.switching_ns,
            settled=results.settled,
            dropped=results.dropped,
        )

    def _check(self, requests: RequestArrays) -> None:
        first, op, row, offset_ns = requests.first, requests.op, requests.row, requests.offset_ns
        n_ops, n_clocks, requestable = self._ops.kind.size, self._costs.n_clocks, self._costs.requestable
        if not (
            first.size
            and first[0] == 0
            and first[-1] == op.size == row.size == offset_ns.size
            and (requests.draws is None or requests.draws.factor.size == op.size)
            and (np.diff(first) >= 0).all()
        ):
            raise ScheduleError("requests", "first has to rise from 0 to the number of requests")
        at_boundary = self._protocol.drains or not self._protocol.charged
        most_ns = 0 if at_boundary else np.iinfo(np.int64).max
        for problem, wrong in (
            (f"an operation outside 0..{n_ops - 1}", (op < 0) | (op >= n_ops)),
            (f"a row outside 0..{n_clocks - 1}", (row < 0) | (row >= n_clocks)),
            (
                f"an offset that {self._protocol.name!r} does not allow",
                (offset_ns < 0) | (offset_ns > most_ns),
            ),
            ("clocks that are only ever effective", ~requestable[np.clip(row, 0, n_clocks - 1)]),
        ):
            if wrong.any():
                number = int(np.argmax(wrong))
                schedule = int(np.searchsorted(first, number, side="right")) - 1
                raise ScheduleError(f"schedule {schedule}, request {number - first[schedule]}", problem)
        if op.size and self._protocol.charged and self._switching is None:
            raise InputError(f"protocol {self._protocol.name!r} charges switches and needs a SwitchTable")

    def _run(self, requests: Requests, n_threads: int | None) -> Results:
        n = requests.first.size - 1
        results = Results(
            time_ns=np.full(n, -1, dtype=np.int64),
            energy_j=np.full(n, np.nan),
            n_switches=np.zeros(n, dtype=np.int64),
            switching_ns=np.zeros(n, dtype=np.int64),
            settled=np.zeros(n, dtype=np.bool_),
            dropped=np.zeros(n, dtype=np.bool_),
            status=np.full(n, DONE, dtype=np.int64),
            where=np.zeros(n, dtype=np.int64),
        )
        if n_threads is None:
            n_threads = usable_cores()
        n_parts = min(max(1, n_threads), n, 1 + n * self._ops.kind.size // PARALLEL_FROM_OPS)
        edges = [n * i // max(1, n_parts) for i in range(n_parts + 1)]

        def run(part: int) -> None:
            evaluate_range(
                self._ops,
                self._actions,
                self._tables,
                self._rules,
                requests,
                results,
                edges[part],
                edges[part + 1],
            )

        if n_parts == 1:
            run(0)
        elif n_parts > 1:
            with ThreadPoolExecutor(n_parts) as pool:
                list(pool.map(run, range(n_parts)))
        return results


def _requests(plans: Sequence[Sequence[Request]]) -> Requests:
    requests = [request for plan in plans for request in plan]
    return Requests(
        first=np.cumsum([0, *(len(plan) for plan in plans)], dtype=np.int64),
        op=ints([request.op for request in requests]),
        offset_ns=ints([request.offset_ns for request in requests]),
        row=ints([request.row for request in requests]),
        factor=floats([request.factor for request in requests]),
        late_ns=ints([request.late_ns for request in requests]),
    )


def _no_luck(n_requests: int) -> SwitchDraws:
    return SwitchDraws(factor=np.ones(n_requests), late_ns=np.zeros(n_requests, dtype=np.int64))


def _check_applies(program: Program, protocol: SwitchProtocol) -> None:
    reasons = {
        f"the program has {len(program.devices)} devices": len(program.devices) > 1,
        f"the program has {len(program.streams)} streams": len(program.streams) > 1,
        "operations of the stream overlap": bool(
            (program.overlap_ns >= 0).any() or (program.after != program.previous).any()
        ),
        "the program has event waits": program.wait_op.size > 0,
        f"the device queue is {protocol.device_queue!r}, not 'serial'": protocol.charged
        and protocol.device_queue != "serial",
        f"protocol {protocol.name!r} drains the device and charges nothing": protocol.drains
        and not protocol.charged,
    }
    for reason, applies in reasons.items():
        if applies:
            raise NotApplicableError(f"fast evaluator: {reason}; use the replay")
