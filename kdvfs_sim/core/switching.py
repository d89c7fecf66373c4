"""What a clock change costs, and who asks for it when.

A switch protocol is data. The replay reads these fields; there are not four simulators.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from kdvfs_sim.core.checks import finite, one_of, whole
from kdvfs_sim.core.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Boundary: TypeAlias = Literal["periodic", "one-shot"]
Issuer: TypeAlias = Literal["launch_thread", "controller"]
DeviceQueue: TypeAlias = Literal["serial", "fifo", "latest_wins"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchCost:
    """The cost of one change ``old -> new``.

    ``host_call_ns``: the issuing thread is blocked. ``switching_ns``: from the request until the
    GPU runs at the new clocks. ``stall_ns``: the last part of that, without progress.
    """

    host_call_ns: int
    switching_ns: int
    stall_ns: int = 0
    extra_energy_j: float = 0.0

    def __post_init__(self) -> None:
        times = (self.host_call_ns, self.switching_ns, self.stall_ns)
        # by type first: models are asked for every pair of hundreds of clocks
        if not type(times[0]) is type(times[1]) is type(times[2]) is int or min(times) < 0:
            for name in ("host_call_ns", "switching_ns", "stall_ns"):
                object.__setattr__(self, name, whole(f"SwitchCost: {name}", getattr(self, name), 0))
        finite("SwitchCost: extra_energy_j", self.extra_energy_j)
        if self.stall_ns > self.switching_ns:
            raise InputError(f"{self}: stall_ns is a part of switching_ns and cannot exceed it")


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchProtocol:
    """Who asks for a change, when, and what waits for it.

    ``charged``: False makes every change free and immediate (the published assumption).
    ``issuer``: ``launch_thread`` delays that thread's later launches by the host call;
    ``controller`` blocks only itself.
    ``drains``: the anchor launch and everything else wait: the GPU runs empty, the request is
    made, and work goes on ``relaunch_ns`` after both the call and the change are done.
    ``anticipates``: the planner asks early, so that the change lands on the boundary.
    ``trigger_ns``: from the boundary to the request, for protocols that neither drain nor
    anticipate.
    ``device_queue``: ``serial`` issues a request only when the previous change has landed;
    ``fifo`` and ``latest_wins`` let the device hold several (replay only).
    """

    name: str
    charged: bool
    issuer: Issuer
    drains: bool
    anticipates: bool
    trigger_ns: int = 0
    relaunch_ns: int = 0
    device_queue: DeviceQueue = "serial"

    def __post_init__(self) -> None:
        one_of("SwitchProtocol: issuer", self.issuer, Issuer)
        one_of("SwitchProtocol: device_queue", self.device_queue, DeviceQueue)
        for name in ("trigger_ns", "relaunch_ns"):
            object.__setattr__(self, name, whole(f"SwitchProtocol: {name}", getattr(self, name), 0))

    def with_timing(self, *, trigger_ns: int | None = None, relaunch_ns: int | None = None) -> SwitchProtocol:
        """The same protocol with a GPU's own trigger and relaunch times."""
        return replace(
            self,
            trigger_ns=self.trigger_ns if trigger_ns is None else trigger_ns,
            relaunch_ns=self.relaunch_ns if relaunch_ns is None else relaunch_ns,
        )


FREE: Final = SwitchProtocol(name="free", charged=False, issuer="controller", drains=False, anticipates=False)
DRAIN: Final = SwitchProtocol(
    name="drain", charged=True, issuer="launch_thread", drains=True, anticipates=False
)
FOLLOW: Final = SwitchProtocol(
    name="follow", charged=True, issuer="launch_thread", drains=False, anticipates=False
)
LOOKAHEAD: Final = SwitchProtocol(
    name="lookahead", charged=True, issuer="controller", drains=False, anticipates=True
)
PROTOCOLS: Final[dict[str, SwitchProtocol]] = {p.name: p for p in (FREE, DRAIN, FOLLOW, LOOKAHEAD)}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SwitchTable:
    """Switch costs between all rows of a cost table: arrays of shape (n_clocks, n_clocks).

    Row is the old request, column the new one; the diagonal is zero, a no-op is free.
    ``assumed`` names the assumed numbers these costs lean on.
    """

    host_call_ns: npt.NDArray[np.int64]
    switching_ns: npt.NDArray[np.int64]
    stall_ns: npt.NDArray[np.int64]
    extra_energy_j: npt.NDArray[np.float64]
    assumed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        import numpy as np

        n = self.host_call_ns.shape[0]
        for name in ("host_call_ns", "switching_ns", "stall_ns", "extra_energy_j"):
            array = getattr(self, name)
            if array.shape != (n, n):
                raise InputError(f"SwitchTable: {name} has shape {array.shape}; expected {(n, n)}")
            if name.endswith("_ns") and array.dtype.kind != "i":
                raise InputError(f"SwitchTable: {name} holds {array.dtype}; whole nanoseconds are right")
            if not np.isfinite(array).all() or (array < 0).any():
                raise InputError(f"SwitchTable: {name} holds a negative or non-finite cost")
            if array.diagonal().any():
                raise InputError(f"SwitchTable: {name} charges a change to the same clocks; a no-op is free")
        if (self.stall_ns > self.switching_ns).any():
            raise InputError("SwitchTable: a stall_ns exceeds its switching_ns")

    @property
    def n_clocks(self) -> int:
        return int(self.host_call_ns.shape[0])

    @classmethod
    def zero(cls, n_clocks: int) -> SwitchTable:
        """Every change free and immediate."""
        import numpy as np

        zeros = np.zeros((n_clocks, n_clocks), dtype=np.int64)
        return cls(
            host_call_ns=zeros,
            switching_ns=zeros,
            stall_ns=zeros,
            extra_energy_j=np.zeros((n_clocks, n_clocks)),
        )

    @classmethod
    def uniform(cls, n_clocks: int, *, host_call_ns: int, switching_ns: int) -> SwitchTable:
        """The same cost between any two different rows."""
        import numpy as np

        off_diagonal = 1 - np.eye(n_clocks, dtype=np.int64)
        return cls(
            host_call_ns=host_call_ns * off_diagonal,
            switching_ns=switching_ns * off_diagonal,
            stall_ns=0 * off_diagonal,
            extra_energy_j=np.zeros((n_clocks, n_clocks)),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SwitchDraws:
    """What chance makes of each request of a schedule, by its number there: shapes (n_requests,).

    The change of request i takes ``round_half_even(factor[i] * switching_ns) + late_ns[i]`` instead of the
    table's ``switching_ns``, at least 0: a latency that is not constant, and a landing error (a governor
    that looks every so often). ``stall_ns`` is cut to that; the host call and everything else stay.
    """

    factor: npt.NDArray[np.float64]
    late_ns: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        import numpy as np

        if self.factor.ndim != 1 or self.factor.shape != self.late_ns.shape:
            raise InputError(
                f"SwitchDraws: shapes {self.factor.shape} and {self.late_ns.shape}; one of each per request"
            )
        if not np.isfinite(self.factor).all() or (self.factor < 0).any():
            raise InputError("SwitchDraws: factors are finite and at least 0")
