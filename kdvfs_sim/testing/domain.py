"""What a model may be asked about: the kinds and clocks that it lists, or any.

A model says so itself, by optional attributes: ``kinds`` (a sequence of KernelKind) and ``clock_table`` (a
ClockTable), or ``gpu`` with a ``clock_table`` of its own (a method or an attribute).
"""

from __future__ import annotations

from typing import Any, TypeAlias

from hypothesis import strategies as st

from kdvfs_sim.core.clocks import Auto, Clocks, ClockTable
from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.testing.strategies.clocks import clock_pairs
from kdvfs_sim.testing.strategies.recordings import kernel_kinds

Point: TypeAlias = tuple[KernelKind, Clocks]
PLAIN = st.sampled_from(
    [
        KernelKind(name="gemm", category="gemm", flops=1e9, bytes=1e6),
        KernelKind(name="copy", category="copy", flops=0.0, bytes=1e8),
        KernelKind(name="unheard of"),
    ]
)


def declares_kinds(model: Any) -> bool:
    """Does the model say which kinds it knows, so that it can be asked for others?"""
    return bool(getattr(model, "kinds", ()))


def clock_table(model: Any) -> ClockTable | None:
    """The requests that the model is for, None if it does not say."""
    for owner in (model, getattr(model, "gpu", None)):
        table = getattr(owner, "clock_table", None)
        if table is not None:
            found = table() if callable(table) else table
            return found if isinstance(found, ClockTable) else None
    return None


def requests(model: Any) -> st.SearchStrategy[Clocks]:
    """Clocks that may be requested, AUTO included."""
    table = clock_table(model)
    return clock_pairs() if table is None else st.sampled_from(table.pairs)


def kinds(model: Any) -> st.SearchStrategy[KernelKind]:
    """Kernel kinds that the model has to answer for."""
    if declares_kinds(model):
        return st.sampled_from(tuple(model.kinds))
    return PLAIN | kernel_kinds()


def points(model: Any) -> st.SearchStrategy[Point]:
    """A kind and a pair of numeric clocks."""
    table = clock_table(model)
    numeric = clock_pairs(may_be_auto=False)
    if table is not None:
        listed = [
            pair for pair in table if not isinstance(pair.sm_mhz, Auto) and not isinstance(pair.mem_mhz, Auto)
        ]
        numeric = st.sampled_from(listed) if listed else numeric
    return st.tuples(kinds(model), numeric)


def strangers(model: Any) -> st.SearchStrategy[KernelKind]:
    """Kernel kinds that the model does not list."""
    own = set(getattr(model, "kinds", ()))
    return (PLAIN | kernel_kinds()).filter(lambda kind: kind not in own)
