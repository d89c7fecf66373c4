"""What repeated readings allow to be said: bootstrap intervals, and three answers, never two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np

Answer: TypeAlias = Literal["agrees", "disagrees", "not enough data"]
N_RESAMPLES: Final = 4000
CONFIDENCE: Final = 0.95
MIN_READINGS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean and its bootstrap interval; ``n`` readings."""

    mean: float
    low: float
    high: float
    n: int


def interval(values: Sequence[float]) -> Interval | None:
    """Percentile bootstrap of the mean; None from fewer than three readings."""
    data = np.asarray(values, dtype=np.float64)
    data = data[np.isfinite(data)]
    if data.size < MIN_READINGS:
        return None
    picks = np.random.default_rng(0).integers(0, data.size, size=(N_RESAMPLES, data.size))
    means = data[picks].mean(axis=1)
    tail = 50 * (1 - CONFIDENCE)
    low, high = (float(np.percentile(means, q)) for q in (tail, 100 - tail))
    return Interval(mean=float(data.mean()), low=low, high=high, n=int(data.size))


def judge(measured: Interval | None, predicted: float | None, tolerance: float) -> Answer:
    """Whether the whole interval lies within, or the whole outside, ``predicted`` x (1 +- tolerance)."""
    if measured is None or predicted is None:
        return "not enough data"
    least, most = sorted((predicted * (1 - tolerance), predicted * (1 + tolerance)))
    if least <= measured.low and measured.high <= most:
        return "agrees"
    if measured.high < least or measured.low > most:
        return "disagrees"
    return "not enough data"
