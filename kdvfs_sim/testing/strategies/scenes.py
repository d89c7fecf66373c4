"""Schedules, and everything that a replay needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hypothesis import strategies as st

from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.core.schedule import ClockRequest, Schedule
from kdvfs_sim.core.switching import Boundary, SwitchProtocol, SwitchTable
from kdvfs_sim.replay.program import Program
from kdvfs_sim.testing.notation import as_code
from kdvfs_sim.testing.strategies.costs import cost_tables, protocols, switch_tables
from kdvfs_sim.testing.strategies.traces import rather_many, traces
from kdvfs_sim.trace.table import Trace


@st.composite
def schedules(
    draw: st.DrawFn,
    program: Program,
    clocks: Sequence[Clocks],
    protocol: SwitchProtocol,
    *,
    max_requests: int = 4,
) -> Schedule:
    """Requests with anchors in trace order; offsets where the protocol has any."""
    n = rather_many(draw, 0, max_requests) if len(clocks) > 1 else 0
    anchors = sorted(draw(st.lists(st.integers(0, program.n_ops - 1), min_size=n, max_size=n)))
    offsets = st.integers(0, 20) if protocol.charged and not protocol.drains else st.just(0)
    requests: list[ClockRequest] = []
    which = 0
    for op in anchors:
        which = (which + draw(st.integers(0, len(clocks) - 1) | st.just(1))) % len(clocks)  # 0: a no-op
        device, stream = program.streams[program.stream[op]]
        requests.append(
            ClockRequest(
                clocks=clocks[which],
                launch=int(program.position[op]),
                offset_ns=draw(offsets),
                stream=stream,
                device=device,
            )
        )
    return Schedule(requests=tuple(requests), protocol=protocol.name)


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Scene:
    """All that a replay needs; ``arguments`` are its keyword arguments. Its repr is code that makes it
    again."""

    trace: Trace
    costs: CostTable
    switching: SwitchTable
    protocol: SwitchProtocol
    schedule: Schedule
    boundary: Boundary
    start: Clocks

    @cached_property
    def program(self) -> Program:
        return Program.from_trace(self.trace)

    @property
    def arguments(self) -> dict[str, Any]:
        names = ("costs", "switching", "protocol", "schedule", "boundary", "start")
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        return as_code(self)[2]


@st.composite
def scenes(
    draw: st.DrawFn,
    *,
    trace: st.SearchStrategy[Trace] | None = None,
    costs: st.SearchStrategy[CostTable] | None = None,
    protocol: st.SearchStrategy[SwitchProtocol] | None = None,
    max_requests: int = 4,
) -> Scene:
    """Everything that a replay needs, of which what is not given is drawn; at most so many requests."""
    recorded = draw(traces() if trace is None else trace)
    program = Program.from_trace(recorded)
    table = draw(cost_tables() if costs is None else costs)
    chosen = draw(protocols() if protocol is None else protocol)
    return Scene(
        trace=recorded,
        costs=table,
        switching=draw(switch_tables(table.n_clocks)),
        protocol=chosen,
        schedule=draw(schedules(program, table.clocks, chosen, max_requests=max_requests)),
        boundary=draw(st.sampled_from(["periodic", "one-shot"])),
        start=draw(st.sampled_from(table.clocks)),
    )
