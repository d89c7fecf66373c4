"""Traces of a few operations: streams, overlaps, gaps, ties, operations of no length, a host, graph
launches."""

from __future__ import annotations

from typing import Any

import polars as pl
from hypothesis import strategies as st

from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.testing.strategies.costs import MAX_KINDS
from kdvfs_sim.trace.table import HOST_SCHEMA, OPS_SCHEMA, WAITS_SCHEMA, Trace


def rather_many(draw: st.DrawFn, least: int, most: int) -> int:
    """Hypothesis likes small numbers; cases with something going on need larger ones."""
    return max(draw(st.integers(least, most)), draw(st.integers(least, most)))


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
    n = rather_many(draw, 1, max_ops)
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


def single_stream(*, max_ops: int = 8, host: bool = True) -> st.SearchStrategy[Trace]:
    """Traces on which the fast evaluator applies."""
    return traces(max_ops=max_ops, n_streams=1, overlaps=False, host=host)
