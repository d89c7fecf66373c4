"""Hypothesis strategies for the nouns of a replay. They shrink to one kernel, one clock, no host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from hypothesis import strategies as st

from kdvfs_sim.core.clocks import AUTO, AUTO_CLOCKS, Clocks
from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.core.schedule import ClockRequest, Schedule
from kdvfs_sim.core.switching import DRAIN, FOLLOW, FREE, LOOKAHEAD, Boundary, SwitchProtocol, SwitchTable
from kdvfs_sim.replay.program import Program
from kdvfs_sim.trace.table import HOST_SCHEMA, OPS_SCHEMA, WAITS_SCHEMA, Trace

MAX_KINDS = 3
CLOCK_PAIRS = (
    AUTO_CLOCKS,
    Clocks(900, 1000),
    Clocks(600, 1000),
    Clocks(300, 1000),
    Clocks(AUTO, 1000),
    Clocks(900, 500),
    Clocks(600, 500),
)


def _rather_many(draw: st.DrawFn, least: int, most: int) -> int:
    """Hypothesis likes small numbers; cases with something going on need larger ones."""
    return max(draw(st.integers(least, most)), draw(st.integers(least, most)))


# -- costs -----------------------------------------------------------------------------------------


@st.composite
def cost_tables(
    draw: st.DrawFn, *, n_kinds: int = MAX_KINDS, unknown_power: bool = True, may_cap: bool = True
) -> CostTable:
    """Small tables, physical or not: any duration, power and effective row; some power unknown."""
    locks = st.lists(
        st.sampled_from(CLOCK_PAIRS[1:]), unique=True, min_size=draw(st.integers(0, 2)), max_size=3
    )
    clocks = (AUTO_CLOCKS, *draw(locks))
    n = len(clocks)
    durations = st.sampled_from([1.0, 2.0, 0.5, 3.0, 1 / 3, 0.1]) | st.floats(0.05, 20)
    watts = st.sampled_from([100.0, 50.0, 0.0]) | st.floats(0, 1000)
    if unknown_power and draw(st.integers(0, 3)) == 3:
        watts |= st.just(float("nan"))

    def table(values: st.SearchStrategy[Any]) -> np.ndarray:
        return np.asarray(
            draw(st.lists(st.lists(values, min_size=n, max_size=n), min_size=n_kinds, max_size=n_kinds))
        )

    identity = np.tile(np.arange(n, dtype=np.int32), (n_kinds, 1))
    effective = table(st.integers(0, n - 1)).astype(np.int32) if draw(st.booleans()) else identity
    return CostTable(
        kinds=tuple(f"k{i}" for i in range(n_kinds)),
        clocks=clocks,
        duration_ns=table(durations).astype(float),
        power_w=table(watts).astype(float),
        effective=effective,
        idle_power_w=np.asarray(draw(st.lists(watts, min_size=n, max_size=n)), dtype=float),
        recorded=draw(st.integers(0, n - 1)),
        requestable=np.ones(n, dtype=bool),
        cap_w=draw(st.none() | st.floats(0, 2000)) if may_cap else None,
    )


@st.composite
def switch_tables(draw: st.DrawFn, n_clocks: int, *, longest_ns: int | None = None) -> SwitchTable:
    """Asymmetric pairwise costs, from nothing to longer than a small trace, with stalls and extra energy."""
    if longest_ns is None:
        longest_ns = draw(st.sampled_from([0, 5, 20, 80]))

    def table(most: int) -> np.ndarray:
        values = draw(st.lists(st.integers(0, most), min_size=n_clocks**2, max_size=n_clocks**2))
        return np.asarray(values, dtype=np.int64).reshape(n_clocks, n_clocks) * (
            1 - np.eye(n_clocks, dtype=np.int64)
        )

    switching = table(longest_ns)
    return SwitchTable(
        host_call_ns=table(longest_ns),
        switching_ns=switching,
        stall_ns=np.minimum(table(longest_ns), switching),
        extra_energy_j=table(3) * 1e-6,
    )


@st.composite
def protocols(draw: st.DrawFn) -> SwitchProtocol:
    """The four protocols, with times of their own."""
    protocol = draw(st.sampled_from([FREE, DRAIN, FOLLOW, LOOKAHEAD]))
    times = st.integers(0, 8)
    return protocol.with_timing(trigger_ns=draw(times), relaunch_ns=draw(times))


# -- traces ----------------------------------------------------------------------------------------


@st.composite
def traces(
    draw: st.DrawFn,
    *,
    max_ops: int = 8,
    n_streams: int = 3,
    n_devices: int = 1,
    overlaps: bool = True,
    host: bool = True,
) -> Trace:
    """Gaps, ties in one nanosecond, operations of no length; streams, devices, overlaps within a stream
    (programmatic launch), event waits; a host of up to two threads with launches and synchronizations,
    ahead of the GPU or behind it."""
    n = _rather_many(draw, 1, max_ops)
    devices = [draw(st.integers(0, n_devices - 1)) for _ in range(n)]
    streams = [draw(st.integers(0, n_streams - 1)) for _ in range(n)]
    small = st.integers(0, 12)
    free_at: dict[tuple[int, int], int] = {}
    start, duration, now = [], [], 0
    for i, queue in enumerate(zip(devices, streams, strict=True)):
        now += draw(small) if i else 0
        if not (overlaps and draw(st.integers(0, 2)) == 2):
            now = max(now, free_at.get(queue, 0))
        start.append(now)
        duration.append(draw(small))
        free_at[queue] = max(free_at.get(queue, 0), now + duration[-1])
    start = [t - start[0] for t in start]
    ops: dict[str, Any] = {
        "kind": [draw(st.integers(0, MAX_KINDS - 1)) for _ in range(n)],
        "device": devices,
        "stream": streams,
        "start_ns": start,
        "duration_ns": duration,
        "host": [None] * n,
        "pass": [-1] * n,
        "iteration": [-1] * n,
    }
    actions: list[dict[str, Any]] = []
    if host and draw(st.booleans()):
        actions = _host(draw, ops)
    waits = _waits(draw, ops) if n_streams > 1 else []
    return Trace(
        ops=pl.DataFrame(ops, schema=dict(OPS_SCHEMA)),
        kinds=tuple(KernelKind(name=f"k{i}") for i in range(MAX_KINDS)),
        host=pl.DataFrame(actions, schema=dict(HOST_SCHEMA)),
        waits=pl.DataFrame(waits, schema=dict(WAITS_SCHEMA), orient="row"),
    )


def _host(draw: st.DrawFn, ops: dict[str, Any]) -> list[dict[str, Any]]:
    """Launches in the order of the operations, some of several, and synchronizations between them. Two
    threads take turns or work side by side; the calls of one follow one another."""
    actions: list[dict[str, Any]] = []
    now = draw(st.integers(-30, 0))
    free_at = [now, now]
    has_graphs = draw(st.integers(0, 3)) == 3
    launch = -1

    def call(action: str, latest: int | None, length: int) -> int:
        nonlocal now
        thread = draw(st.integers(0, 1))
        at = max(now, free_at[thread])
        if latest is not None and at > latest:
            at = max(now, latest)  # the other call of this thread must be over by then
            for a in actions:
                if a["thread"] == thread and a["start_ns"] + a["duration_ns"] > at:
                    a["duration_ns"] = at - a["start_ns"]
        actions.append(
            {
                "thread": thread,
                "start_ns": at,
                "duration_ns": length,
                "action": action,
                "name": action,
                "awaits": None,
            }
        )
        free_at[thread] = at + length
        now = at + draw(st.integers(0, length))  # less than its length: the threads work side by side
        return len(actions) - 1

    for op, start in enumerate(ops["start_ns"]):
        if draw(st.integers(0, 7)) == 7:
            continue  # queued before the recording began
        if launch < 0 or not (has_graphs and draw(st.booleans())):
            now = max(now, start - draw(st.sampled_from([0, 2, 30]) | st.integers(0, 10)))
            launch = call("launch", start, draw(st.integers(0, 6)))
        ops["host"][op] = launch
        if draw(st.integers(0, 3)) == 3:
            end = start + ops["duration_ns"][op]
            length = max(0, end - now) + draw(st.integers(0, 2)) if draw(st.booleans()) else 0
            call("sync", None, length)
    return actions


def _waits(draw: st.DrawFn, ops: dict[str, Any]) -> list[tuple[int, int]]:
    """Event waits on operations that had ended, and were launched no later."""
    found = []
    for op, start in enumerate(ops["start_ns"]):
        for on in range(op):
            ended = ops["start_ns"][on] + ops["duration_ns"][on] <= start
            if ended and ops["stream"][on] != ops["stream"][op] and draw(st.integers(0, 4)) == 4:
                launched, launched_on = ops["host"][op], ops["host"][on]
                if launched is None or launched_on is None or launched_on <= launched:
                    found.append((op, on))
    return found


# -- schedules -------------------------------------------------------------------------------------


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
    n = _rather_many(draw, 0, max_requests) if len(clocks) > 1 else 0
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


@dataclass(frozen=True, kw_only=True)
class Scene:
    """All that a replay needs; ``arguments`` are its keyword arguments."""

    trace: Trace
    program: Program
    costs: CostTable
    switching: SwitchTable
    protocol: SwitchProtocol
    schedule: Schedule
    boundary: Boundary
    start: Clocks

    @property
    def arguments(self) -> dict[str, Any]:
        names = ("costs", "switching", "protocol", "schedule", "boundary", "start")
        return {name: getattr(self, name) for name in names}

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        printer.text(repr(self))

    def __repr__(self) -> str:
        t, c = self.trace, self.costs
        return "\n".join(
            [
                "Scene:",
                f"ops {t.ops.rows()}  (kind, device, stream, start, duration, host, pass, iteration)",
                f"host {t.host.rows()}  (thread, start, duration, action, name, awaits)",
                f"waits {t.waits.rows()}",
                f"clocks {[str(x) for x in c.clocks]} recorded {c.recorded} start {self.start} cap {c.cap_w}",
                f"duration {c.duration_ns.tolist()} effective {c.effective.tolist()}",
                f"power {c.power_w.tolist()} idle {c.idle_power_w.tolist()}",
                *(
                    f"{name} {getattr(self.switching, name).tolist()}"
                    for name in ("host_call_ns", "switching_ns", "stall_ns", "extra_energy_j")
                ),
                f"{self.protocol} {self.boundary}",
                *(f"  {request}" for request in self.schedule.requests),
            ]
        )


@st.composite
def scenes(
    draw: st.DrawFn,
    *,
    trace: st.SearchStrategy[Trace] | None = None,
    costs: st.SearchStrategy[CostTable] | None = None,
    protocol: st.SearchStrategy[SwitchProtocol] | None = None,
    max_requests: int = 4,
) -> Scene:
    recorded = draw(traces() if trace is None else trace)
    program = Program.from_trace(recorded)
    table = draw(cost_tables() if costs is None else costs)
    chosen = draw(protocols() if protocol is None else protocol)
    return Scene(
        trace=recorded,
        program=program,
        costs=table,
        switching=draw(switch_tables(table.n_clocks)),
        protocol=chosen,
        schedule=draw(schedules(program, table.clocks, chosen, max_requests=max_requests)),
        boundary=draw(st.sampled_from(["periodic", "one-shot"])),
        start=draw(st.sampled_from(table.clocks)),
    )


def single_stream(*, max_ops: int = 8, host: bool = True) -> st.SearchStrategy[Trace]:
    """Traces on which the fast evaluator applies."""
    return traces(max_ops=max_ops, n_streams=1, overlaps=False, host=host)
