"""How the emulated silicon behaves: clocks, speed and power of a load, and what a clock change costs."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal, Protocol, TypeAlias

from kdvfs_sim.core.clocks import AUTO, AUTO_CLOCKS, ClockMhz, Clocks
from kdvfs_sim.core.domain_cost import DomainCost
from kdvfs_sim.core.errors import InputError
from kdvfs_sim.core.switching import SwitchCost

GAP: Final = "(gap)"  # the kind of launch that does nothing: a pause in the queue
Domain: TypeAlias = Literal["sm", "mem"]


@dataclass(frozen=True, slots=True)
class Operating:
    """Where the GPU runs: clocks, device power, and how long one launch of the load takes.

    ``duration_ns`` is infinite with no load. ``capped``: the power cap holds the SM clock below
    what the request allows.
    """

    sm_mhz: int
    mem_mhz: int
    power_w: float
    duration_ns: float = math.inf
    capped: bool = False


class Behaviour(Protocol):
    """The silicon, without time: everything that happens over time is the emulator's part.

    ``kinds`` are the loads it knows. ``steady`` answers for a load (None: idle) under a request that has
    landed, ``at`` for any clocks on the way there, ``switch`` for one domain's change between two
    requests. Units as in ``Operating``; pure and repeatable; raises InputError for a kind it does not
    know. The lists of clocks ascend. Promises nothing about the real GPU of the same name.
    """

    @property
    def sm_mhz(self) -> tuple[int, ...]: ...

    @property
    def mem_mhz(self) -> tuple[int, ...]: ...

    @property
    def kinds(self) -> tuple[str, ...]: ...

    def steady(self, kind: str | None, request: Clocks, /) -> Operating: ...

    def at(self, kind: str | None, sm_mhz: int, mem_mhz: int, /) -> Operating: ...

    def switch(self, domain: Domain, old: ClockMhz, new: ClockMhz, /) -> SwitchCost: ...


@dataclass(frozen=True, kw_only=True)
class Load:
    """One kernel kind by table row: duration and device power there, and the row a request gives."""

    duration_ns: tuple[float, ...]
    power_w: tuple[float, ...]
    effective: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class TableBehaviour:
    """Behaviour from a cost table: rows are requests and, at ``mhz``, the clocks they are observed as.

    ``rows`` holds (AUTO, AUTO). ``loads`` by kernel kind. ``idle_w`` per row, nothing running
    under that request; ``idle_mhz``: clocks of an idle GPU in the parts left to the driver.
    """

    rows: tuple[Clocks, ...]
    mhz: tuple[tuple[int, int], ...]
    loads: Mapping[str, Load]
    idle_w: tuple[float, ...]
    idle_mhz: tuple[int, int]
    sm: DomainCost
    mem: DomainCost
    _row: dict[Clocks, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        n_rows = len(self.rows)
        tables = [self.mhz, self.idle_w]
        for load in self.loads.values():
            tables += [load.duration_ns, load.power_w, load.effective]
            if not all(0 < d < math.inf for d in load.duration_ns) or not all(
                0 <= e < n_rows for e in load.effective
            ):
                raise InputError("emulated GPU: every duration must be known and every effective row exist")
        if any(len(table) != n_rows for table in tables):
            raise InputError(f"emulated GPU: a table does not have the {n_rows} rows of its clocks")
        if not all(0 <= p < math.inf for table in tables if table is not self.mhz for p in table):  # type: ignore[operator]
            raise InputError("emulated GPU: every power must be known and at least 0 W")
        object.__setattr__(self, "_row", {row: i for i, row in enumerate(self.rows)})
        if AUTO_CLOCKS not in self._row:
            raise InputError("emulated GPU: the table lacks the row for clocks left to the driver")

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        return tuple(self.loads)

    @cached_property
    def sm_mhz(self) -> tuple[int, ...]:
        return tuple(sorted({row.sm_mhz for row in self.rows if isinstance(row.sm_mhz, int)}))

    @cached_property
    def mem_mhz(self) -> tuple[int, ...]:
        """Memory clocks that can be locked; the one the driver picks if none can."""
        locked = {row.mem_mhz for row in self.rows if isinstance(row.mem_mhz, int)}
        return tuple(sorted(locked or {self.mhz[self._row[AUTO_CLOCKS]][1]}))

    def sm_clocks(self, mem_mhz: int) -> tuple[int, ...]:
        """SM clocks that go with a memory clock, ascending."""
        paired = sorted(
            row.sm_mhz for row in self.rows if row.mem_mhz == mem_mhz and isinstance(row.sm_mhz, int)
        )
        return tuple(paired) or self.sm_mhz

    def row(self, request: Clocks) -> int:
        """The row of a request; a clock between two listed ones gives the lower, as drivers clip."""
        sm = _clip(request.sm_mhz, self.sm_mhz)
        mem = _clip(request.mem_mhz, self.mem_mhz)
        for candidate in (Clocks(sm, mem), Clocks(sm, AUTO)):
            if candidate in self._row:
                return self._row[candidate]
        return self._row[AUTO_CLOCKS]

    def steady(self, kind: str | None, request: Clocks, /) -> Operating:
        row = self.row(request)
        if kind is None:
            sm, mem = (
                idle if part is AUTO else observed
                for idle, part, observed in zip(
                    self.idle_mhz, (self.rows[row].sm_mhz, self.rows[row].mem_mhz), self.mhz[row], strict=True
                )
            )
            return Operating(sm, mem, self.idle_w[row])
        load = self.load(kind)
        effective = load.effective[row]
        sm, mem = self.mhz[effective]
        capped = sm < self.mhz[row][0]
        return Operating(sm, mem, load.power_w[effective], load.duration_ns[effective], capped)

    def load(self, kind: str) -> Load:
        """The table of a kernel kind. Raises InputError for one it does not know."""
        try:
            return self.loads[kind]
        except KeyError:
            raise InputError(
                f"emulated GPU: no kernel kind {kind!r}; it knows {', '.join(self.loads)}"
            ) from None

    @cached_property
    def _by_memory(self) -> dict[int, tuple[tuple[int, ...], tuple[int, ...]]]:
        """Memory clock to SM clocks, ascending, and their rows; locked rows before the driver's own."""
        found: dict[int, dict[int, int]] = {}
        for i, (row, (sm, mem)) in enumerate(zip(self.rows, self.mhz, strict=True)):
            if row.sm_mhz is AUTO:
                found.setdefault(mem, {}).setdefault(sm, i)
            else:
                found.setdefault(mem, {})[sm] = i
        return {mem: tuple(zip(*sorted(rows.items()), strict=True)) for mem, rows in found.items()}  # type: ignore[misc]

    def at(self, kind: str | None, sm_mhz: int, mem_mhz: int, /) -> Operating:
        """Linear between the two rows around ``sm_mhz``, at the nearest memory clock of the table."""
        mem = min(self._by_memory, key=lambda known: abs(known - mem_mhz))
        clocks, rows = self._by_memory[mem]
        right = min(bisect_right(clocks, sm_mhz), len(clocks) - 1)
        left = max(right - 1, 0)
        span = clocks[right] - clocks[left]
        share = min(1.0, max(0.0, (sm_mhz - clocks[left]) / span)) if span else 0.0

        def between(table: tuple[float, ...]) -> float:
            return table[rows[left]] + share * (table[rows[right]] - table[rows[left]])

        if kind is None:
            return Operating(sm_mhz, mem_mhz, between(self.idle_w))
        load = self.load(kind)
        return Operating(sm_mhz, mem_mhz, between(load.power_w), between(load.duration_ns))

    def switch(self, domain: Domain, old: ClockMhz, new: ClockMhz, /) -> SwitchCost:
        cost = self.sm if domain == "sm" else self.mem
        _, switching_ns = cost.between(old, new)
        # the driver is called for the same clock too
        return SwitchCost(host_call_ns=cost.host_call_ns, switching_ns=switching_ns)

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": [str(row) for row in self.rows],
            "mhz": self.mhz,
            "loads": {kind: vars(load) for kind, load in self.loads.items()},
            "idle_w": self.idle_w,
            "idle_mhz": self.idle_mhz,
            "sm": [self.sm.host_call_ns, self.sm.up_ns, self.sm.down_ns],
            "mem": [self.mem.host_call_ns, self.mem.up_ns, self.mem.down_ns],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> TableBehaviour:
        def domain(values: list[int]) -> DomainCost:
            return DomainCost(host_call_ns=values[0], up_ns=values[1], down_ns=values[2])

        return cls(
            rows=tuple(Clocks.parse(row) for row in document["rows"]),
            mhz=tuple((sm, mem) for sm, mem in document["mhz"]),
            loads={
                kind: Load(**{name: tuple(values) for name, values in load.items()})
                for kind, load in document["loads"].items()
            },
            idle_w=tuple(document["idle_w"]),
            idle_mhz=(document["idle_mhz"][0], document["idle_mhz"][1]),
            sm=domain(document["sm"]),
            mem=domain(document["mem"]),
        )


def _clip(clock: ClockMhz, listed: tuple[int, ...]) -> ClockMhz:
    if not isinstance(clock, int) or not listed:
        return AUTO
    return listed[max(0, bisect_right(listed, clock) - 1)]
