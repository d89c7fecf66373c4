"""What a run waits for, as a graph: the longest path through it is how long the run takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Precedence:
    """Everything that can delay an operation, at whatever clocks; the end of a run is the last node.

    Edges, shape (n_edges,): node ``to`` comes at least ``lag_ns`` after node ``origin`` (-1: after 0 ns), and
    after operation ``op`` has passed in between, unless that is -1. They are sorted such that every edge comes
    after all that lead to its origin. ``n_nodes``: the last one is the end.

    Operations, shape (n_ops,): ``kind``; ``duration_ns`` as recorded; ``launch``, its number in the chain, or
    -1 for those of other streams. ``apart``: a set of the chain's launches no two of which ever run at once.

    ``slowest_ns`` (n_kinds,): the longest, in the cost table's durations, at which the recording may have run a
    kind, by itself or beside others; None if nothing ever runs beside anything.
    """

    origin: npt.NDArray[np.int64]
    to: npt.NDArray[np.int64]
    lag_ns: npt.NDArray[np.int64]
    op: npt.NDArray[np.int64]
    n_nodes: int
    kind: npt.NDArray[np.int32]
    duration_ns: npt.NDArray[np.int64]
    launch: npt.NDArray[np.int64]
    apart: npt.NDArray[np.bool_]
    slowest_ns: npt.NDArray[np.float64] | None
