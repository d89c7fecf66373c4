"""A schedule checked against its program: requests as operations and rows, device by device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kdvfs_sim.core.errors import InputError, ScheduleError

if TYPE_CHECKING:
    from kdvfs_sim.core.costs import CostTable
    from kdvfs_sim.core.schedule import Schedule
    from kdvfs_sim.core.switching import SwitchDraws, SwitchProtocol, SwitchTable
    from kdvfs_sim.replay.program import Program


class Request(NamedTuple):
    """One clock request: the anchor operation, the offset from its start, the row asked for, its number in
    the schedule, and what chance makes of its switching time (see SwitchDraws)."""

    op: int
    offset_ns: int
    row: int
    number: int
    factor: float = 1.0
    late_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequests:
    """``requests[d]``: those of device ``Program.devices[d]``, in the order in which they are issued."""

    requests: tuple[tuple[Request, ...], ...]

    def real(self, device: int, requested: int) -> list[Request]:
        """Without the no-ops: requests for the clocks that are requested already."""
        kept = []
        for request in self.requests[device]:
            if request.row != requested:
                kept.append(request)
                requested = request.row
        return kept


def plan_requests(
    program: Program,
    schedule: Schedule | None,
    costs: CostTable | None,
    switching: SwitchTable | None,
    protocol: SwitchProtocol,
    draws: SwitchDraws | None = None,
) -> PlannedRequests:
    """Check that ``schedule`` fits. Raises ScheduleError for an anchor that does not exist or an offset
    where none is allowed, UnsupportedClocksError, InputError for costs or draws that are missing or
    misshapen."""
    requests: list[list[Request]] = [[] for _ in program.devices]
    if schedule is None or not schedule.requests:
        return PlannedRequests(requests=tuple(tuple(r) for r in requests))
    if costs is None:
        raise InputError("a schedule needs a cost table: without one only recorded clocks can be replayed")
    if protocol.charged and switching is None:
        raise InputError(f"protocol {protocol.name!r} charges switches and needs a SwitchTable")
    if switching is not None and switching.n_clocks != costs.n_clocks:
        raise InputError(f"the SwitchTable covers {switching.n_clocks} clocks, the costs {costs.n_clocks}")
    if draws is not None and len(draws.factor) != len(schedule.requests):
        raise InputError(f"draws for {len(draws.factor)} requests; the schedule has {len(schedule.requests)}")
    latest: dict[int, int] = {}
    at_boundary = protocol.drains or not protocol.charged
    for number, request in enumerate(schedule.requests):
        where = f"schedule request {number}"
        try:
            index = program.stream_index(request.device, request.stream)
        except InputError as error:
            raise ScheduleError(where, str(error)) from None
        ops = program.ops_of_stream[index]
        device, stream = program.streams[index]
        if request.launch >= len(ops):
            raise ScheduleError(
                where,
                f"launch {request.launch} does not exist; stream {stream} has launches 0..{len(ops) - 1}",
            )
        if request.offset_ns and at_boundary:
            raise ScheduleError(
                where,
                f"offset_ns is {request.offset_ns}; "
                f"under {protocol.name!r} changes apply at the boundary, offset 0",
            )
        if protocol.drains and request.launch < latest.get(index, 0):
            raise ScheduleError(
                where,
                f"launch {request.launch} is drained for after a later launch of stream {stream}; "
                "order requests as their anchors run",
            )
        latest[index] = request.launch
        row = costs.index(request.clocks)
        if not costs.requestable[row]:
            raise ScheduleError(
                where, f"clocks {request.clocks} are only ever effective; a schedule cannot ask for them"
            )
        luck = () if draws is None else (float(draws.factor[number]), int(draws.late_ns[number]))
        requests[program.devices.index(device)].append(
            Request(int(ops[request.launch]), request.offset_ns, row, number, *luck)
        )
    return PlannedRequests(requests=tuple(tuple(r) for r in requests))
