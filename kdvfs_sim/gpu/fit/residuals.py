"""What a fit leaves unexplained: error summaries, and margins that an optimizer can keep."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from kdvfs_sim.core.errors import InputError
from kdvfs_sim.gpu.fit.readings import Bools, Floats

# A kernel's own residuals count like this many of all kernels': a quantile of five readings says little.
POOLED_READINGS: Final = 20.0
# Errors well beyond this, or beyond what is usual in a set, are outliers and pull less than their square.
OUTLIER_SCALE: Final = 0.02
_USUAL: Final = 2.5 * 1.4826  # times the median absolute error: 2.5 standard deviations of a normal


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSummary:
    """Absolute relative errors over ``n_readings``, per cent."""

    n_readings: int
    median_pct: float
    p95_pct: float

    def __str__(self) -> str:
        return f"{self.median_pct:.2f}/{self.p95_pct:.1f}"


def summarize(log_error: Floats) -> ErrorSummary:
    """Median and 95th percentile of |exp(e) - 1|; NaN entries are not counted."""
    errors = 100.0 * np.abs(np.expm1(log_error[~np.isnan(log_error)]))
    if not errors.size:
        return ErrorSummary(n_readings=0, median_pct=float("nan"), p95_pct=float("nan"))
    return ErrorSummary(
        n_readings=int(errors.size),
        median_pct=float(np.median(errors)),
        p95_pct=float(np.quantile(errors, 0.95)),
    )


def outlier_scale(errors: Floats) -> float:
    """Where the robust loss turns from squares to absolute values, for the errors of a first fit."""
    known = np.abs(errors[~np.isnan(errors)])
    return max(OUTLIER_SCALE, _USUAL * float(np.median(known))) if known.size else OUTLIER_SCALE


def robust_cost(error: Floats, scale: float) -> float:
    """Soft L1, as scipy's ``least_squares`` has it, in units of ``scale``."""
    return float((np.sqrt(1.0 + (error / scale) ** 2) - 1.0).sum())


def determined(log_residual: Floats, n_parameters: int) -> Bools:
    """(n_kernels,): kernels with more readings than coefficients. The others are fitted exactly, whatever
    they are: what their residuals would say of an error is nothing."""
    more: Bools = (~np.isnan(log_residual)).sum(axis=1) > n_parameters
    return more


def margin_factor(log_residual: Floats, n_parameters: int, margin: str | None) -> Floats:
    """(n_kernels,): factor by which a prediction is raised so that it holds at the level ``margin``.

    ``log_residual`` (n_kernels, n_readings): log of measured over predicted, NaN where not measured.
    ``margin``: None for no margin (factor 1) or "p95" and the like. A kernel's quantile is drawn towards
    that of all kernels, and widened for the parameters fitted. A kernel with no more readings than parameters
    gets that of all; NaN where no kernel has more. Raises InputError for another margin.
    """
    n_kernels = log_residual.shape[0]
    if margin is None:
        return np.ones(n_kernels)
    level = margin_level(margin)
    own = determined(log_residual, n_parameters)
    known = ~np.isnan(log_residual) & own[:, None]
    if not known.any():
        return np.full(n_kernels, np.nan)
    n = known.sum(axis=1).astype(np.float64)
    freedom = np.sqrt(n / np.maximum(n - n_parameters, 1.0))
    widened = log_residual * freedom[:, None]
    pooled = float(np.quantile(widened[known], level))
    quantile = np.array(
        [np.quantile(row[ok], level) if ok.any() else pooled for row, ok in zip(widened, known, strict=True)]
    )
    shrunk = (n * quantile + POOLED_READINGS * pooled) / (n + POOLED_READINGS)
    factor: Floats = np.exp(np.maximum(shrunk, 0.0))
    return factor


def margin_level(margin: str) -> float:
    """``p95`` to 0.95. Raises InputError for what is no such text, or not between p50 and p100."""
    if re.fullmatch("p[5-9][0-9]", margin) is None:
        raise InputError(f"margin {margin!r}: p50 to p99 is right, say p95")
    return int(margin[1:]) / 100.0
