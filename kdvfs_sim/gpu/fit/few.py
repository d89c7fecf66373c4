"""Few measurements: times and powers of every kernel at every clock, with intervals, from what was read so
far.

A kernel read at three clocks, at one, or only seen in a trace (its time at the clocks of the recording)
gets the same kind of answer as a fully swept one, with an interval as wide as its ignorance.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from kdvfs_sim.core.clocks import Auto, Clocks
from kdvfs_sim.core.errors import InputError
from kdvfs_sim.gpu.fit.curves import power_shapes, time_shapes
from kdvfs_sim.gpu.fit.readings import Floats, Readings
from kdvfs_sim.gpu.fit.shared import ClockSpace, CurveModel, learn

# Relative noise of one reading where repeats do not say: loops of a second on a quiet board.
READING_NOISE: Final = 0.003
LEVEL: Final = 0.9  # of every interval
_DRAWS: Final = 400
# A category's own powers are used once it has this many kernels with a power.
_MIN_CATEGORY: Final = 4


@dataclass(frozen=True, kw_only=True, eq=False)
class Prediction:
    """Median and central interval at each clock, arrays of shape (n_kernels, n_clocks)."""

    middle: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedModel:
    """Time and power curves of all kernels of one GPU. ``baseline``: column that others are compared with.

    ``time_level`` and ``power_level`` (n_kernels,): logs that the curves are relative to; NaN where a
    kernel has no reading of that quantity. ``widen``: factors on the half-widths of time and power
    intervals, from cross-validation.
    """

    readings: Readings
    baseline: int
    time: CurveModel
    power: CurveModel
    time_level: Floats
    power_level: Floats
    time_widen: Floats
    power_widen: Floats

    def time_s(self) -> Prediction:
        """NaN for a kernel without any time."""
        return self._predict("time")

    def power_w(self) -> Prediction:
        """A kernel without any power gets the powers of its category, or of the GPU."""
        return self._predict("power")

    def relative_draws(self, kernel: int, n: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Log time and log energy relative to the baseline, (n, n_clocks) each, right clock by clock."""
        time = self.time.draws(kernel, n, rng, relative_to=self.baseline)
        return time, time + self.power.draws(kernel, n, rng, relative_to=self.baseline)

    def _predict(self, quantity: str) -> Prediction:
        rng = np.random.default_rng(0)
        model, levels, widen = (
            (self.time, self.time_level, self.time_widen)
            if quantity == "time"
            else (self.power, self.power_level, self.power_widen)
        )
        tails = [0.5 - LEVEL / 2.0, 0.5, 0.5 + LEVEL / 2.0]
        n_kernels, n_clocks = self.readings.n_kernels, self.readings.n_clocks
        bands = np.full((3, n_kernels, n_clocks), np.nan)
        for k in range(n_kernels):
            if np.isfinite(levels[k]):
                drawn = levels[k] + model.draws(k, _DRAWS, rng)
            elif quantity == "power":
                drawn = self._usual_power(k, rng)[:, None] + model.draws(
                    k, _DRAWS, rng, relative_to=self.baseline
                )
            else:
                continue
            low, middle, high = np.quantile(drawn, tails, axis=0)
            bands[:, k] = (
                middle - widen[k] * (middle - low),
                middle,
                middle + widen[k] * (high - middle),
            )
        low, middle, high = np.exp(bands)
        return Prediction(middle=middle, low=low, high=high)

    def _usual_power(self, kernel: int, rng: np.random.Generator) -> Floats:
        """Draws of the log power at the baseline of a kernel without a power; NaN if no kernel has one."""
        known = np.flatnonzero(np.isfinite(self.power_level))
        same = [k for k in known if self.readings.categories[k] == self.readings.categories[kernel]]
        chosen = np.array(same if len(same) >= _MIN_CATEGORY else known, dtype=np.int64)
        if chosen.size < 2:
            return np.full(_DRAWS, np.nan)
        levels = np.array([self.power_level[k] + self.power.mean(k)[self.baseline] for k in chosen])
        spread = float(levels.std(ddof=1)) * np.sqrt(1.0 + 1.0 / chosen.size)
        drawn: Floats = levels.mean() + spread * rng.standard_t(chosen.size - 1, size=_DRAWS)
        return drawn


def fit_shared(
    readings: Readings, *, baseline: int | None = None, reading_noise: float = READING_NOISE
) -> SharedModel:
    """Learn all curves from what was read; clocks without a reading are predicted.

    ``baseline``: column to compare with; default: the highest clocks. ``reading_noise``: relative standard
    deviation of one reading; means of repeats have less.
    """
    base = readings.baseline if baseline is None else baseline
    space = ClockSpace.of(readings.sm_mhz, readings.mem_mhz)
    noise = reading_noise / np.sqrt(np.maximum(readings.n_repeats, 1.0))
    log_time, time_level = _levelled(readings.time_s, base)
    log_power, power_level = _levelled(readings.power_w, base)
    shapes = time_shapes(readings.sm_mhz, readings.mem_mhz, base)
    kernels = range(readings.n_kernels)
    time = learn(space, [shapes] * readings.n_kernels, log_time, noise, readings.categories)
    means = [time.mean(k) for k in kernels]
    at_power = [power_shapes(readings.sm_mhz, readings.mem_mhz, base, mean - mean[base]) for mean in means]
    power = learn(space, at_power, log_power, noise, readings.categories)
    return SharedModel(
        readings=readings,
        baseline=base,
        time=time,
        power=power,
        time_level=time_level,
        power_level=power_level,
        time_widen=np.ones(readings.time_s.shape),
        power_widen=np.ones(readings.time_s.shape),
    )


def with_clocks(readings: Readings, clocks: Iterable[Clocks]) -> Readings:
    """The same readings on a grid that has the given clocks too, for predictions and plans.

    Raises InputError for AUTO, which is no clock to predict at.
    """
    have = set(readings.clocks)
    new = [pair for pair in dict.fromkeys(clocks) if pair not in have]
    for pair in new:
        if isinstance(pair.sm_mhz, Auto) or isinstance(pair.mem_mhz, Auto):
            raise InputError(f"clocks {pair}: a model predicts at numeric clocks")
    if not new:
        return readings
    pairs = [*readings.clocks, *new]
    order = sorted(range(len(pairs)), key=lambda i: pairs[i].sort_key)

    def grown(array: Floats, fill: float) -> Floats:
        blank = np.full((readings.n_kernels, len(new)), fill)
        return np.concatenate([array, blank], axis=1)[:, order]

    return replace(
        readings,
        sm_mhz=np.array([pairs[i].sm_mhz for i in order], dtype=np.float64),
        mem_mhz=np.array([pairs[i].mem_mhz for i in order], dtype=np.float64),
        time_s=grown(readings.time_s, np.nan),
        power_w=grown(readings.power_w, np.nan),
        sm_mhz_actual=grown(readings.sm_mhz_actual, np.nan),
        n_repeats=grown(readings.n_repeats, 0.0),
    )


def _levelled(values: Floats, baseline: int) -> tuple[Floats, Floats]:
    """Logs relative to the baseline reading, or to the first; and those levels, NaN without a reading."""
    log = np.log(values)
    first = np.argmax(~np.isnan(log), axis=1)
    column = np.where(np.isnan(log[:, baseline]), first, baseline)
    level = log[np.arange(log.shape[0]), column]
    return log - level[:, None], level
