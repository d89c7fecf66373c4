"""Any valid Trace, small."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kdvfs_sim.core.clocks import AUTO, Clocks
from kdvfs_sim.core.kinds import CATEGORIES, KernelKind
from kdvfs_sim.trace.assemble import assemble
from kdvfs_sim.trace.table import Trace

TEXT = st.text(max_size=8)
COUNTS = st.dictionaries(TEXT, st.integers(0, 10**9), max_size=2)
TIMES = st.integers(-(10**15), 10**15)
SIZES = st.one_of(st.none(), st.tuples(*[st.integers(0, 2**32 - 1)] * 3))
AMOUNTS = st.one_of(st.none(), st.floats(0, 1e20))
CLOCK = st.one_of(st.just(AUTO), st.integers(1, 5000))
KINDS = st.lists(
    st.builds(
        KernelKind,
        name=TEXT,
        op_class=st.sampled_from(["kernel", "memcpy", "memset"]),
        grid=SIZES,
        block=SIZES,
        category=st.sampled_from(CATEGORIES),
        flops=AMOUNTS,
        bytes=AMOUNTS,
    ),
    min_size=1,
    max_size=4,
    unique=True,
)


def _columns(draw: st.DrawFn, n: int, **columns: st.SearchStrategy[Any]) -> dict[str, list[Any]]:
    return {name: draw(st.lists(values, min_size=n, max_size=n)) for name, values in columns.items()}


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    n_ops, n_host = draw(st.integers(1, 6)), draw(st.integers(0, 4))
    rows = st.integers(0, n_ops - 1)
    kinds = draw(KINDS)
    return assemble(
        source=draw(TEXT),
        format=draw(TEXT),
        kinds=kinds,
        ops=_columns(
            draw,
            n_ops,
            kind=st.integers(0, len(kinds) - 1),
            device=st.integers(0, 2),
            stream=st.integers(-1, 2**40),
            start_ns=TIMES,
            duration_ns=st.integers(0, 10**12),
            host=st.one_of(st.none(), st.integers(0, n_host - 1)) if n_host else st.none(),
            **{"pass": st.integers(-1, 2)},
            iteration=st.integers(-1, 3),
        ),
        host=_columns(
            draw,
            n_host,
            thread=st.integers(-(2**40), 2**40),
            start_ns=TIMES,
            duration_ns=st.integers(0, 10**9),
            action=st.sampled_from(["launch", "sync"]),
            name=TEXT,
            awaits=st.one_of(st.none(), rows),
        ),
        waits=_columns(draw, draw(st.integers(0, 3)), op=rows, on=rows),
        ranges=_columns(draw, draw(st.integers(0, 3)), name=TEXT, start_ns=TIMES, end_ns=TIMES),
        zero_unix_ns=draw(st.one_of(st.none(), st.integers(0, 2**61))),
        device_names=draw(st.dictionaries(st.integers(0, 2), TEXT, max_size=2)),
        recorded_clocks=Clocks(draw(CLOCK), draw(CLOCK)),
        complete=draw(st.booleans()),
        cross_stream_unknown=draw(st.booleans()),
        repairs=draw(COUNTS),
        quarantined=draw(COUNTS),
    )
