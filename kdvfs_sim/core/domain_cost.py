"""What a change costs in one clock domain, for the catalogue's switching and for emulated GPUs.

A room of its own without numpy at its door: the guardian of an emulated GPU starts with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kdvfs_sim.core.clocks import Auto, ClockMhz

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainCost:
    """One clock domain: the call blocks its caller, the change takes its time, up is not down.

    Releasing to AUTO counts as up: the governor's own clock is the highest that is allowed.
    """

    host_call_ns: int
    up_ns: int
    down_ns: int

    def between(self, old: ClockMhz, new: ClockMhz) -> tuple[int, int]:
        """Host call and switching time of one change; both 0 for the same clock."""
        if old == new:
            return 0, 0
        return self.host_call_ns, self.up_ns if _height(new) > _height(old) else self.down_ns

    def table(self, clocks: Sequence[ClockMhz]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """``between`` for all pairs: two arrays of shape (n, n), rows old, columns new."""
        import numpy as np

        height = np.array([_height(mhz) for mhz in clocks])
        old, new = height[:, None], height[None, :]
        changed = old != new
        switching = np.where(new > old, self.up_ns, self.down_ns) * changed
        return self.host_call_ns * changed.astype(np.int64), switching.astype(np.int64)


def _height(mhz: ClockMhz) -> float:
    return math.inf if isinstance(mhz, Auto) else mhz
