"""Numbers about a GPU, each with its source and the kind of that source."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Final, Literal, TypeAlias

from kdvfs_sim.core.checks import one_of
from kdvfs_sim.core.clocks import AUTO, MAX_MHZ, ClockMhz, Clocks, ClockTable
from kdvfs_sim.core.errors import InputError
from kdvfs_sim.core.kinds import CATEGORIES

FactKind: TypeAlias = Literal["measured", "datasheet", "paper", "assumed"]
Level: TypeAlias = Literal["low", "nominal", "high"]
FACT_KINDS: Final[tuple[FactKind, ...]] = ("measured", "datasheet", "paper", "assumed")

# Every number an entry may hold. The unit is the suffix of the name; a name without one is a count
# or a ratio. `kernel.<pattern>` takes the same fields as a category.
MEANINGS: Final[dict[str, str]] = {
    "clocks.ceiling_mhz": "highest SM clock the board runs under load, whatever is requested",
    "clocks.auto_ceiling_mhz": "highest SM clock it runs under load when the SM clock is AUTO",
    "clocks.default_memory_mhz": "memory clock under load when the memory clock is AUTO",
    "clocks.swept_from_mhz": "lowest SM clock that a fitted entry was measured at: none below is offered",
    "clocks.swept_to_mhz": "highest SM clock that a fitted entry was measured at: none above is offered",
    "clocks.swept_memory_from_mhz": "the same for memory clocks: of those below, only the default is offered",
    "clocks.swept_memory_to_mhz": "the same for memory clocks: of those above, only the default is offered",
    "power.limit_w": "default power limit",
    "power.limit_min_w": "lowest power limit that can be set",
    "power.limit_max_w": "highest power limit that can be set",
    "power.idle_w": "with a context, nothing running, clocks AUTO",
    "power.idle_no_context_w": "without a context",
    "power.floor_w": "part of idle power that the SM clock does not change, at the default memory clock",
    "power.memory_w": "part of floor_w proportional to the memory clock",
    "voltage.knee_mhz": "SM clock up to which the voltage is flat",
    "voltage.rise": "voltage above the flat part, relative to it, at ceiling_mhz; linear from the knee",
    "latency.exponent": "p of ((a/f_sm)^p + (b/f_mem)^p)^(1/p) + c",
    "latency.residual_p95": "95 % of readings take at most this much longer than the model, relative",
    "rates.n_sm": "streaming multiprocessors",
    "rates.tensor_flop_per_clock": "dense 16-bit, 32-bit accumulation, whole chip, per SM clock",
    "rates.vector_flop_per_clock": "32-bit, whole chip, per SM clock",
    "rates.dram_bytes_per_clock": "per memory clock as the driver states it",
    "switching.sm.host_call_ns": "the call that requests an SM clock blocks its caller",
    "switching.sm.switching_ns": "from the request until the SMs run at the new clock",
    "switching.sm.up_ns": "switching_ns to a higher clock, where known apart",
    "switching.sm.down_ns": "switching_ns to a lower clock, where known apart",
    "switching.memory.host_call_ns": "the call that requests a memory clock blocks its caller",
    "switching.memory.switching_ns": "from the request until the memory runs at the new clock",
    "switching.memory.up_ns": "switching_ns to a higher clock, where known apart",
    "switching.memory.down_ns": "switching_ns to a lower clock, where known apart",
    "host_link.power_w": "device power during a copy from or to the host; unknown: that of communication",
    "protocol.trigger_ns": "from a launch boundary until a request that follows it is made",
    "protocol.relaunch_ns": "from a finished change on a drained GPU until the next kernel runs",
    "sensor.period_ns": "update period of the power reading",
    "sensor.window_ns": "averaging window of the instant power reading",
    "governor.sense_ns": "from a load change until the governor moves the SM clock",
    "governor.fall_ns": "length of a fall",
    "governor.rise_ns": "length of a rise",
    "governor.steps": "equal steps of such a move",
    "governor.overshoot": "how much too far a fall goes, relative to its depth",
    "governor.budget.tick_ns": "the governor looks at the power so often",
    "governor.budget.window_ns": "the mean over so long is held to the limit; unknown: each kernel is",
    "governor.budget.gain": "allowed power per power that the mean lies below the limit",
    "governor.budget.burst": "power held from tick to tick while the mean is low, over the limit",
    "governor.budget.gemm_burst": "burst while matrix products run, where known apart",
    "governor.budget.burst_gain": "a tick moves the allowed power by so much of what was off from that",
    "governor.budget.most": "highest power allowed at all, over the limit",
    "governor.budget.least": "what is allowed however high the mean, over the limit",
    "governor.budget.rise": "a tick raises the allowed power at most so much, over the limit",
}
KERNEL_FIELDS: Final[dict[str, str]] = {
    "sm_mhz": "SM clock at which such kernels run under AUTO and the default power limit",
    "power_w": "device power there",
    "compute_share": "SM-bound time over SM-bound plus memory-bound time there; absent: clocks do not matter",
    "fixed_share": "share of the duration there that no clock changes",
    "work_share": "share of the dynamic power there that follows the work rate, not the clock",
}
_UNITS: Final = {"mhz": "MHz", "w": "W", "ns": "ns"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One number. ``low`` and ``high`` bound what is believable; sources that disagree are both in."""

    value: float
    source: str
    kind: FactKind
    low: float | None = None
    high: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if self.kind not in FACT_KINDS:
            raise InputError(f"kind is {self.kind!r}; one of {', '.join(FACT_KINDS)} is right")
        if not self.source:
            raise InputError("source is empty; say where the number comes from")
        bounds = (self.at("low"), self.value, self.at("high"))
        if any(math.isnan(bound) or bound < 0 for bound in bounds) or list(bounds) != sorted(bounds):
            raise InputError(f"low, value, high are {bounds}; numbers of at least 0 in this order are right")

    def at(self, level: Level) -> float:
        """``value``, or the end of the range where one is given."""
        one_of("level", level, Level)
        bound = self.low if level == "low" else self.high if level == "high" else None
        return self.value if bound is None else bound


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockList:
    """The SM clocks a GPU lists, ascending. Never assumed: read from a board or a datasheet."""

    values_mhz: tuple[int, ...]
    source: str
    kind: FactKind
    note: str = ""

    def __post_init__(self) -> None:
        if self.kind not in ("measured", "datasheet"):
            raise InputError(f"kind is {self.kind!r}; a clock table must be measured or from a datasheet")
        if not self.source:
            raise InputError("source is empty; say where the clock table comes from")
        values = self.values_mhz
        if not values or values[0] <= 0 or list(values) != sorted(set(values)) or values[-1] > MAX_MHZ:
            raise InputError(f"the SM clocks are not an ascending list of whole MHz from 1 to {MAX_MHZ}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryClock:
    """A memory clock that the driver lists.

    ``requestable``: False for a clock that is listed but cannot be locked, or that nobody has
    tried; the default memory clock may always be asked for, AUTO gives the same.
    ``sm_last_mhz``: highest SM clock that the board holds together with it.
    """

    mhz: int
    source: str
    kind: FactKind
    requestable: bool = True
    sm_last_mhz: int | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if self.kind not in FACT_KINDS or not self.source:
            raise InputError(f"memory clock {self.mhz}: kind or source is missing")
        if not 0 < self.mhz <= MAX_MHZ:
            raise InputError(f"memory clock {self.mhz}: a clock is 1 to {MAX_MHZ} MHz")


@dataclass(frozen=True, slots=True, kw_only=True)
class FactRow:
    """One line of a printed entry. ``value`` is None where unknown; ``source`` then says why."""

    name: str
    value: float | str | None
    unit: str
    low: float | None
    high: float | None
    kind: str
    source: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class GpuFacts:
    """One GPU as the catalogue, or a fitted file, describes it.

    ``device_names``: patterns of the names that recordings use. ``facts``: by dotted path, see
    ``MEANINGS``; ``category.<category>.<field>`` and ``kernel.<name pattern>.<field>`` take the
    fields of ``KERNEL_FIELDS``. ``unknown``: why a path is missing. ``file``: where a user's own entry was
    read; "" for the catalogue's.
    """

    slug: str
    name: str
    generation: str
    device_names: tuple[str, ...]
    sm: ClockList
    memory: tuple[MemoryClock, ...]
    facts: Mapping[str, Fact]
    unknown: Mapping[str, str] = field(default_factory=dict)
    file: str = field(default="", compare=False)

    @property
    def title(self) -> str:
        """The name, with the file of a user's own entry: its numbers are not the catalogue's."""
        return f"{self.name} ({Path(self.file).name})" if self.file else self.name

    def __post_init__(self) -> None:
        memory = [clock.mhz for clock in self.memory]
        if not memory or memory != sorted(set(memory)):
            raise InputError(f"gpu {self.slug}: the memory clocks are not an ascending list")
        for path in (*self.facts, *self.unknown):
            check_path(path)
        both = sorted(set(self.facts) & set(self.unknown))
        if both:
            raise InputError(f"gpu {self.slug}: {both[0]} is given and called unknown")
        offered = [clock.mhz for clock in self.memory if clock.requestable]
        if self.default_memory_mhz not in offered:
            raise InputError(
                f"gpu {self.slug}: clocks.default_memory_mhz is {self.default_memory_mhz}; a requestable "
                f"one is right: {', '.join(map(str, offered))}"
            )

    def get(self, path: str) -> Fact | None:
        """The fact, or None where it is unknown. Raises InputError for a path nobody can know."""
        fact = self.facts.get(path)
        if fact is None:
            check_path(path)
        return fact

    def need(self, path: str) -> Fact:
        """The fact. Raises InputError naming the GPU, the path and why it is unknown."""
        fact = self.get(path)
        if fact is None:
            reason = self.unknown.get(path, "the entry does not give it")
            raise InputError(
                f"gpu {self.slug}: {path} is unknown ({reason}); "
                "add it to a TOML file and name that as the GPU"
            )
        return fact

    def value(self, path: str, default: float) -> float:
        """The number at ``path``, or ``default`` where the entry has none."""
        fact = self.get(path)
        return default if fact is None else fact.value

    def with_facts(self, facts: Mapping[str, Fact]) -> GpuFacts:
        """The same GPU with some numbers replaced or added, as a fit does."""
        unknown = {path: why for path, why in self.unknown.items() if path not in facts}
        return replace(self, facts={**self.facts, **facts}, unknown=unknown)

    @cached_property
    def kernel_patterns(self) -> tuple[str, ...]:
        """Name patterns of kernels with numbers of their own, in the entry's order."""
        paths = (path[7:].rpartition(".")[0] for path in self.facts if path.startswith("kernel."))
        return tuple(dict.fromkeys(paths))

    @property
    def default_memory_mhz(self) -> int:
        return round(self.value("clocks.default_memory_mhz", self.memory[-1].mhz))

    @property
    def ceiling_mhz(self) -> int:
        """Highest SM clock reached under load; the highest listed one if nothing else is known."""
        return round(self.value("clocks.ceiling_mhz", self.sm.values_mhz[-1]))

    @property
    def auto_ceiling_mhz(self) -> int:
        return round(self.value("clocks.auto_ceiling_mhz", self.ceiling_mhz))

    def sm_clocks(self, memory: MemoryClock) -> tuple[int, ...]:
        """The SM clocks that go with a memory clock, ascending."""
        last = memory.sm_last_mhz
        return tuple(mhz for mhz in self.sm.values_mhz if last is None or mhz <= last)

    @property
    def swept_mhz(self) -> tuple[int, int] | None:
        """The SM clocks between which an entry was measured; None for one that was not fitted to a sweep."""
        low, high = self.get("clocks.swept_from_mhz"), self.get("clocks.swept_to_mhz")
        if low is None and high is None:
            return None
        values = self.sm.values_mhz
        return (
            values[0] if low is None else round(low.value),
            values[-1] if high is None else round(high.value),
        )

    def offers(self, clocks: Clocks) -> bool:
        """May a schedule ask for them? Not outside of a sweep that the entry was fitted to: AUTO is left to
        the driver, and the default memory clock is what AUTO gives."""
        sm, mem = clocks.sm_mhz, clocks.mem_mhz
        if self.swept_mhz is not None and sm is not AUTO and not self.swept_mhz[0] <= sm <= self.swept_mhz[1]:
            return False
        if mem is AUTO or mem == self.default_memory_mhz:
            return True
        low = self.value("clocks.swept_memory_from_mhz", 0)
        return low <= mem <= self.value("clocks.swept_memory_to_mhz", math.inf)

    def requestable_memory(self, *, untested: bool = False) -> tuple[MemoryClock, ...]:
        """Memory clocks that a schedule may ask for: the default one and those known to be lockable."""
        return tuple(clock for clock in self.memory if untested or clock.requestable)

    def clock_table(self, *, untested: bool = False) -> ClockTable:
        """The requests this GPU accepts: SM clocks and AUTO with memory clocks and AUTO."""
        pairs: list[Clocks] = []
        for memory in self.requestable_memory(untested=untested):
            mems: tuple[ClockMhz, ...] = (memory.mhz,)
            if memory.mhz == self.default_memory_mhz:
                mems = (memory.mhz, AUTO)
            pairs += [Clocks(sm, mem) for mem in mems for sm in with_auto(self.sm_clocks(memory))]
        return ClockTable(self.name, tuple(pairs))

    def assumed(self, prefixes: Iterable[str]) -> tuple[str, ...]:
        """Names of the assumed numbers under the given paths, as results carry them."""
        starts = tuple(prefixes)
        return tuple(
            f"{self.slug}.{path}"
            for path, fact in self.facts.items()
            if fact.kind == "assumed" and path.startswith(starts)
        )


def with_auto(clocks_mhz: Iterable[int]) -> tuple[ClockMhz, ...]:
    """The clocks and AUTO after them."""
    return (*clocks_mhz, AUTO)


def check_path(path: str) -> None:
    """Raises InputError unless ``path`` names a number that an entry may hold."""
    if path in MEANINGS:
        return
    head, _, rest = path.partition(".")
    if head == "host_link" and rest in KERNEL_FIELDS:
        return
    name, _, last = rest.rpartition(".")
    if last in KERNEL_FIELDS and name:
        if head == "kernel" or (head == "category" and name in CATEGORIES):
            return
        if head == "category":
            raise InputError(f"{path}: no category {name!r}; one of {', '.join(CATEGORIES)} is right")
    near = get_close_matches(path, MEANINGS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(MEANINGS)}"
    raise InputError(f"{path}: no such number; {hint}")


def unit_of(path: str) -> str:
    """The unit, from the suffix of the name; '' for counts and ratios."""
    last = path.rpartition(".")[2]
    if last.endswith("flop_per_clock"):
        return "flop/clock"
    if last.endswith("bytes_per_clock"):
        return "B/clock"
    return _UNITS.get(last.rpartition("_")[2], "")


def rows(gpu: GpuFacts) -> Iterator[FactRow]:
    """Everything an entry says, clock lists first, unknown numbers last, for printing."""
    values = gpu.sm.values_mhz
    yield FactRow(
        name="clocks.sm_mhz",
        value=f"{values[0]}..{values[-1]} ({len(values)})",
        unit="MHz",
        low=values[0],
        high=values[-1],
        kind=gpu.sm.kind,
        source=gpu.sm.source,
        note=gpu.sm.note,
    )
    for clock in gpu.memory:
        limits = [] if clock.requestable else ["not offered as a request"]
        if clock.sm_last_mhz is not None:
            limits.append(f"held only up to SM {clock.sm_last_mhz} MHz")
        note = "; ".join((*limits, clock.note) if clock.note else limits)
        yield FactRow(
            name="clocks.memory_mhz",
            value=clock.mhz,
            unit="MHz",
            low=None,
            high=None,
            kind=clock.kind,
            source=clock.source,
            note=note,
        )
    for path, fact in gpu.facts.items():
        yield FactRow(
            name=path,
            value=fact.value,
            unit=unit_of(path),
            low=fact.low,
            high=fact.high,
            kind=fact.kind,
            source=fact.source,
            note=fact.note,
        )
    for path, reason in gpu.unknown.items():
        yield FactRow(
            name=path, value=None, unit=unit_of(path), low=None, high=None, kind="unknown", source=reason
        )
