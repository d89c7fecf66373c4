"""The steady governor: at which SM clock a kernel really runs under a request.

A request is an upper bound, AUTO is the highest clock the board uses by itself, and the power cap
acts on each kernel alone: the effective clock is the highest listed one that both allow.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int32]


def cap_position(power_w: npt.NDArray[np.float64], cap_w: float | None) -> Rows:
    """(n_kinds,): position of the highest SM clock whose power meets the cap.

    ``power_w`` (n_kinds, n_sm) is at ascending SM clocks and does not fall along them. Where even
    the lowest clock exceeds the cap the answer is the lowest: there is nothing below. A kind of
    unknown power (NaN) is not held back.
    """
    n_kinds, n_sm = power_w.shape
    if cap_w is None:
        return np.full(n_kinds, n_sm - 1, dtype=np.int32)
    over = power_w > cap_w
    first_over = np.where(over.any(axis=1), over.argmax(axis=1), n_sm)
    cap: Rows = np.maximum(first_over - 1, 0).astype(np.int32)
    return cap


def effective_position(requested: npt.NDArray[np.int32], cap: Rows) -> Rows:
    """(n_kinds, n_requests): the lower of what is requested (n_requests,) and what the cap allows."""
    effective: Rows = np.minimum(requested[None, :], cap[:, None])
    return effective


def position(sm_mhz: tuple[int, ...], limit_mhz: int) -> int:
    """Position of the highest listed SM clock at or below a limit; the lowest if none is."""
    return max(int(np.searchsorted(np.asarray(sm_mhz), limit_mhz, side="right")) - 1, 0)
