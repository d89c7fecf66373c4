"""The narrow waist: what every kernel kind costs at every clock.

Measured sweeps, fitted models and published tables all become a ``CostTable``; exact methods and
the fast evaluator read nothing else about the GPU's speed and power.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from kdvfs_sim.core.clocks import AUTO_CLOCKS, Clocks
from kdvfs_sim.core.errors import InputError, UnsupportedClocksError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, kw_only=True, eq=False)
class CostTable:
    """Kernel kinds x clocks.

    Rows of ``clocks`` are both requests and effective clocks. ``effective[kind, request]`` is the
    row at which a kernel of that kind really runs, alone, when ``request`` is in force (power cap
    and governor included). ``duration_ns`` and ``power_w`` are given at effective clocks.

    Shapes: ``duration_ns``, ``power_w``, ``effective``: (n_kinds, n_clocks); ``idle_power_w``:
    (n_clocks,), device power with nothing running under that request. ``power_w`` is total device
    power while the kind runs alone. NaN marks what is not known; reading it gives a null energy,
    never 0. Only the ratio of two durations of one kind is used with a recorded launch.

    ``recorded`` is the row of the trace's recorded clocks. ``requestable`` marks the rows a
    schedule may ask for. ``cap_w`` (or None) is the limit used when kernels overlap.
    ``recorded_effective`` (n_kinds,): the rows at which the recording ran, if that is not
    ``effective[:, recorded]`` (a table for another power limit than the recording's).
    ``assumed`` names the assumed numbers the table leans on; results carry it.
    """

    kinds: tuple[str, ...]
    clocks: tuple[Clocks, ...]
    duration_ns: npt.NDArray[np.float64]
    power_w: npt.NDArray[np.float64]
    effective: npt.NDArray[np.int32]
    idle_power_w: npt.NDArray[np.float64]
    recorded: int
    requestable: npt.NDArray[np.bool_]
    cap_w: float | None = None
    recorded_effective: npt.NDArray[np.int32] | None = None
    assumed: tuple[str, ...] = ()
    source: str = ""
    _row: dict[Clocks, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        import numpy as np

        shape = (len(self.kinds), len(self.clocks))
        for name in ("duration_ns", "power_w", "effective"):
            array = getattr(self, name)
            if array.shape != shape:
                raise InputError(
                    f"CostTable: {name} has shape {array.shape}; expected {shape} (kinds, clocks)"
                )
        for name in ("idle_power_w", "requestable"):
            array = getattr(self, name)
            if array.shape != shape[1:]:
                raise InputError(f"CostTable: {name} has shape {array.shape}; expected {shape[1:]} (clocks,)")
        if len(set(self.clocks)) != len(self.clocks):
            raise InputError("CostTable: a clock pair is listed twice")
        if not 0 <= self.recorded < shape[1]:
            raise InputError(f"CostTable: recorded row {self.recorded} is outside 0..{shape[1] - 1}")
        if self.effective.size and not (self.effective.min() >= 0 and self.effective.max() < shape[1]):
            raise InputError("CostTable: effective points outside the rows of clocks")
        reference = self.recorded_effective
        if reference is not None and reference.shape != shape[:1]:
            raise InputError(
                f"CostTable: recorded_effective has shape {reference.shape}; expected {shape[:1]}"
            )
        if (self.duration_ns <= 0).any() or np.isinf(self.duration_ns).any():
            raise InputError("CostTable: durations are positive, or NaN where unknown")
        if (self.power_w < 0).any() or (self.idle_power_w < 0).any():
            raise InputError("CostTable: power is at least 0 W, or NaN where unknown")
        object.__setattr__(self, "_row", {pair: i for i, pair in enumerate(self.clocks)})

    @property
    def n_kinds(self) -> int:
        return len(self.kinds)

    @property
    def n_clocks(self) -> int:
        return len(self.clocks)

    @property
    def auto(self) -> int:
        """Row of (AUTO, AUTO). Raises InputError if the table has none."""
        return self.index(AUTO_CLOCKS)

    def index(self, clocks: Clocks) -> int:
        """Row of ``clocks``. Raises UnsupportedClocksError naming the nearest row."""
        try:
            return self._row[clocks]
        except KeyError:
            nearest = min(
                self.clocks,
                key=lambda c: tuple(
                    abs(a - b) if a != b else 0.0 for a, b in zip(c.sort_key, clocks.sort_key, strict=True)
                ),
            )
            where = self.source or "this cost table"
            raise UnsupportedClocksError(str(clocks), where, str(nearest)) from None

    def with_node_power(self, node_power_w: float) -> CostTable:
        """The same table with the rest of the node's power added to every state."""
        if not node_power_w:
            return self
        return replace(
            self,
            power_w=self.power_w + node_power_w,
            idle_power_w=self.idle_power_w + node_power_w,
            cap_w=None if self.cap_w is None else self.cap_w + node_power_w,
        )

    def with_time_margin(self, relative: float) -> CostTable:
        """The same table with durations longer by ``relative`` wherever the clocks are not those recorded.

        What was recorded took as long as it took; only what a model says of other clocks can be wrong.
        """
        if not relative:
            return self
        import numpy as np

        ran_at = self.recorded_effective
        rows = self.effective[:, self.recorded] if ran_at is None else ran_at
        factor = np.full(self.duration_ns.shape, 1.0 + relative)
        factor[np.arange(self.n_kinds), rows] = 1.0
        return replace(self, duration_ns=self.duration_ns * factor)

    @cached_property
    def ratio(self) -> npt.NDArray[np.float64]:
        """(n_kinds, n_clocks): duration of a kind *under a request*, alone, over its recorded one.

        Exactly 1.0 where the effective row equals the recorded one, known or not.
        """
        import numpy as np

        kinds = np.arange(self.n_kinds)
        recorded = self.effective[:, self.recorded]
        if self.recorded_effective is not None:
            recorded = self.recorded_effective
        under_request = self.duration_ns[kinds[:, None], self.effective]
        ratio = under_request / self.duration_ns[kinds, recorded][:, None]
        same: npt.NDArray[np.float64] = np.where(self.effective == recorded[:, None], 1.0, ratio)
        return same

    @cached_property
    def request_power_w(self) -> npt.NDArray[np.float64]:
        """(n_kinds, n_clocks): device power while a kind runs alone under a request."""
        import numpy as np

        power: npt.NDArray[np.float64] = self.power_w[np.arange(self.n_kinds)[:, None], self.effective]
        return power
