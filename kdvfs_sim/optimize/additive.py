"""The additive view: what every launch of a chain takes and draws under every request.

Nothing but ``round_half_even(recorded duration * ratio)`` and power times time, as in the replay;
matrices of launches x clocks are never stored, the compiled loops compute a cell when they need it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kdvfs_sim.core.chain import Chain
from kdvfs_sim.core.compiled import borrowing, compiled
from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.core.errors import NotApplicableError
from kdvfs_sim.core.problem import Granularity

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

LEAST_NS = 0.5  # what lasts no longer is rounded to nothing


class Cells(NamedTuple):
    """A chain and its costs as compiled loops read them; n launches, K kinds, C clocks.

    The clocks are those of some rows of the cost table, numbered anew. ``gap_ns`` is the idle time
    *after* a launch (0 after the last), and longer where that is what it takes to start the next
    launch ``floor_ns`` after this one. Without a change at the next boundary it is spent under the
    same request, so a launch and its gap form one cell.
    ``frozen_w`` is drawn while a landing change stops a running kernel. ``allowed`` marks the
    launches that may run under a request; where it is False the other numbers may be NaN.
    """

    kind: npt.NDArray[np.int32]  # (n,)
    duration_ns: Ints  # (n,), as recorded
    gap_ns: Ints  # (n,), at least
    floor_ns: Ints  # (n,), start to start, at least
    hidden_ns: Ints  # (n,), of a drained change in the pause before a launch, at most
    ratio: Floats  # (K, C)
    power_w: Floats  # (K, C)
    frozen_w: Floats  # (K, C)
    idle_w: Floats  # (C,)
    allowed: Bools  # (n, C)

    def first(self, n: int) -> Cells:
        """The first ``n`` launches."""
        return self._replace(
            kind=self.kind[:n],
            duration_ns=self.duration_ns[:n],
            gap_ns=self.gap_ns[:n],
            floor_ns=self.floor_ns[:n],
            hidden_ns=self.hidden_ns[:n],
            allowed=self.allowed[:n],
        )

    def only(self, allowed: Bools) -> Cells:
        """The same cells with fewer clocks allowed."""
        return self._replace(allowed=self.allowed & allowed)


@borrowing
def least_of(values: Floats, n: int) -> float:
    """The least of the first ``n``. Eight at a time: the order of comparing does not matter."""
    a = b = c = d = e = f = g = h = np.inf
    for k in range(0, n - 7, 8):
        a, b, c, d = (
            min(a, values[k]),
            min(b, values[k + 1]),
            min(c, values[k + 2]),
            min(d, values[k + 3]),
        )
        e, f, g, h = (
            min(e, values[k + 4]),
            min(f, values[k + 5]),
            min(g, values[k + 6]),
            min(h, values[k + 7]),
        )
    for k in range(n - n % 8, n):
        a = min(a, values[k])
    return min(min(min(a, b), min(c, d)), min(min(e, f), min(g, h)))


@borrowing
def launch_ns(cells: Cells, i: int, c: int) -> int:
    """Duration of launch ``i`` when all of it runs under request ``c``."""
    return np.int64(np.rint(cells.duration_ns[i] * cells.ratio[cells.kind[i], c]))  # type: ignore[return-value]


@borrowing
def gap_after(cells: Cells, i: int, busy_ns: int) -> int:
    """Idle time after launch ``i`` if it has taken ``busy_ns``."""
    return max(cells.gap_ns[i], cells.floor_ns[i] - busy_ns)  # type: ignore[no-any-return]


@borrowing
def cell_cost(cells: Cells, i: int, c: int) -> tuple[int, float]:
    """Time in ns and energy in J of launch ``i`` and the gap after it, all under request ``c``."""
    busy_ns = launch_ns(cells, i, c)
    gap_ns = gap_after(cells, i, busy_ns)
    energy_j = cells.power_w[cells.kind[i], c] * busy_ns * 1e-9
    if gap_ns > 0:
        energy_j += cells.idle_w[c] * gap_ns * 1e-9
    return busy_ns + gap_ns, energy_j


def cells_of(
    chain: Chain, costs: CostTable, rows: Ints, *, at_least: bool = False, start: int | None = None
) -> Cells:
    """The cells of a chain at some rows of the cost table.

    Launches may run at what may be requested, and at ``start``, which is in force until the first change.

    Gaps are those recorded, or, for bounds, ``at_least`` what no change of clocks can remove.
    """
    lag_ns = chain.min_lag_ns if at_least else chain.lag_ns
    gap_ns = np.append(lag_ns[1:], 0).astype(np.int64)
    floor_ns = np.zeros(len(chain), dtype=np.int64)
    if at_least and chain.floor_ns is not None:
        floor_ns = chain.floor_ns.astype(np.int64)
    ratio, power_w, idle_w = costs.ratio[:, rows], costs.request_power_w[:, rows], costs.idle_power_w[rows]
    usable = np.isfinite(ratio) & (costs.requestable[rows] | (rows == start))
    known = np.isfinite(power_w)
    runs = (usable & known)[chain.kind]
    unknown = np.flatnonzero((usable & ~known).any(axis=1)[chain.kind])  # what takes no time draws nothing
    kind = chain.kind[unknown]
    runs[unknown] |= usable[kind] & (chain.duration_ns[unknown, None] * ratio[kind] <= LEAST_NS)
    hidden_ns = np.zeros(len(chain), dtype=np.int64) if chain.hidden_ns is None else chain.hidden_ns
    for c in np.flatnonzero(~np.isfinite(idle_w)):
        runs[:, c] &= (gap_ns == 0) & (floor_ns <= np.rint(chain.duration_ns * ratio[chain.kind, c]))
    return Cells(
        kind=chain.kind.astype(np.int32),
        duration_ns=chain.duration_ns.astype(np.int64),
        gap_ns=gap_ns,
        floor_ns=floor_ns,
        hidden_ns=hidden_ns,
        ratio=np.ascontiguousarray(ratio),
        power_w=np.ascontiguousarray(np.where(known, power_w, 0.0)),
        frozen_w=np.ascontiguousarray(costs.idle_power_w[costs.effective[:, rows]]),
        idle_w=idle_w.astype(np.float64),
        allowed=runs,
    )


def host_bound(cells: Cells, chain: Chain) -> Cells:
    """The cells as they are if the host launches when it did: a longer launch eats up the gap after it.

    What one launch delays, the gap after the next may make up for: that is left to who replays it.
    """
    lag_ns = np.append(chain.lag_ns[1:], 0).astype(np.int64)
    least_ns = np.append(chain.min_lag_ns[1:], 0).astype(np.int64)
    waits = lag_ns > least_ns
    floor_ns = np.where(waits, cells.duration_ns + lag_ns, 0)
    return cells._replace(gap_ns=least_ns, floor_ns=floor_ns)


@dataclass(frozen=True, kw_only=True, eq=False)
class Groups:
    """Costs of groups of launches that share one choice: arrays of shape (n_groups, n_clocks).

    A cell that is not allowed holds 0 ns and infinite energy.
    """

    time_ns: Ints
    energy_j: Floats
    allowed: Bools

    def only(self, allowed: Bools) -> Groups:
        allowed = self.allowed & allowed
        return replace(
            self,
            time_ns=np.where(allowed, self.time_ns, 0),
            energy_j=np.where(allowed, self.energy_j, np.inf),
            allowed=allowed,
        )


def fold(cells: Cells, group: Ints) -> Groups:
    """Add up the launches of each group (``group[i]`` is launch i's, numbered from 0)."""
    n_groups = int(group.max()) + 1 if len(group) else 0
    time_ns, energy_j, allowed = _fold(cells, group, n_groups)
    return Groups(time_ns=time_ns, energy_j=energy_j, allowed=allowed)


@compiled
def _fold(cells: Cells, group: Ints, n_groups: int) -> tuple[Ints, Floats, Bools]:
    n, n_clocks = cells.allowed.shape
    time_ns = np.zeros((n_groups, n_clocks), dtype=np.int64)
    energy_j = np.zeros((n_groups, n_clocks))
    allowed = np.ones((n_groups, n_clocks), dtype=np.bool_)
    for i in range(n):
        g = group[i]
        for c in range(n_clocks):
            if not cells.allowed[i, c]:
                allowed[g, c] = False
            elif allowed[g, c]:
                t, e = cell_cost(cells, i, c)
                time_ns[g, c] += t
                energy_j[g, c] += e
    for g in range(n_groups):
        for c in range(n_clocks):
            if not allowed[g, c]:
                time_ns[g, c] = 0
                energy_j[g, c] = np.inf
    return time_ns, energy_j, allowed


def group_launches(chain: Chain, granularity: Granularity) -> Ints:
    """Group of every launch, numbered by first appearance.

    ``static``: one group. ``pass``: one a pass; a launch of unknown pass goes with the pass before
    it. ``kind``: one a kernel kind. ``segment``: one a run of neighbours of one kind. ``launch``:
    one a launch. Raises NotApplicableError for ``pass`` without recorded passes.
    """
    n = len(chain)
    if granularity == "static":
        return np.zeros(n, dtype=np.int64)
    if granularity == "launch":
        return np.arange(n, dtype=np.int64)
    if granularity == "segment":
        return np.cumsum(np.diff(chain.kind, prepend=chain.kind[:1]) != 0).astype(np.int64)
    if granularity == "kind":
        return _number(chain.kind)
    if chain.passes is None or not (chain.passes >= 0).any():
        raise NotApplicableError("the recording has no forward, backward or optimizer ranges")
    known = np.flatnonzero(chain.passes >= 0)
    before = np.maximum(np.searchsorted(known, np.arange(n), side="right") - 1, 0)
    return _number(chain.passes[known[before]])


def _number(labels: npt.NDArray[np.generic]) -> Ints:
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first)).astype(np.int64)[inverse]
