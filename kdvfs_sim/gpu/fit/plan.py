"""What to measure next, and what to choose from what was measured.

Each kernel wants its cheapest clocks within a time limit. Of every clock not yet read the model says how
likely it keeps the limit and what it would then save beyond the best clocks read so far; the reading with
the largest expected gain comes first. Only clocks that were read are chosen: there the time is known to the
noise of a reading.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.core.errors import InputError
from kdvfs_sim.gpu.fit.few import SharedModel, fit_shared
from kdvfs_sim.gpu.fit.readings import Floats, Readings
from kdvfs_sim.gpu.fit.residuals import margin_level

_DRAWS: Final = 256

# (kernel, clocks) to (time_s, power_w), one reading.
Measure: TypeAlias = Callable[[str, Clocks], tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Least energy of each kernel within ``slack_pct`` more time than at the baseline clocks.

    ``margin``: None holds the limit as likely as not; "p95" with a probability of 95 %.
    """

    slack_pct: float
    margin: str | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.slack_pct < np.inf:
            raise InputError(f"Goal: slack_pct is {self.slack_pct}; a finite number of at least 0 is right")
        if self.margin is not None:
            margin_level(self.margin)

    @property
    def sureness(self) -> float:
        return 0.5 if self.margin is None else margin_level(self.margin)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A reading worth taking. ``gain_pct``: expected further saving of its energy, times its weight."""

    kernel: str
    clocks: Clocks
    gain_pct: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a kernel should run at. Percentages against the baseline, medians with 90 % intervals.

    They come from the model of all readings, not from the one lucky reading that won.
    """

    kernel: str
    clocks: Clocks
    time_pct: float
    time_range_pct: tuple[float, float]
    energy_pct: float
    energy_range_pct: tuple[float, float]


def suggest(
    model: SharedModel,
    goal: Goal,
    *,
    n: int | None = None,
    weights: npt.ArrayLike | None = None,
    most_per_kernel: int | None = None,
    seed: int = 0,
) -> list[Suggestion]:
    """The next reading of each kernel, best first; at most ``n`` of them.

    A kernel whose baseline was not read wants that first. ``weights`` (n_kernels,): say energy in a step;
    default alike. ``most_per_kernel``: kernels with so many clocks read are done.
    """
    readings = model.readings
    weight = np.ones(readings.n_kernels) if weights is None else np.asarray(weights, dtype=np.float64)
    rng = np.random.default_rng(seed)
    read = ~np.isnan(readings.time_s) & ~np.isnan(readings.power_w)
    suggestions = []
    for k in range(readings.n_kernels):
        if read[k].all() or (most_per_kernel is not None and read[k].sum() >= most_per_kernel):
            continue
        gain = weight[k] * _gains(model, k, np.flatnonzero(read[k]), goal, rng)
        gain[read[k]] = -np.inf
        best = int(gain.argmax())
        if not read[k, model.baseline]:
            best = model.baseline
            gain[best] = weight[k]
        suggestions.append(
            Suggestion(
                kernel=readings.kernels[k], clocks=readings.clocks[best], gain_pct=100.0 * float(gain[best])
            )
        )
    suggestions.sort(key=lambda s: -s.gain_pct)
    return suggestions[:n]


def choose(model: SharedModel, goal: Goal) -> list[Choice]:
    """The best clocks read of each kernel whose baseline was read; the baseline if no other will do."""
    readings = model.readings
    rng = np.random.default_rng(0)
    read = ~np.isnan(readings.time_s) & ~np.isnan(readings.power_w)
    choices = []
    for k in range(readings.n_kernels):
        if not read[k, model.baseline]:
            continue
        time, energy = model.relative_draws(k, _DRAWS, rng)
        best = _incumbent(time, energy, np.flatnonzero(read[k]), model.baseline, goal)
        time_pct, energy_pct = (_percent(draws[:, best]) for draws in (time, energy))
        choices.append(
            Choice(
                kernel=readings.kernels[k],
                clocks=readings.clocks[best],
                time_pct=time_pct[1],
                time_range_pct=(time_pct[0], time_pct[2]),
                energy_pct=energy_pct[1],
                energy_range_pct=(energy_pct[0], energy_pct[2]),
            )
        )
    return choices


def follow(
    measure: Measure,
    kernels: Sequence[str],
    clocks: Sequence[Clocks],
    goal: Goal,
    *,
    readings_per_kernel: int,
    categories: Sequence[str] | None = None,
    seed: int = 0,
) -> SharedModel:
    """Take readings as ``suggest`` asks for them, one of each kernel a round, and return the last model.

    The first is at the highest clocks, the baseline. ``clocks`` are numeric.
    """
    pairs = sorted(set(clocks), key=lambda pair: pair.sort_key)
    blank = np.full((len(kernels), len(pairs)), np.nan)
    readings = Readings(
        kernels=tuple(kernels),
        categories=("other",) * len(kernels) if categories is None else tuple(categories),
        sm_mhz=np.array([pair.sm_mhz for pair in pairs], dtype=np.float64),
        mem_mhz=np.array([pair.mem_mhz for pair in pairs], dtype=np.float64),
        time_s=blank,
        power_w=blank,
        sm_mhz_actual=blank,
        n_repeats=np.zeros_like(blank),
    )
    baseline = readings.clocks[readings.baseline]
    wanted = [Suggestion(kernel=kernel, clocks=baseline, gain_pct=100.0) for kernel in kernels]
    for round_number in range(readings_per_kernel):
        readings = _taken(readings, wanted, measure)
        model = fit_shared(readings)
        wanted = suggest(model, goal, seed=seed + round_number)
    return model


def _percent(log_draws: Floats) -> tuple[float, float, float]:
    low, middle, high = 100.0 * np.expm1(np.quantile(log_draws, [0.05, 0.5, 0.95]))
    return float(low), float(middle), float(high)


def _gains(
    model: SharedModel, kernel: int, read: npt.NDArray[np.int64], goal: Goal, rng: np.random.Generator
) -> Floats:
    """(n_clocks,): expected saving beyond the best clocks read, as a part of the energy there."""
    time, energy = model.relative_draws(kernel, _DRAWS, rng)
    best = _incumbent(time, energy, read, model.baseline, goal)
    saved = -np.expm1(np.minimum(energy - energy[:, best].mean(), 0.0))
    keeps = time <= np.log1p(goal.slack_pct / 100.0)
    gain: Floats = (saved * keeps).mean(axis=0)
    return gain


def _incumbent(time: Floats, energy: Floats, read: npt.NDArray[np.int64], baseline: int, goal: Goal) -> int:
    """The read clock of least expected energy that keeps the limit surely enough, else the baseline."""
    keeps = (time[:, read] <= np.log1p(goal.slack_pct / 100.0)).mean(axis=0) >= goal.sureness
    allowed = read[keeps | (read == baseline)]
    if not allowed.size:
        return baseline
    return int(allowed[energy[:, allowed].mean(axis=0).argmin()])


def _taken(readings: Readings, wanted: Sequence[Suggestion], measure: Measure) -> Readings:
    time, power, repeats = readings.time_s.copy(), readings.power_w.copy(), readings.n_repeats.copy()
    row = {kernel: i for i, kernel in enumerate(readings.kernels)}
    column = {pair: i for i, pair in enumerate(readings.clocks)}
    for suggestion in wanted:
        cell = row[suggestion.kernel], column[suggestion.clocks]
        time[cell], power[cell] = measure(suggestion.kernel, suggestion.clocks)
        repeats[cell] = 1.0
    return replace(readings, time_s=time, power_w=power, n_repeats=repeats)
