"""One stream seen as a chain: what optimizers and the additive cost model need of a trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kdvfs_sim.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    from kdvfs_sim.core.precedence import Precedence


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chain:
    """The operations of one stream in order; all arrays have shape (n_launches,).

    ``kind``: row of the cost table. ``duration_ns``: as recorded. ``lag_ns``: idle time between
    the previous operation's end and this one's start at recorded clocks (0 for the first).
    ``min_lag_ns``: the part of it that no change of clocks can remove; a lower bound uses it, and
    ``floor_ns`` (None: nothing known): the least time from an operation's start to the next one's;
    ``floors_exact``: together these say what every gap is, as long as no request delays the host.
    ``precedence``: where times do not add, or may not once a request delays the host, makes the graph that
    says what they do; None elsewhere.
    ``hidden_ns`` (None: nothing): how much of a drained change may pass while the host's launch is still on
    its way, and so takes no time of its own.
    ``additive``: at every clock the binding dependency is the previous operation, so times add;
    otherwise ``reason`` says why a bound is only a bound.
    ``passes``: 0 forward, 1 backward, 2 optimizer, -1 unknown; None if the recording has no ranges.
    """

    kind: npt.NDArray[np.int32]
    duration_ns: npt.NDArray[np.int64]
    lag_ns: npt.NDArray[np.int64]
    min_lag_ns: npt.NDArray[np.int64]
    floor_ns: npt.NDArray[np.int64] | None = None
    floors_exact: bool = False
    precedence: Callable[[], Precedence] | None = None
    hidden_ns: npt.NDArray[np.int64] | None = None
    additive: bool = True
    reason: str = ""
    passes: npt.NDArray[np.int8] | None = None
    device: int = 0
    stream: int = 0

    def __post_init__(self) -> None:
        n = self.kind.shape[0]
        for name in ("duration_ns", "lag_ns", "min_lag_ns", "floor_ns", "hidden_ns"):
            array = getattr(self, name)
            if array is not None and array.shape != (n,):
                raise InputError(f"Chain: {name} has shape {array.shape}; expected {(n,)}")
        if (self.duration_ns < 0).any() or (self.lag_ns < 0).any() or (self.min_lag_ns < 0).any():
            raise InputError("Chain: durations and lags are at least 0 ns")
        if (self.min_lag_ns > self.lag_ns).any():
            raise InputError("Chain: min_lag_ns exceeds lag_ns")

    def __len__(self) -> int:
        return int(self.kind.shape[0])
