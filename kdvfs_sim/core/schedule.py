"""Schedules: an ordered list of clock requests, each anchored at a launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kdvfs_sim.core.checks import one_of, whole
from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.core.errors import InputError, ScheduleError
from kdvfs_sim.core.switching import Boundary


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockRequest:
    """Ask for ``clocks`` ``offset_ns`` after the anchor operation starts.

    The anchor is operation number ``launch`` (0-based, in stream order, copies and memory sets
    included) of ``stream`` on ``device``. None is the trace's only stream, or device: where it has several,
    the replay refuses that. Under a draining or free protocol the change applies before the anchor starts,
    and ``offset_ns`` is 0. Raises ScheduleError for anything but Clocks and whole numbers, the launch and the
    offset at least 0.
    """

    clocks: Clocks
    launch: int
    offset_ns: int = 0
    stream: int | None = None
    device: int | None = None

    def __post_init__(self) -> None:
        # by type first: schedules of a million requests are made, and nearly all hold ints
        if not (
            type(self.launch) is type(self.offset_ns) is type(self.stream) is type(self.device) is int
            and type(self.clocks) is Clocks
        ):
            self._check_types()
        if self.launch < 0 or self.offset_ns < 0:
            raise ScheduleError(str(self), "launch and offset_ns are at least 0")

    def _check_types(self) -> None:
        try:
            for name in ("launch", "offset_ns", "stream", "device"):
                value = getattr(self, name)
                if value is not None or name in ("launch", "offset_ns"):
                    object.__setattr__(self, name, whole(name, value))
        except InputError as error:
            raise ScheduleError(str(self), str(error)) from None
        if not isinstance(self.clocks, Clocks):
            raise ScheduleError(
                str(self), f"clocks is {self.clocks!r}; Clocks are right, Clocks.parse reads them from text"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Clock requests in the order in which they are made, device-wide.

    ``protocol`` names how they were planned to be applied; ``boundary`` whether the trace is one
    iteration of many. Neighbouring requests may ask for the same clocks: such a no-op is free, and
    ``normalized`` drops it. A schedule without requests leaves the start clocks alone (one-shot).
    """

    requests: tuple[ClockRequest, ...]
    protocol: str = "free"
    boundary: Boundary = "periodic"

    def __post_init__(self) -> None:
        one_of("Schedule: boundary", self.boundary, Boundary)

    def __len__(self) -> int:
        return len(self.requests)

    def __bool__(self) -> bool:
        return True  # without requests it is a schedule all the same, and not "no schedule"

    @property
    def is_static(self) -> bool:
        """One setting for everything."""
        return len(self) == 1 and self.requests[0].launch == 0 and self.requests[0].offset_ns == 0

    def normalized(self) -> Schedule:
        """The same schedule without requests that ask for the clocks already requested."""
        kept: list[ClockRequest] = []
        last: dict[int | None, Clocks] = {}
        one_device = any(request.device is None for request in self.requests)  # or none of them fits
        for request in self.requests:
            device = None if one_device else request.device
            if last.get(device) != request.clocks:
                kept.append(request)
                last[device] = request.clocks
        return Schedule(requests=tuple(kept), protocol=self.protocol, boundary=self.boundary)

    @classmethod
    def static(
        cls,
        clocks: Clocks,
        *,
        stream: int | None = None,
        device: int | None = None,
        protocol: str = "free",
        boundary: Boundary = "periodic",
    ) -> Schedule:
        """One setting for everything: a single request before the first operation."""
        return cls(
            requests=(ClockRequest(clocks=clocks, launch=0, stream=stream, device=device),),
            protocol=protocol,
            boundary=boundary,
        )

    @classmethod
    def from_assignment(
        cls,
        clocks: Sequence[Clocks],
        *,
        stream: int | None = None,
        device: int | None = None,
        protocol: str = "free",
        boundary: Boundary = "periodic",
    ) -> Schedule:
        """One clock pair per operation of a stream, in order; requests only where it changes."""
        requests = tuple(
            ClockRequest(clocks=pair, launch=i, stream=stream, device=device)
            for i, pair in enumerate(clocks)
            if i == 0 or pair != clocks[i - 1]
        )
        return cls(requests=requests, protocol=protocol, boundary=boundary)
