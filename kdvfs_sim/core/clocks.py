"""Clock pairs, and the table of pairs a GPU accepts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias

from kdvfs_sim.core.checks import whole
from kdvfs_sim.core.errors import InputError, UnsupportedClocksError

MAX_MHZ: Final = 1_000_000  # far beyond any GPU: whoever gives more means another unit
_MAX_DIGITS: Final = 18  # of a number that is worth reading


class Auto(Enum):
    """The type of ``AUTO``: this clock is left to the driver's own governor."""

    AUTO = "auto"

    def __repr__(self) -> str:
        return "AUTO"

    def __str__(self) -> str:
        """As in text and files."""
        return self.value


AUTO: Final = Auto.AUTO
ClockMhz: TypeAlias = int | Auto


@dataclass(frozen=True, slots=True)
class Clocks:
    """A pair of requested or effective clocks, in MHz; either part may be ``AUTO``.

    AUTO is not "the highest clock": it is a request of its own (release the lock), with its own
    row in a cost table. A locked clock is an upper bound that the power cap may undercut.
    """

    sm_mhz: ClockMhz
    mem_mhz: ClockMhz

    def __post_init__(self) -> None:
        for name, value in (("sm_mhz", self.sm_mhz), ("mem_mhz", self.mem_mhz)):
            if value is AUTO:
                continue
            if type(value) is not int:
                try:
                    value = whole(name, value)
                except InputError:
                    raise InputError(
                        f"Clocks: {name} is {value!r}; a clock is a whole number of MHz or AUTO"
                    ) from None
                object.__setattr__(self, name, value)
            if value <= 0:
                raise InputError(f"Clocks: {name} is {value}; a clock is at least 1 MHz, or AUTO")
            if value > MAX_MHZ:
                raise InputError(
                    f"Clocks: {name} is over {MAX_MHZ}; 1 to {MAX_MHZ} MHz is right (another unit?)"
                )

    @property
    def sort_key(self) -> tuple[float, float]:
        """Memory clock, then SM clock; AUTO after every number."""
        return (
            float("inf") if isinstance(self.mem_mhz, Auto) else float(self.mem_mhz),
            float("inf") if isinstance(self.sm_mhz, Auto) else float(self.sm_mhz),
        )

    def __str__(self) -> str:
        return f"sm={self.sm_mhz},mem={self.mem_mhz}"

    @classmethod
    def parse(cls, text: str) -> Clocks:
        """Read ``sm=1410,mem=3201``; either value may be ``auto``; bare ``auto`` is both.

        Raises InputError with the offending text.
        """
        if text.strip().lower() == "auto":
            return AUTO_CLOCKS
        values: dict[str, ClockMhz] = {}
        for part in text.split(","):
            key, separator, value = part.strip().partition("=")
            value = value.strip().lower()
            if not separator or key not in ("sm", "mem") or key in values:
                raise InputError(f"clocks {text!r}: write sm=MHZ,mem=MHZ, either may be auto")
            if value == "auto":
                values[key] = AUTO
            elif value.isascii() and value.isdigit() and len(value) <= _MAX_DIGITS and int(value) > 0:
                values[key] = int(value)
            else:
                raise InputError(
                    f"clocks {text[:60]!r}: {key}={value[:60]!r} is neither a whole number of MHz nor auto; "
                    f"1 to {MAX_MHZ} is right"
                )
        return cls(values.get("sm", AUTO), values.get("mem", AUTO))


AUTO_CLOCKS: Final = Clocks(AUTO, AUTO)


@dataclass(frozen=True, slots=True)
class ClockTable:
    """The clock pairs a GPU accepts as requests, in a fixed order (memory, then SM, AUTO last).

    ``(AUTO, AUTO)`` is always a member. Iterating gives the pairs; ``index`` their position.
    """

    device_name: str
    pairs: tuple[Clocks, ...]
    _position: dict[Clocks, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        pairs = tuple(sorted(dict.fromkeys((*self.pairs, AUTO_CLOCKS)), key=lambda c: c.sort_key))
        object.__setattr__(self, "pairs", pairs)
        object.__setattr__(self, "_position", {pair: i for i, pair in enumerate(pairs)})

    @classmethod
    def grid(cls, device_name: str, sm_mhz: Iterable[int], mem_mhz: Iterable[int]) -> ClockTable:
        """Every SM clock or AUTO with every memory clock or AUTO."""
        sm: list[ClockMhz] = [*sm_mhz, AUTO]
        mem: list[ClockMhz] = [*mem_mhz, AUTO]
        return cls(device_name, tuple(Clocks(s, m) for m in mem for s in sm))

    def __len__(self) -> int:
        return len(self.pairs)

    def __iter__(self) -> Iterator[Clocks]:
        return iter(self.pairs)

    def __contains__(self, clocks: object) -> bool:
        return clocks in self._position

    def index(self, clocks: Clocks) -> int:
        """Position of ``clocks``. Raises UnsupportedClocksError naming the nearest pair."""
        try:
            return self._position[clocks]
        except KeyError:
            raise UnsupportedClocksError(str(clocks), self.device_name, str(self.nearest(clocks))) from None

    def nearest(self, clocks: Clocks) -> Clocks:
        """The listed pair closest to ``clocks``: for messages, never used in place of a request."""

        def distance(pair: Clocks) -> tuple[float, float]:
            return (_gap(pair.mem_mhz, clocks.mem_mhz), _gap(pair.sm_mhz, clocks.sm_mhz))

        return min(self.pairs, key=distance)


def _gap(a: ClockMhz, b: ClockMhz) -> float:
    if isinstance(a, Auto) or isinstance(b, Auto):
        return 0.0 if a is b else float("inf")
    return abs(a - b)
