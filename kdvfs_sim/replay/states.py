"""What a device does while a set of kernels runs: effective clocks, speed, power."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from kdvfs_sim.core.clocks import Auto, Clocks
from kdvfs_sim.core.errors import InputError

if TYPE_CHECKING:
    from kdvfs_sim.core.costs import CostTable
    from kdvfs_sim.core.kinds import KernelKind

STEADY: Final = -1  # no governed row: the effective clocks follow from the request and the kernels


class State(NamedTuple):
    """One combination of requested clocks, clocks in force, running kinds and stall, met in a replay.

    ``ratios``: scaled over recorded duration of each running kind. ``floor_w``: power with no
    progress; ``increments_w``: what each running kind adds to it; ``power_w``: the device's.
    """

    requested: int
    effective: int
    ratios: tuple[float, ...]
    floor_w: float
    increments_w: tuple[float, ...]
    power_w: float


class Mode(dict[tuple[int, ...], tuple[int, tuple[float, ...]]]):
    """The states of one requested row, row in force, governed row (or STEADY) and stall: by the kinds
    running the State's number and ratios, made when they are first met."""

    def __init__(self, states: States, requested: int, row: int, governed: int, stalled: bool) -> None:
        self._states = states
        self._key = (requested, row, governed, stalled)

    def __missing__(self, kinds: tuple[int, ...]) -> tuple[int, tuple[float, ...]]:
        in_order = self._states.in_order
        in_order.append(self._states.make(*self._key, kinds))
        self[kinds] = found = (len(in_order) - 1, in_order[-1].ratios)
        return found


class States:
    """The states met in a replay, in order, and how a cost table makes them."""

    def __init__(self, costs: CostTable | None, kinds: Sequence[KernelKind], recorded: Clocks) -> None:
        self._kinds = kinds
        self._costs = costs
        self._resolved: dict[tuple[tuple[int, ...], int], int] = {}
        self.clocks = (recorded,) if costs is None else costs.clocks
        self.in_order: list[State] = []
        self._modes: dict[tuple[int, int, int, bool], Mode] = {}
        if costs is not None and costs.n_kinds < len(kinds):
            raise InputError(f"the cost table has {costs.n_kinds} kernel kinds, the trace {len(kinds)}")

    def mode(self, requested: int, row: int, governed: int, stalled: bool) -> Mode:
        """The states of a device whose clocks stand like this."""
        key = (requested, row, governed, stalled)
        if key not in self._modes:
            self._modes[key] = Mode(self, *key)
        return self._modes[key]

    def make(self, requested: int, row: int, governed: int, stalled: bool, kinds: tuple[int, ...]) -> State:
        effective = self.resolve(kinds, row) if governed == STEADY else governed
        if self._costs is None:
            unknown = (math.nan,) * len(kinds)
            return State(requested, effective, (1.0,) * len(kinds), math.nan, unknown, math.nan)
        power_w = self._costs.power_w
        floor = float(self._costs.idle_power_w[effective])
        increments = tuple([0.0 if stalled else float(power_w[k, effective]) - floor for k in kinds])
        alone = len(kinds) == 1 and not stalled
        power = float(power_w[kinds[0], effective]) if alone else floor + sum(increments)
        ratios = tuple([self._ratio(k, kinds, effective) for k in kinds])
        return State(requested, effective, ratios, floor, increments, power)

    def resolve(self, kinds: tuple[int, ...], row: int) -> int:
        """The steady effective row while ``kinds`` run and ``row`` is in force.

        Alone a kind runs at ``CostTable.effective``. Several run at the highest row, from the lowest of
        their single answers downwards at the same memory clock, whose power meets the cap; unknown
        power limits nothing. Without a cap, or if no row meets it: the lowest answer, the lowest row.
        """
        costs = self._costs
        if costs is None or not kinds:
            return row
        if len(kinds) == 1:
            return int(costs.effective[kinds[0], row])
        key = (kinds, row)
        if key not in self._resolved:
            self._resolved[key] = self._highest(kinds, costs.effective[:, row].tolist(), costs.cap_w)
        return self._resolved[key]

    def _recorded(self, kinds: tuple[int, ...]) -> int:
        """The row at which the recording ran ``kinds``. Where it ran under another limit than the table's
        that limit is not known, and several are taken to have run at the lowest of their single rows."""
        costs = self._costs
        assert costs is not None
        if costs.recorded_effective is None:
            return self.resolve(kinds, costs.recorded)
        return self._highest(kinds, costs.recorded_effective.tolist(), None)

    def _highest(self, kinds: tuple[int, ...], alone: list[int], cap_w: float | None) -> int:
        costs, clocks = self._costs, self.clocks
        assert costs is not None

        def by_sm(e: int) -> tuple[float, ...]:
            return clocks[e].sort_key[::-1]

        lowest = min((alone[k] for k in kinds), key=by_sm)
        if cap_w is None:
            return lowest
        downwards = [
            e
            for e in range(len(clocks))
            if clocks[e].mem_mhz == clocks[lowest].mem_mhz and by_sm(e) <= by_sm(lowest)
        ]
        downwards.sort(key=by_sm, reverse=True)
        for e in downwards:
            idle = costs.idle_power_w[e]
            if not idle + sum(costs.power_w[k, e] - idle for k in sorted(kinds)) > cap_w:
                return e
        return downwards[-1]

    def _ratio(self, kind: int, kinds: tuple[int, ...], effective: int) -> float:
        costs = self._costs
        assert costs is not None
        recorded = self._recorded(kinds)
        if effective == recorded:
            return 1.0
        ratio = float(costs.duration_ns[kind, effective] / costs.duration_ns[kind, recorded])
        if math.isnan(ratio):
            row = effective if math.isnan(costs.duration_ns[kind, effective]) else recorded
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
