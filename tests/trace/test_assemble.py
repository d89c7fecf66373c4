"""Sorting and renumbering keep every reference pointing at the row it pointed at."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdvfs_sim.core.errors import TraceFormatError
from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.trace.assemble import assemble

KIND = KernelKind(name="k")


@given(st.data())
def test_references_survive(data: st.DataObject) -> None:
    n_ops, n_host = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 5))
    starts = data.draw(st.lists(st.integers(0, 3), min_size=n_ops, max_size=n_ops))
    host_of = data.draw(st.lists(st.none() | st.integers(0, n_host - 1), min_size=n_ops, max_size=n_ops))
    host_starts = data.draw(st.lists(st.integers(-3, 3), min_size=n_host, max_size=n_host))
    awaits = data.draw(st.lists(st.none() | st.integers(0, n_ops - 1), min_size=n_host, max_size=n_host))
    waits = data.draw(st.lists(st.tuples(*[st.integers(0, n_ops - 1)] * 2), max_size=4))
    trace = assemble(
        source="test",
        kinds=[KIND],
        # the stream of an operation and the thread of a host action tell which row it was
        ops={
            "kind": [0] * n_ops,
            "device": [0] * n_ops,
            "stream": list(range(n_ops)),
            "start_ns": starts,
            "duration_ns": [0] * n_ops,
            "host": host_of,
        },
        host={
            "thread": list(range(n_host)),
            "start_ns": host_starts,
            "duration_ns": [0] * n_host,
            "action": ["sync"] * n_host,
            "name": [""] * n_host,
            "awaits": awaits,
        },
        waits={"op": [op for op, _ in waits], "on": [on for _, on in waits]},
    )
    op, host = trace.ops["stream"].to_list(), trace.host["thread"].to_list()

    def named(rows: list[Any], names: list[int]) -> list[Any]:
        return [None if row is None else names[row] for row in rows]

    assert dict(zip(op, named(trace.ops["host"].to_list(), host), strict=True)) == dict(enumerate(host_of))
    assert dict(zip(host, named(trace.host["awaits"].to_list(), op), strict=True)) == dict(enumerate(awaits))
    assert sorted((op[a], op[b]) for a, b in trace.waits.iter_rows()) == sorted(waits)
    assert trace.ops["start_ns"].to_list() == sorted(start - min(starts) for start in starts)
    assert trace.host["start_ns"].to_list() == sorted(start - min(starts) for start in host_starts)


def test_no_operation_is_refused() -> None:
    nothing: dict[str, list[int]] = {
        key: [] for key in ("kind", "device", "stream", "start_ns", "duration_ns")
    }
    with pytest.raises(TraceFormatError, match="here: holds no GPU operation"):
        assemble(source="here", kinds=[KIND], ops={**nothing, "host": [], "pass": [], "iteration": []})
