"""What was wrong with readings: counted by kind, said at the first of each kind, and when to give up."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from kdvfs_hw.measure.counter import EnergyWindow
from kdvfs_hw.measure.observer import STOOD_STILL
from kdvfs_sim.core.errors import DeviceError

IN_A_ROW: Final = 5
_NUMBER: Final = re.compile(r"\d[\d.]*")
_BUSY: Final = (
    "this machine is too busy to watch the GPU: let what else runs on its processors end, and start again"
)
_ILL_WATCHED: Final = "ill watched"


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """``n`` readings with the same trouble: ``reason`` of the first of them, numbers included."""

    n: int
    reason: str


class HopelessError(DeviceError):
    """Reading after reading had the same trouble: those that follow would have it too."""


@dataclass
class Troubles:
    """Takes every reading as it is made. ``void``: must not be used; ``no_energy``: only its time can be.

    Raises HopelessError, from ``note``, after ``IN_A_ROW`` readings in a row with the same trouble. An energy
    that the GPU does not give is no such trouble: time can be judged without.
    """

    say: Callable[[str], None] = lambda _: None
    n_readings: int = 0
    stopped: str = ""
    _void: dict[str, list[str]] = field(default_factory=dict)
    _no_energy: dict[str, list[str]] = field(default_factory=dict)
    _ill_watched: bool = False
    _in_a_row: tuple[str, int] = ("", 0)

    def note(self, void: str, energy: EnergyWindow) -> None:
        """One reading: why it is void ('': it is not), and the energy that was read with it.

        Raises HopelessError at the IN_A_ROW-th in a row with the same trouble.
        """
        self.n_readings += 1
        if void:
            self._count(self._void, void, "a reading is void")
        elif energy.reason:
            self._count(self._no_energy, energy.reason, "the energy of a reading is not known")
        ill_watched = energy.ill_watched or STOOD_STILL in void
        self._ill_watched |= ill_watched
        kind = _ILL_WATCHED if ill_watched else _kind(void)
        self._in_a_row = (kind, self._in_a_row[1] + 1 if kind == self._in_a_row[0] else 1)
        if kind and self._in_a_row[1] >= IN_A_ROW:
            words = (void or energy.reason) + (f"; {_BUSY}" if ill_watched else "")
            raise HopelessError(f"{IN_A_ROW} readings in a row were of no use, the last because {words}")

    def _count(self, found: dict[str, list[str]], reason: str, head: str) -> None:
        kind = _kind(reason)
        if kind not in found:
            self.say(f"{head}: {reason}")
        found.setdefault(kind, []).append(reason)

    @property
    def doubt(self) -> str:
        """Why readings that were not void need not be right, either: "" where nothing speaks against them."""
        return _BUSY if self.stopped and self._ill_watched else ""

    @property
    def n_void(self) -> int:
        return sum(map(len, self._void.values()))

    @property
    def void(self) -> tuple[Count, ...]:
        """By kind, the most frequent first."""
        return _counts(self._void)

    @property
    def no_energy(self) -> tuple[Count, ...]:
        return _counts(self._no_energy)

    def to_json(self) -> dict[str, Any]:
        return {
            "n_readings": self.n_readings,
            "n_void": self.n_void,
            "void": [{"n": each.n, "reason": each.reason} for each in self.void],
            "energy_not_known": [{"n": each.n, "reason": each.reason} for each in self.no_energy],
            "stopped": self.stopped or None,
        }

    def refuse_all_void(self, uuid: str) -> None:
        """Raises DeviceError if nothing is left to be said anything about."""
        if self.n_readings and self.n_void == self.n_readings:
            remedy = f"; {_BUSY}" if self._ill_watched else ""
            raise DeviceError(f"{uuid}: all {self.n_readings} readings are void: {_words(self.void)}{remedy}")

    def lines(self) -> Iterator[str]:
        """For people."""
        if self.stopped:
            yield f"stopped early: {self.stopped}"
        if self.n_void:
            yield (
                f"{self.n_void} of {self.n_readings} readings are void and were left out: {_words(self.void)}"
            )
        if self.no_energy:
            n = sum(each.n for each in self.no_energy)
            yield f"the energy of {n} of {self.n_readings} readings is not known: {_words(self.no_energy)}"
        if self._ill_watched and not self.stopped:
            yield _BUSY


def _words(counts: tuple[Count, ...]) -> str:
    return "; ".join(f"{each.n} because {each.reason}" for each in counts)


def _kind(reason: str) -> str:
    """The reason without its numbers."""
    return _NUMBER.sub("#", reason)


def _counts(found: dict[str, list[str]]) -> tuple[Count, ...]:
    ordered = sorted(found.values(), key=len, reverse=True)
    return tuple(Count(n=len(each), reason=each[0]) for each in ordered)
