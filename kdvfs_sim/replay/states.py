"""What a device does while a set of kernels runs: effective clocks, speed, power."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from kdvfs_sim.core.clocks import Auto, Clocks
from kdvfs_sim.core.errors import InputError

if TYPE_CHECKING:
    from kdvfs_sim.core.costs import CostTable
    from kdvfs_sim.core.kinds import KernelKind

STEADY = -1  # no row given: the effective clocks follow from the request and the kernels


class State(NamedTuple):
    """One combination of requested clocks, clocks in force, running kinds and stall, met in a replay.

    ``ratios``: scaled over recorded duration of each running kind. ``floor_w``: power with no
    progress; ``increments_w``: what each running kind adds to it; ``power_w``: the device's.
    """

    number: int
    requested: int
    effective: int
    ratios: tuple[float, ...]
    floor_w: float
    increments_w: tuple[float, ...]
    power_w: float


StateKey = tuple[int, int, int, bool, tuple[int, ...]]


class States(dict[StateKey, State]):
    """The states met so far, by (requested row, row in force, governed row or STEADY, stalled, kinds)."""

    def __init__(self, costs: CostTable | None, kinds: Sequence[KernelKind], recorded: Clocks) -> None:
        self._kinds = kinds
        self._costs = costs
        self._resolved: dict[tuple[tuple[int, ...], int], int] = {}
        self.clocks = (recorded,) if costs is None else costs.clocks
        self.in_order: list[State] = []
        if costs is not None:
            if costs.n_kinds < len(kinds):
                raise InputError(f"the cost table has {costs.n_kinds} kernel kinds, the trace {len(kinds)}")
            self._effective = costs.effective.tolist()
            self._duration = costs.duration_ns.tolist()
            self._power = costs.power_w.tolist()
            self._idle = costs.idle_power_w.tolist()
            self._recorded = costs.recorded

    def __missing__(self, key: StateKey) -> State:
        requested, row, governed, stalled, kinds = key
        effective = self.resolve(kinds, row) if governed == STEADY else governed
        if self._costs is None:
            unknown = (math.nan,) * len(kinds)
            state = State(len(self), requested, effective, (1.0,) * len(kinds), math.nan, unknown, math.nan)
        else:
            floor = self._idle[effective]
            increments = tuple(0.0 if stalled else self._power[k][effective] - floor for k in kinds)
            alone = len(kinds) == 1 and not stalled
            power = self._power[kinds[0]][effective] if alone else floor + sum(increments)
            ratios = tuple(self._ratio(k, kinds, effective) for k in kinds)
            state = State(len(self), requested, effective, ratios, floor, increments, power)
        self[key] = state
        self.in_order.append(state)
        return state

    def resolve(self, kinds: tuple[int, ...], row: int) -> int:
        """The steady effective row while ``kinds`` run and ``row`` is in force.

        Alone a kind runs at ``CostTable.effective``. Several run at the highest row, from the lowest of
        their single answers downwards at the same memory clock, whose power meets the cap; unknown
        power limits nothing. Without a cap, or if no row meets it: the lowest answer, the lowest row.
        """
        if self._costs is None or not kinds:
            return row
        if len(kinds) == 1:
            return int(self._effective[kinds[0]][row])
        key = (kinds, row)
        if key not in self._resolved:
            self._resolved[key] = self._resolve_several(kinds, row)
        return self._resolved[key]

    def _resolve_several(self, kinds: tuple[int, ...], row: int) -> int:
        assert self._costs is not None
        clocks, cap_w = self.clocks, self._costs.cap_w

        def by_sm(e: int) -> tuple[float, ...]:
            return clocks[e].sort_key[::-1]

        lowest = min((self._effective[k][row] for k in kinds), key=by_sm)
        if cap_w is None:
            return int(lowest)
        downwards = sorted(
            (
                e
                for e in range(len(clocks))
                if clocks[e].mem_mhz == clocks[lowest].mem_mhz and by_sm(e) <= by_sm(lowest)
            ),
            key=by_sm,
            reverse=True,
        )
        for e in downwards:
            idle = self._idle[e]
            if not idle + sum(self._power[k][e] - idle for k in sorted(kinds)) > cap_w:
                return e
        return downwards[-1]

    def _ratio(self, kind: int, kinds: tuple[int, ...], effective: int) -> float:
        recorded = self.resolve(kinds, self._recorded)
        if effective == recorded:
            return 1.0
        ratio = float(self._duration[kind][effective] / self._duration[kind][recorded])
        if math.isnan(ratio):
            row = effective if math.isnan(self._duration[kind][effective]) else recorded
            raise InputError(
                f"cost table: no duration is known for kernel kind {self._kinds[kind].name!r} "
                f"at {self.clocks[row]}; every clock that a schedule leads to needs one"
            )
        return ratio

    def sm_mhz(self, row: int) -> int:
        """SM clock of a row; AUTO counts as the highest SM clock of the table."""
        sm = self.clocks[row].sm_mhz
        if not isinstance(sm, Auto):
            return sm
        return max((c.sm_mhz for c in self.clocks if not isinstance(c.sm_mhz, Auto)), default=0)

    def nearest(self, sm_mhz: float, like: int) -> int:
        """The numeric row closest to an SM clock, at the memory clock of row ``like``; else ``like``."""
        rows = [
            e
            for e, c in enumerate(self.clocks)
            if c.mem_mhz == self.clocks[like].mem_mhz and not isinstance(c.sm_mhz, Auto)
        ]
        return min(rows, key=lambda e: (abs(self.sm_mhz(e) - sm_mhz), e), default=like)
