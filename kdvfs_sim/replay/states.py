"""What a device does while a set of kernels runs: effective clocks, speed, power."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from kdvfs_sim.core.clocks import Auto, Clocks
from kdvfs_sim.core.errors import InputError

if TYPE_CHECKING:
    from kdvfs_sim.core.costs import CostTable
    from kdvfs_sim.core.kinds import KernelKind

ROUNDING: Final = 1e-12  # relative to the parts of a power: what adding them up may leave of nothing
STEADY: Final = -1  # no governed row: the effective clocks follow from the request and the kernels


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StateTable:
    """The states met in a replay; a state is one combination of requested clocks, clocks in force, running
    kinds and stall.

    (n_states,): ``requested`` and ``effective`` rows, ``n_running``, ``floor_w`` (power with no progress),
    ``power_w`` (the device's; 0 where rounding alone is left) and ``gross_w`` (its parts, all counted as
    positive). ``increments_w``: what each running kind adds to the floor, of state i from ``first[i]`` on.
    """

    requested: npt.NDArray[np.int64]
    effective: npt.NDArray[np.int64]
    n_running: npt.NDArray[np.int64]
    floor_w: npt.NDArray[np.float64]
    power_w: npt.NDArray[np.float64]
    gross_w: npt.NDArray[np.float64]
    first: npt.NDArray[np.int64]
    increments_w: npt.NDArray[np.float64]


class Mode(dict[tuple[int, ...], tuple[int, tuple[float, ...]]]):
    """The states of one requested row, row in force, governed row (or STEADY) and stall: by the kinds
    running the state's number and each kind's scaled over recorded duration; made when first met."""

    def __init__(self, states: States, requested: int, row: int, governed: int, stalled: bool) -> None:
        self._states = states
        self._requested, self._row, self._governed, self._stalled = requested, row, governed, stalled

    def __missing__(self, kinds: tuple[int, ...]) -> tuple[int, tuple[float, ...]]:
        states = self._states
        if self._governed != STEADY:
            effective, ratios = self._governed, states.ratios(kinds, self._governed)
        elif len(kinds) == 1:
            effective, ratio = states.alone(kinds[0], self._row)
            ratios = (ratio,)
        else:
            effective = states.resolve(kinds, self._row)
            ratios = states.ratios(kinds, effective)
        states.met.append((self._requested, effective, self._stalled, kinds))
        self[kinds] = found = (len(states.met) - 1, ratios)
        return found


class States:
    """How a cost table gives states; ``met`` are those met: (requested row, effective row, stall, kinds)."""

    def __init__(self, costs: CostTable | None, kinds: Sequence[KernelKind], recorded: Clocks) -> None:
        self._kinds = kinds
        self._costs = costs
        self._columns: dict[int, tuple[list[int], list[float]]] = {}
        self._resolved: dict[tuple[tuple[int, ...], int], int] = {}
        self._reachable: dict[tuple[tuple[int, ...], int], list[tuple[int, float]]] = {}
        self.clocks = (recorded,) if costs is None else costs.clocks
        self.met: list[tuple[int, int, bool, tuple[int, ...]]] = []
        self._modes: dict[tuple[int, int, int, bool], Mode] = {}
        if costs is not None and costs.n_kinds < len(kinds):
            raise InputError(f"the cost table has {costs.n_kinds} kernel kinds, the trace {len(kinds)}")

    def mode(self, requested: int, row: int, governed: int, stalled: bool) -> Mode:
        """The states of a device whose clocks stand like this."""
        key = (requested, row, governed, stalled)
        if key not in self._modes:
            self._modes[key] = Mode(self, *key)
        return self._modes[key]

    def table(self) -> StateTable:
        """All states met, with their power."""
        requested, effective, stalled, kinds = zip(*self.met, strict=True)
        n_running = np.asarray([len(k) for k in kinds], dtype=np.int64)
        row = np.asarray(effective, dtype=np.int64)
        kind = np.asarray([k for of_state in kinds for k in of_state], dtype=np.int64)
        state = np.repeat(np.arange(n_running.size), n_running)
        floor_w: npt.NDArray[np.float64]
        alone_w: npt.NDArray[np.float64]
        if self._costs is None:
            floor_w, alone_w = np.full(row.size, np.nan), np.full(kind.size, np.nan)
        else:
            floor_w, alone_w = self._costs.idle_power_w[row], self._costs.power_w[kind, row[state]]
        stalls = np.asarray(stalled, dtype=bool)
        increments_w = np.where(stalls[state], 0.0, alone_w - floor_w[state])
        power_w: npt.NDArray[np.float64] = floor_w + np.bincount(state, increments_w, minlength=row.size)
        single = (n_running == 1) & ~stalls  # known even where the idle device's power is not
        gross_w = floor_w + np.bincount(state, np.abs(increments_w), minlength=row.size)
        power_w[np.abs(power_w) <= ROUNDING * gross_w] = 0.0
        power_w[single] = alone_w[single[state]]
        return StateTable(
            requested=np.asarray(requested, dtype=np.int64),
            effective=row,
            n_running=n_running,
            floor_w=floor_w,
            power_w=power_w,
            gross_w=np.where(np.isnan(gross_w), np.abs(power_w), gross_w),
            first=np.concatenate(([0], np.cumsum(n_running))),
            increments_w=increments_w,
        )

    def alone(self, kind: int, row: int) -> tuple[int, float]:
        """Effective row and ratio of one kind running by itself while ``row`` is in force."""
        costs = self._costs
        if costs is None:
            return row, 1.0
        if row not in self._columns:
            self._columns[row] = (costs.effective[:, row].tolist(), costs.ratio[:, row].tolist())
        effective, ratio = self._columns[row]
        if math.isnan(ratio[kind]):
            return effective[kind], self._ratio(kind, (kind,), effective[kind])  # raises
        return effective[kind], ratio[kind]

    def ratios(self, kinds: tuple[int, ...], effective: int) -> tuple[float, ...]:
        """Of each of the kinds running together at a row."""
        return tuple([self._ratio(k, kinds, effective) for k in kinds])

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

    @property
    def cap_w(self) -> float | None:
        return None if self._costs is None else self._costs.cap_w

    def power_w(self, kinds: tuple[int, ...], row: int, stalled: bool = False) -> float:
        """Device power while ``kinds`` run at a row; NaN where unknown."""
        costs = self._costs
        if costs is None:
            return math.nan
        idle = float(costs.idle_power_w[row])
        if stalled:
            return idle
        if len(kinds) == 1:
            return float(costs.power_w[kinds[0], row])
        return idle + sum(float(costs.power_w[k, row]) - idle for k in sorted(kinds))

    def within(self, kinds: tuple[int, ...], row: int, limit_w: float) -> int:
        """The row at which ``kinds`` run while ``row`` is in force and the device may draw ``limit_w``.

        With the cap for a limit this is ``resolve``. Above the steady row go only kinds that the cap
        holds there, up to the clock in force; where no row meets the limit it is the lowest.
        """
        if self._costs is None or not kinds:
            return row
        key = (kinds, row)
        if key not in self._reachable:
            self._reachable[key] = self._downwards(kinds, row)
        downwards = self._reachable[key]
        return next((e for e, power_w in downwards if not power_w > limit_w), downwards[-1][0])

    def _downwards(self, kinds: tuple[int, ...], row: int) -> list[tuple[int, float]]:
        """(row, power) of all that a limit may lead to, highest SM clock first."""
        costs, clocks, steady = self._costs, self.clocks, self.resolve(kinds, row)
        assert costs is not None
        top_mhz, steady_mhz = self.sm_mhz(row), self.sm_mhz(steady)
        rows = [
            (e, self.power_w(kinds, e))
            for e, c in enumerate(clocks)
            if c.mem_mhz == clocks[steady].mem_mhz and not isinstance(c.sm_mhz, Auto)
        ]
        rows = [(e, w) for e, w in rows if self.sm_mhz(e) <= top_mhz and not math.isnan(w)]
        rows.sort(key=lambda each: self.sm_mhz(each[0]), reverse=True)
        cap_w = math.inf if costs.cap_w is None else costs.cap_w
        above = [each for each in rows if self.sm_mhz(each[0]) > steady_mhz]
        held = above if above and above[-1][1] > cap_w else ()
        below = [each for each in rows if self.sm_mhz(each[0]) < steady_mhz]
        # the steady row is the answer to the cap, whatever a reading there says
        return [*held, (steady, min(self.power_w(kinds, steady), cap_w)), *below]

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
        if costs is None:
            return 1.0
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

    def category(self, kind: int) -> str:
        return self._kinds[kind].category

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
