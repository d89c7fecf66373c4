"""Cross-validation of the shared model, and intervals that hold what they say.

A model's own intervals are too narrow or too wide on some GPUs: its noise is not the world's. What it gets
wrong on readings it was not given says by how much: intervals are widened by the factor with which they
would have held.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

import numpy as np
from scipy.stats import norm
from scipy.stats import t as student_t

from kdvfs_sim.gpu.fit.few import LEVEL, Prediction, SharedModel, fit_shared
from kdvfs_sim.gpu.fit.readings import Bools, Floats, Readings
from kdvfs_sim.gpu.fit.residuals import ErrorSummary, summarize
from kdvfs_sim.gpu.fit.shared import Ints

LeftOut: TypeAlias = Literal["clock", "kernel", "trace"]
Quantity: TypeAlias = Literal["time", "power"]
# A kernel read at fewer clocks than this is as good as new: its intervals are calibrated on left-out kernels.
FEW_READINGS: Final = 3
# A class of clocks with fewer left-out readings than this is calibrated with all of them.
_MIN_SCORES: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Share of ``n_readings`` left out inside their interval; NaN for none.

    ``p_value``: of a true share of LEVEL, two-sided. ``width_pct``: median width of the intervals.
    """

    n_readings: int
    share: float
    p_value: float
    width_pct: float


@dataclass(frozen=True, kw_only=True, eq=False)
class CrossValidation:
    """Predictions of readings that were left out, NaN elsewhere.

    ``fold`` (n_kernels, n_clocks): -1 elsewhere. ``beyond``: clocks outside what the kernel was read at.
    """

    readings: Readings
    left_out: LeftOut
    time: Prediction
    power: Prediction
    fold: Ints
    beyond: Bools

    def log_error(self, quantity: Quantity) -> Floats:
        """(n_kernels, n_clocks): log of measured over predicted."""
        error: Floats = np.log(self._measured(quantity) / self._predicted(quantity).middle)
        return error

    def errors(self, quantity: Quantity) -> ErrorSummary:
        return summarize(self.log_error(quantity))

    def widen(self, quantity: Quantity, *, beyond: bool, without: int = -1) -> float:
        """Factor on half-widths with which LEVEL of the left-out readings would have been inside.

        Of the clocks beyond those that the kernel was read at, or of those between: to extrapolate is
        harder than any model knows. ``without``: a fold that does not count.
        """
        score = self._score(quantity)
        known = ~np.isnan(score) & (self.fold != without)
        alike = known & (self.beyond == beyond)
        chosen = alike if alike.sum() >= _MIN_SCORES else known
        if not chosen.any():
            return 1.0
        unit = np.indices(score.shape)[1 if self.left_out == "clock" else 0]
        return float(np.quantile(score[chosen], LEVEL)) * _few_units(score[chosen], unit[chosen])

    def widened(self) -> CrossValidation:
        """Intervals of each fold as wide as what the other folds got wrong asks for."""
        return replace(self, time=self._widened("time"), power=self._widened("power"))

    def _widened(self, quantity: Quantity) -> Prediction:
        predicted = self._predicted(quantity)
        factor = np.ones(self.fold.shape)
        for number in range(int(self.fold.max()) + 1):
            for beyond in (False, True):
                cells = (self.fold == number) & (self.beyond == beyond)
                factor[cells] = self.widen(quantity, beyond=beyond, without=number)
        return Prediction(
            middle=predicted.middle,
            low=predicted.middle * (predicted.low / predicted.middle) ** factor,
            high=predicted.middle * (predicted.high / predicted.middle) ** factor,
        )

    def coverage(self, quantity: Quantity) -> Coverage:
        """Clustered by kernel; a lone kernel's readings by fold."""
        score = self._score(quantity)
        known = ~np.isnan(score)
        if not known.any():
            return Coverage(n_readings=0, share=np.nan, p_value=np.nan, width_pct=np.nan)
        kernels = np.broadcast_to(np.arange(score.shape[0])[:, None], score.shape)
        predicted = self._predicted(quantity)
        inside = known & (score <= 1.0)
        width = (predicted.high - predicted.low)[known] / predicted.middle[known]
        return Coverage(
            n_readings=int(known.sum()),
            share=float(inside[known].mean()),
            p_value=cluster_p_value(inside, known, kernels if score.shape[0] > 1 else self.fold),
            width_pct=100.0 * float(np.median(width)),
        )

    def _measured(self, quantity: Quantity) -> Floats:
        return self.readings.time_s if quantity == "time" else self.readings.power_w

    def _predicted(self, quantity: Quantity) -> Prediction:
        return self.time if quantity == "time" else self.power

    def _score(self, quantity: Quantity) -> Floats:
        """How far outside: 1 at the ends of the interval, 0 at its middle."""
        predicted, measured = self._predicted(quantity), self._measured(quantity)
        above = np.log(measured / predicted.middle) / np.log(predicted.high / predicted.middle)
        below = np.log(predicted.middle / measured) / np.log(predicted.middle / predicted.low)
        score: Floats = np.maximum(above, below)
        return score


def cross_validate(
    readings: Readings,
    left_out: LeftOut,
    *,
    calibrate: bool = False,
    folds: int = 5,
) -> CrossValidation:
    """Predict every reading from a model that was not given it.

    ``clock``: about every fifth is left out for all kernels, so that its neighbours remain. ``kernel``: a
    fold of the kernels keeps its baseline reading alone; ``trace``: only that reading's time, as a
    recording shows it. ``calibrate``: the intervals of each fold are widened by what the others got wrong.
    """
    shape, baseline = readings.time_s.shape, readings.baseline
    read = ~(np.isnan(readings.time_s) & np.isnan(readings.power_w))
    if left_out == "clock":
        fold_of = _clock_folds(readings, np.flatnonzero(np.any(read, axis=0)), folds)
    else:
        fold_of = _kernel_folds(np.flatnonzero(np.any(read, axis=1)), readings.n_kernels, folds)
    fold = np.full(shape, -1, dtype=np.int64)
    beyond = np.zeros(shape, dtype=np.bool_)
    bands = {name: np.full((3, *shape), np.nan) for name in ("time", "power")}
    for number in range(int(fold_of.max()) + 1):
        tested = np.zeros(shape, dtype=np.bool_)
        if left_out == "clock":
            tested[:, fold_of == number] = True
        else:
            tested[fold_of == number] = True
            tested[:, baseline] &= left_out == "trace"
        given = _given(readings, tested, baseline, left_out)
        model = fit_shared(given, baseline=baseline)
        fold[tested] = number
        beyond[tested] = outside(given)[tested]
        for name, predicted in (("time", model.time_s()), ("power", model.power_w())):
            for i, values in enumerate((predicted.low, predicted.middle, predicted.high)):
                bands[name][i][tested] = values[tested]
    if left_out == "trace":
        bands["time"][:, :, baseline] = np.nan  # the one thing that a recording shows
    found = CrossValidation(
        readings=readings,
        left_out=left_out,
        time=_prediction(bands["time"]),
        power=_prediction(bands["power"]),
        fold=fold,
        beyond=beyond,
    )
    return found.widened() if calibrate else found


def calibrated(model: SharedModel, *, folds: int = 5) -> SharedModel:
    """The same model with intervals as wide as its errors on left-out readings ask for.

    On left-out clocks for kernels that were read at several, on left-out kernels for the others.
    """
    readings = model.readings
    few = (~np.isnan(readings.time_s)).sum(axis=1) < FEW_READINGS
    beyond = outside(readings)
    factor: dict[Quantity, Floats] = {"time": np.ones(beyond.shape), "power": np.ones(beyond.shape)}
    modes: tuple[tuple[LeftOut, Bools], ...] = (("clock", ~few), ("kernel", few))
    for mode, kernels in modes:
        if not kernels.any():
            continue
        found = cross_validate(readings, mode, folds=folds)
        for quantity, factors in factor.items():
            for where in (False, True):
                factors[kernels[:, None] & (beyond == where)] = found.widen(quantity, beyond=where)
    return replace(model, time_widen=factor["time"], power_widen=factor["power"])


def outside(readings: Readings) -> Bools:
    """(n_kernels, n_clocks): clocks beyond the lowest and highest, in either domain, that were read."""
    read = ~(np.isnan(readings.time_s) & np.isnan(readings.power_w))
    beyond = np.zeros(read.shape, dtype=np.bool_)
    for mhz in (readings.sm_mhz, readings.mem_mhz):
        low = np.where(read, mhz, np.inf).min(axis=1, keepdims=True)
        high = np.where(read, mhz, -np.inf).max(axis=1, keepdims=True)
        beyond |= (mhz < low) | (mhz > high)
    return beyond


def _few_units(score: Floats, unit: Ints) -> float:
    """Factor for what a quantile from few clocks, or few kernels, cannot know: Student's t over a normal's.

    Its degrees of freedom are those of the mean square of all scores, given how much the units' differ.
    """
    squares = np.array([(score[unit == name] ** 2).mean() for name in np.unique(unit)])
    freedom = 1.0
    if squares.size > 1:
        freedom = 2.0 * squares.size * squares.mean() ** 2 / max(squares.var(ddof=1), 1e-12)
    upper = 0.5 + LEVEL / 2.0
    return float(student_t.ppf(upper, max(freedom, squares.size - 1.0, 1.0)) / norm.ppf(upper))


def cluster_p_value(inside: Bools, known: Bools, groups: Ints) -> float:
    """Two-sided p of a true share of LEVEL, where readings of one group may err together.

    The variance is that between groups, but no smaller than of independent readings: a few groups that
    happen to agree are no proof.
    """
    names = np.unique(groups[known])
    counts = np.array([(known & (groups == name)).sum() for name in names], dtype=np.float64)
    hits = np.array([(inside & known & (groups == name)).sum() for name in names], dtype=np.float64)
    total, n_groups = counts.sum(), names.size
    share = hits.sum() / total
    between = float(((hits - counts * share) ** 2).sum()) * n_groups / max(n_groups - 1, 1) / total**2
    spread = np.sqrt(max(between, LEVEL * (1.0 - LEVEL) / total))
    return float(2.0 * student_t.sf(abs(share - LEVEL) / spread, max(n_groups - 1, 1)))


def _clock_folds(readings: Readings, columns: Ints, folds: int) -> Ints:
    """(n_clocks,): folds that leave every clock its neighbours; -1 for clocks without a reading.

    Few clocks are left out one by one, and the two ends never together: what is beyond is judged by the
    other end.
    """
    sm, sm_rank = np.unique(readings.sm_mhz[columns], return_inverse=True)
    mem_rank = np.unique(readings.mem_mhz[columns], return_inverse=True)[1]
    if columns.size <= 2 * folds:
        folds = columns.size
    elif (sm.size - 1) % folds == 0:
        folds += 1
    fold = np.full(readings.n_clocks, -1, dtype=np.int64)
    _, fold[columns] = np.unique((sm_rank + 2 * mem_rank) % folds, return_inverse=True)
    return fold


def _kernel_folds(rows: Ints, n_kernels: int, folds: int) -> Ints:
    """(n_kernels,): random folds; -1 for kernels without a reading."""
    fold = np.full(n_kernels, -1, dtype=np.int64)
    fold[np.random.default_rng(0).permutation(rows)] = np.arange(rows.size) % min(folds, rows.size)
    return fold


def _given(readings: Readings, tested: Bools, baseline: int, left_out: LeftOut) -> Readings:
    if left_out != "trace":
        return readings.keep(~tested)
    given = readings.keep(~tested)
    time = given.time_s.copy()
    time[:, baseline] = readings.time_s[:, baseline]
    repeats = given.n_repeats.copy()
    repeats[:, baseline] = readings.n_repeats[:, baseline]
    return replace(given, time_s=time, n_repeats=repeats)


def _prediction(bands: Floats) -> Prediction:
    low, middle, high = bands
    return Prediction(middle=middle, low=low, high=high)
