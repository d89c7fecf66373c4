"""Power over the last seconds, in a form whose copies cost little: a step of tiny kernels moves it often."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Final, NamedTuple

_CHUNK: Final = 256


class Breakpoint(NamedTuple):
    """From ``t_ns`` on the device draws ``power_w``; ``energy_j`` had been used by then."""

    t_ns: int
    energy_j: float
    power_w: float


class History:
    """Breakpoints in order of time, at least one. Full chunks are never changed, so copies share them."""

    def __init__(self, *points: Breakpoint) -> None:
        self._full: list[tuple[array[int], array[float]]] = []  # times; energy and power in turns
        self._open: list[Breakpoint] = []
        for point in points:
            self.append(point)

    def __len__(self) -> int:
        return sum(len(times) for times, _ in self._full) + len(self._open)

    @property
    def last(self) -> Breakpoint:
        return self._open[-1]

    def fork(self) -> History:
        other = History()
        other._full, other._open = list(self._full), list(self._open)
        return other

    def append(self, point: Breakpoint) -> None:
        if len(self._open) == _CHUNK:
            self._full.append(_packed(self._open))
            self._open = []
        self._open.append(point)

    def forget(self, before_ns: int) -> None:
        """Let go of chunks that say nothing about ``before_ns`` and later."""
        while len(self._full) > 1 and self._full[1][0][0] <= before_ns:
            del self._full[0]

    def energy_at(self, t_ns: int) -> float:
        """Energy used up to ``t_ns``, which may lie a little before the first breakpoint, J."""
        if self._full and t_ns < self._open[0].t_ns:
            times, values = self._full[
                max(0, bisect_right(self._full, t_ns, key=lambda chunk: chunk[0][0]) - 1)
            ]
            i = max(0, bisect_right(times, t_ns) - 1)
            return values[2 * i] + values[2 * i + 1] * (t_ns - times[i]) * 1e-9
        i = max(0, bisect_right(self._open, t_ns, key=lambda point: point.t_ns) - 1)
        point = self._open[i]
        return point.energy_j + point.power_w * (t_ns - point.t_ns) * 1e-9

    def to_bytes(self) -> bytes:
        """All of it, exactly; for ``from_bytes`` on this machine."""
        chunks = [*self._full, _packed(self._open)]
        return b"".join([times.tobytes() for times, _ in chunks] + [values.tobytes() for _, values in chunks])

    @classmethod
    def from_bytes(cls, data: bytes) -> History:
        n = len(data) // 24
        times, values = array("q"), array("d")
        times.frombytes(data[: 8 * n])
        values.frombytes(data[8 * n :])
        return cls(*map(Breakpoint, times, values[::2], values[1::2]))


def _packed(points: list[Breakpoint]) -> tuple[array[int], array[float]]:
    return (
        array("q", [point.t_ns for point in points]),
        array("d", [value for point in points for value in point[1:]]),
    )
