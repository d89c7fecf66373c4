"""Any valid Trace, as a reader may give it: every column used, any text in names, times far from zero."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kdvfs_sim.core.clocks import AUTO, Clocks
from kdvfs_sim.core.kinds import CATEGORIES, KernelKind
from kdvfs_sim.trace.assemble import assemble
from kdvfs_sim.trace.table import Trace

_TEXT = st.text(max_size=8)
_COUNTS = st.dictionaries(_TEXT, st.integers(0, 10**9), max_size=2)
_TIMES = st.integers(-(10**15), 10**15)
_SIZES = st.one_of(st.none(), st.tuples(*[st.integers(0, 2**32 - 1)] * 3))
_AMOUNTS = st.one_of(st.none(), st.floats(0, 1e20))
_CLOCK = st.one_of(st.just(AUTO), st.integers(1, 5000))


def kernel_kinds() -> st.SearchStrategy[KernelKind]:
    """Kinds with any name, geometry, category, FLOPs and bytes; copies and memory sets among them."""
    return st.builds(
        KernelKind,
        name=_TEXT,
        op_class=st.sampled_from(["kernel", "memcpy", "memset"]),
        grid=_SIZES,
        block=_SIZES,
        category=st.sampled_from(CATEGORIES),
        flops=_AMOUNTS,
        bytes=_AMOUNTS,
    )


def _columns(draw: st.DrawFn, n: int, **columns: st.SearchStrategy[Any]) -> dict[str, list[Any]]:
    return {name: draw(st.lists(values, min_size=n, max_size=n)) for name, values in columns.items()}


@st.composite
def recordings(draw: st.DrawFn) -> Trace:
    """Traces that need not make sense as a program: for readers and writers, not for replays."""
    n_ops, n_host = draw(st.integers(1, 6)), draw(st.integers(0, 4))
    rows = st.integers(0, n_ops - 1)
    kinds = draw(st.lists(kernel_kinds(), min_size=1, max_size=4, unique=True))
    return assemble(
        source=draw(_TEXT),
        format=draw(_TEXT),
        kinds=kinds,
        ops=_columns(
            draw,
            n_ops,
            kind=st.integers(0, len(kinds) - 1),
            device=st.integers(0, 2),
            stream=st.integers(-1, 2**40),
            start_ns=_TIMES,
            duration_ns=st.integers(0, 10**12),
            host=st.one_of(st.none(), st.integers(0, n_host - 1)) if n_host else st.none(),
            **{"pass": st.integers(-1, 2)},
            iteration=st.integers(-1, 3),
        ),
        host=_columns(
            draw,
            n_host,
            thread=st.integers(-(2**40), 2**40),
            start_ns=_TIMES,
            duration_ns=st.integers(0, 10**9),
            action=st.sampled_from(["launch", "sync"]),
            name=_TEXT,
            awaits=st.one_of(st.none(), rows),
        ),
        waits=_columns(draw, draw(st.integers(0, 3)), op=rows, on=rows),
        ranges=_columns(draw, draw(st.integers(0, 3)), name=_TEXT, start_ns=_TIMES, end_ns=_TIMES),
        zero_unix_ns=draw(st.one_of(st.none(), st.integers(0, 2**61))),
        device_names=draw(st.dictionaries(st.integers(0, 2), _TEXT, max_size=2)),
        recorded_clocks=Clocks(draw(_CLOCK), draw(_CLOCK)),
        complete=draw(st.booleans()),
        cross_stream_unknown=draw(st.booleans()),
        repairs=draw(_COUNTS),
        quarantined=draw(_COUNTS),
    )
