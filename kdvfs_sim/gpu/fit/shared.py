"""What the kernels of a GPU have in common, learned from few readings of each: curves with honest intervals.

The log of a kernel's time (or power) at clock c is

    level + shape[h](c) + common(c) + own(c) + scatter(c)

``level`` is free. ``h`` is one of the shapes of ``curves``; how often each occurs is learned, by category,
drawn towards the whole GPU and that towards all shapes alike. ``common`` is a smooth curve that all kernels
share: what the forms miss about this GPU. ``own`` is a smooth curve of the kernel, ``scatter`` independent
from clock to clock; how large they are, and how smooth, is one of NOISES, learned like the shapes. A
reading adds its own noise. So three readings, or one, give a curve and its uncertainty, and every reading of
one kernel helps all others. Inference is variational: kernels given what is common, and the reverse, in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from kdvfs_sim.core.errors import InputError
from kdvfs_sim.gpu.fit.readings import Floats

Ints = npt.NDArray[np.int64]

# (value, prior weight) of the size of a kernel's own curve, its length in log clock, and its scatter.
_OWN: Final = ((0.003, 0.35), (0.01, 0.40), (0.03, 0.25))
_LENGTHS: Final = ((0.08, 0.5), (0.3, 0.5))
_SCATTER: Final = ((0.001, 0.30), (0.004, 0.45), (0.015, 0.25))
NOISES: Final = [
    (own, length, scatter) for own, _ in _OWN for length, _ in _LENGTHS for scatter, _ in _SCATTER
]
_NOISE_PRIOR: Final = np.array([a * b * c for _, a in _OWN for _, b in _LENGTHS for _, c in _SCATTER])
# Size of the common curve before anything is read, and how many clocks' worth of belief that is.
_COMMON: Final = 0.006
_COMMON_CLOCKS: Final = 4.0
_LEVEL_VARIANCE: Final = 4.0
# How many kernels' worth of belief the layer above has against what the kernels say.
_SHAPE_KERNELS: Final = 4.0
_NOISE_KERNELS: Final = 3.0
_PASSES: Final = 3
# Shapes this much less likely than the best (in nats) at the widest noise are not looked at again.
_NEGLIGIBLE: Final = 30.0
_WIDEST: Final = -1


@dataclass(frozen=True, kw_only=True, eq=False)
class ClockSpace:
    """How close clocks are. ``own`` (n_noises, n_clocks, n_clocks): covariance of a kernel's log values,
    level included; ``common_precision`` (n_clocks, n_clocks): inverse covariance of a common curve of size 1.
    """

    own: Floats
    common_precision: Floats

    @classmethod
    def of(cls, sm_mhz: Floats, mem_mhz: Floats) -> ClockSpace:
        """Distance is in log clock, both domains alike."""
        log_sm, log_mem = np.log(sm_mhz), np.log(mem_mhz)
        distance = np.hypot(log_sm[:, None] - log_sm, log_mem[:, None] - log_mem)
        smooth = {length: _smooth(distance / length) for length, _ in _LENGTHS}
        each = np.eye(sm_mhz.size)
        own = [size**2 * smooth[length] + scatter**2 * each for size, length, scatter in NOISES]
        parts = np.stack([*smooth.values(), each])
        return cls(
            own=np.stack(own) + _LEVEL_VARIANCE,
            common_precision=np.linalg.inv(parts.mean(axis=0)),
        )

    @property
    def n_clocks(self) -> int:
        return int(self.own.shape[1])


@dataclass(frozen=True, kw_only=True, eq=False)
class _Evidence:
    """One kernel's readings against the shapes.

    ``columns`` (n,): clocks read. ``rows``: numbers of the shapes still possible; ``shapes`` (n_shapes,
    n_clocks) and what they leave of the readings, ``residual`` (n_shapes, n). ``precision`` (n_noises, n, n)
    and ``log_det`` (n_noises,) of the readings' covariance, ``misfit`` (n_noises, n_shapes) of the residuals
    under it.
    """

    columns: Ints
    rows: Ints
    shapes: Floats
    residual: Floats
    precision: Floats
    log_det: Floats
    misfit: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class CurveModel:
    """Curves of one quantity for all kernels; logs throughout, levels relative to what was given.

    ``shape_weights`` (n_kernels, n_shapes): before the kernel's own readings. ``common`` (n_clocks,) with its
    covariance.
    """

    space: ClockSpace
    evidence: tuple[_Evidence, ...]
    shape_weights: Floats
    noise_weights: Floats
    common: Floats
    common_covariance: Floats

    def mean(self, kernel: int) -> Floats:
        """(n_clocks,): expected log value."""
        posterior = self._posterior(kernel)
        learned = np.einsum("jn,jnc->c", posterior.weights @ posterior.residual, posterior.gain)
        mean: Floats = posterior.weights.sum(axis=0) @ posterior.curves + learned
        return mean

    def draws(
        self, kernel: int, n: int, rng: np.random.Generator, *, relative_to: int | None = None
    ) -> Floats:
        """(n, n_clocks): draws of the log value at each clock, scatter included.

        ``relative_to``: a column; then of the difference to it. Right for each clock by itself: draws at two
        clocks are not jointly so.
        """
        p = self._posterior(kernel)
        pick = rng.choice(p.weights.size, size=n, p=p.weights.ravel())
        noise, shape = np.divmod(pick, p.weights.shape[1])
        middle = p.curves[shape] + np.einsum("sn,snc->sc", p.residual[shape], p.gain[noise])
        variance = p.variance + self._common_variance(kernel, None)
        if relative_to is not None:
            middle = middle - middle[:, [relative_to]]
            variance = p.variance + p.variance[:, [relative_to]] - 2.0 * p.covariance(relative_to)
            variance = variance + self._common_variance(kernel, relative_to)
        spread = np.sqrt(np.maximum(variance, 0.0))[noise]
        drawn: Floats = middle + spread * rng.standard_normal(middle.shape)
        return drawn

    def _common_variance(self, kernel: int, relative_to: int | None) -> Floats:
        """(n_clocks,): of the common curve, relative to a column or to the mean over the readings."""
        columns = self.evidence[kernel].columns if relative_to is None else np.array([relative_to])
        covariance = self.common_covariance
        if not columns.size:
            return np.diag(covariance)
        to_mean = covariance[:, columns].mean(axis=1)
        variance: Floats = np.diag(covariance) - 2.0 * to_mean + to_mean[columns].mean()
        return np.maximum(variance, 0.0)

    def _posterior(self, kernel: int) -> _Posterior:
        evidence = self.evidence[kernel]
        weights, residual = _weights(evidence, self.common, self.shape_weights[kernel], self.noise_weights)
        noises = np.flatnonzero(weights.sum(axis=1) > 1e-3)
        prior = self.space.own[noises]
        to_read = prior[:, evidence.columns]
        gain = evidence.precision[noises] @ to_read
        weights = weights[noises]
        return _Posterior(
            weights=weights / weights.sum(),
            curves=evidence.shapes + self.common,
            residual=residual,
            gain=gain,
            prior=prior,
            to_read=to_read,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Posterior:
    """A mixture over noises and shapes; ``gain`` (n_noises, n, n_clocks) turns residuals into curves."""

    weights: Floats
    curves: Floats
    residual: Floats
    gain: Floats
    prior: Floats
    to_read: Floats

    @property
    def variance(self) -> Floats:
        """(n_noises, n_clocks)"""
        variance: Floats = np.diagonal(self.prior, axis1=1, axis2=2) - (self.gain * self.to_read).sum(axis=1)
        return variance

    def covariance(self, column: int) -> Floats:
        """(n_noises, n_clocks): with one clock."""
        explained = np.einsum("jn,jnc->jc", self.gain[:, :, column], self.to_read)
        covariance: Floats = self.prior[:, column] - explained
        return covariance


def learn(
    space: ClockSpace,
    shapes: Sequence[Floats],
    log_value: Floats,
    noise: Floats,
    categories: Sequence[str],
) -> CurveModel:
    """Learn shapes, noises and the common curve from readings.

    ``shapes``: for each kernel (n_shapes, n_clocks), rows of one meaning. ``log_value`` (n_kernels,
    n_clocks), NaN where not read, of any level. ``noise``: relative standard deviation of each reading.
    Raises InputError for lists that are not as long as there are kernels.
    """
    n_kernels = log_value.shape[0]
    if len(shapes) != n_kernels or len(categories) != n_kernels:
        raise InputError(
            f"learn: {len(shapes)} shapes and {len(categories)} categories for {n_kernels} kernels"
        )
    evidence = tuple(_evidence(space, shapes[k], log_value[k], noise[k]) for k in range(n_kernels))
    names = sorted(set(categories))
    member = np.array([[category == name for name in names] for category in categories], dtype=np.float64)
    n_shapes = shapes[0].shape[0]
    alike = np.full(n_shapes, 1.0 / n_shapes)
    shape_weights = np.tile(alike, (n_kernels, 1))
    noise_weights: Floats = _NOISE_PRIOR / _NOISE_PRIOR.sum()
    common: Floats = np.zeros(space.n_clocks)
    size2 = _COMMON**2
    covariance = size2 * np.linalg.inv(space.common_precision)
    for _ in range(_PASSES):
        shape_counts = np.zeros((n_kernels, n_shapes))
        noise_counts = np.zeros((n_kernels, len(NOISES)))
        precision, pull = space.common_precision / size2, np.zeros(space.n_clocks)
        for k, seen in enumerate(evidence):
            if not seen.columns.size:
                continue
            weights, _ = _weights(seen, common, shape_weights[k], noise_weights)
            shape_counts[k, seen.rows], noise_counts[k] = weights.sum(axis=0), weights.sum(axis=1)
            block = np.ix_(seen.columns, seen.columns)
            precision[block] += np.tensordot(noise_counts[k], seen.precision, axes=1)
            pull[seen.columns] += np.einsum("jab,jb->a", seen.precision, weights @ seen.residual)
        gpu = _drawn(alike, shape_counts.sum(axis=0), _SHAPE_KERNELS)
        by_category = member.T @ shape_counts
        shape_weights = member @ np.stack([_drawn(gpu, counts, _SHAPE_KERNELS) for counts in by_category])
        noise_weights = _drawn(_NOISE_PRIOR, noise_counts.sum(axis=0), _NOISE_KERNELS)
        covariance = np.linalg.inv(precision)
        common = covariance @ pull
        spread = common @ space.common_precision @ common + (space.common_precision * covariance).sum()
        size2 = float(_COMMON_CLOCKS * _COMMON**2 + spread) / (_COMMON_CLOCKS + space.n_clocks)
    return CurveModel(
        space=space,
        evidence=evidence,
        shape_weights=shape_weights,
        noise_weights=noise_weights,
        common=common,
        common_covariance=np.asarray(covariance, dtype=np.float64),
    )


def _drawn(above: Floats, counts: Floats, strength: float) -> Floats:
    """Weights from counts, drawn towards those of the layer above."""
    weights: Floats = strength * above / above.sum() + counts
    weights /= weights.sum()
    return weights


def _evidence(space: ClockSpace, shapes: Floats, log_value: Floats, noise: Floats) -> _Evidence:
    columns = np.flatnonzero(~np.isnan(log_value))
    residual = log_value[columns] - shapes[:, columns]
    covariance = space.own[:, columns][:, :, columns] + np.diag(noise[columns] ** 2)
    cholesky = np.linalg.cholesky(covariance)
    inverse = np.linalg.inv(cholesky)
    precision = inverse.transpose(0, 2, 1) @ inverse
    misfit = _quadratic(residual, precision[_WIDEST])
    rows = np.flatnonzero(misfit <= misfit.min() + 2.0 * _NEGLIGIBLE)
    possible = residual[rows]
    return _Evidence(
        columns=columns,
        rows=rows,
        shapes=shapes[rows],
        residual=possible,
        precision=precision,
        log_det=np.log(np.diagonal(cholesky, axis1=1, axis2=2)).sum(axis=1),
        misfit=np.stack([_quadratic(possible, one) for one in precision]),
    )


def _weights(
    evidence: _Evidence, common: Floats, shape_weights: Floats, noise_weights: Floats
) -> tuple[Floats, Floats]:
    """(n_noises, n_shapes) probabilities after the readings, and the residuals without the common curve."""
    shared = common[evidence.columns]
    pull = evidence.precision @ shared
    cross = np.einsum("ja,sa->js", pull, evidence.residual)
    misfit = evidence.misfit - 2.0 * cross + (pull @ shared)[:, None]
    log = -0.5 * misfit + (np.log(noise_weights) - evidence.log_det)[:, None]
    log += np.log(shape_weights[evidence.rows])
    weights = np.exp(log - log.max())
    return weights / weights.sum(), evidence.residual - shared


def _quadratic(rows: Floats, matrix: Floats) -> Floats:
    """(n,): r' M r of each row; einsum because threads of a BLAS wait longer than this takes."""
    product = np.einsum("sa,ab->sb", rows, matrix)
    quadratic: Floats = np.einsum("sb,sb->s", product, rows)
    return quadratic


def _smooth(distance: Floats) -> Floats:
    """Matern covariance of smoothness 3/2: once differentiable, so it bends where a clock is capped."""
    scaled = np.sqrt(3.0) * distance
    covariance: Floats = (1.0 + scaled) * np.exp(-scaled)
    return covariance
