"""Latency forms fitted to readings: sum, maximum, p-norm with p fixed or fitted, on the clock after capping.

``t = ((a / min(f_sm, f_cap))^p + (b / (eta f_mem))^p)^(1/p) + c``, all coefficients at least 0, for each
kernel; ``eta`` is one efficiency for each memory clock, shared by all kernels of a GPU. With one memory
clock b / f_mem is a constant: the maximum is then a roofline and the sum is Amdahl's law.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares, minimize_scalar

from kdvfs_sim.core.errors import InputError
from kdvfs_sim.gpu.fit.readings import Bools, Floats, Readings
from kdvfs_sim.gpu.fit.residuals import (
    ErrorSummary,
    determined,
    margin_factor,
    outlier_scale,
    robust_cost,
    summarize,
)
from kdvfs_sim.gpu.latency import DEFAULT_EXPONENT, p_norm

# Beyond this p the form is a maximum to within 4 %, and no sweep tells it from one.
LARGEST_EXPONENT: Final = 20.0
_START_EXPONENTS: Final = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0, LARGEST_EXPONENT)
_BALANCE: Final = np.geomspace(0.02, 50.0, 121)
_SHARES: Final = np.concatenate([[0.0], _BALANCE / (1.0 + _BALANCE), [1.0]])
_ROUNDS: Final = 30  # of kernels and memory efficiencies in turn, until neither moves


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyForm:
    """``exponent`` None: fitted. ``fixed``: has the part c that no clock changes. ``capped``: f_cap is
    fitted.

    ``memory_efficiency``: one factor for each memory clock below the highest.
    """

    name: str
    exponent: float | None
    fixed: bool = True
    capped: bool = False
    memory_efficiency: bool = False


FORMS: Final[dict[str, LatencyForm]] = {
    form.name: form
    for form in (
        LatencyForm(name="sum", exponent=1.0),
        LatencyForm(name="max", exponent=np.inf, fixed=False),
        LatencyForm(name="max+c", exponent=np.inf),
        LatencyForm(name="p2+c", exponent=2.0),
        LatencyForm(name="p4+c", exponent=DEFAULT_EXPONENT),
        LatencyForm(name="p+c", exponent=None),
        LatencyForm(name="p4+c, eta", exponent=DEFAULT_EXPONENT, memory_efficiency=True),
        LatencyForm(name="p+c, eta", exponent=None, memory_efficiency=True),
        LatencyForm(name="p4+c, cap", exponent=DEFAULT_EXPONENT, capped=True),
    )
}
_ONE_MEMORY_CLOCK: Final = (
    "one memory clock: time bound by memory and time that no clock changes are told apart by the form alone"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class LatencyFit:
    """Coefficients of each kernel, arrays of shape (n_kernels,), and what they leave unexplained.

    ``sm_s_mhz`` and ``memory_s_mhz``: seconds at 1 MHz; ``fixed_s``; ``exponent``; ``cap_mhz`` (inf without
    one). ``memory_efficiency`` (n_states,): of ``memory_states``. ``standard_error`` (n_kernels, 4): of
    ``sm_s_mhz``, ``memory_s_mhz``, ``fixed_s`` and ``exponent``; NaN where the readings do not determine it
    (a bound was reached, or it was not fitted). ``log_residual`` (n_kernels, n_clocks): log of measured over
    fitted, NaN where not measured.
    """

    form: LatencyForm
    kernels: tuple[str, ...]
    sm_s_mhz: Floats
    memory_s_mhz: Floats
    fixed_s: Floats
    exponent: Floats
    cap_mhz: Floats
    memory_states: Floats
    memory_efficiency: Floats
    standard_error: Floats
    log_residual: Floats

    def time_s(self, sm_mhz: npt.ArrayLike, mem_mhz: npt.ArrayLike) -> Floats:
        """(n_kernels, n): times at n clock pairs; SM clocks of shape (n_kernels, n) are per kernel.

        NaN at a memory clock outside the fitted ones where their efficiency was fitted.
        """
        sm = np.minimum(np.asarray(sm_mhz, dtype=np.float64), self.cap_mhz[:, None])
        memory = effective_memory(mem_mhz, self.memory_states, self.memory_efficiency)
        parts = zip(
            self.sm_s_mhz[:, None] / sm, self.memory_s_mhz[:, None] / memory, self.exponent, strict=True
        )
        return np.array([p_norm(x, y, p) for x, y, p in parts]) + self.fixed_s[:, None]

    @property
    def determined(self) -> Bools:
        """(n_kernels,): see ``residuals.determined``."""
        return determined(self.log_residual, n_parameters(self.form))

    @property
    def errors(self) -> ErrorSummary:
        """Of the kernels that are determined."""
        return summarize(self.log_residual[self.determined])

    def margin(self, margin: str | None) -> Floats:
        """(n_kernels,): factor on predicted times, see ``margin_factor``."""
        return margin_factor(self.log_residual, n_parameters(self.form), margin)


def n_parameters(form: LatencyForm) -> int:
    """Of one kernel."""
    return 2 + form.fixed + form.capped + (form.exponent is None)


def why_assumed(readings: Readings, form: LatencyForm) -> tuple[str, ...]:
    """For each kernel why the shares of its time are not measured; "" where they are."""
    reasons = []
    for times in readings.time_s:
        read = ~np.isnan(times)
        if read.sum() <= n_parameters(form):
            reasons.append("few clocks: its curve is made of the form and of other kernels")
        elif np.unique(readings.mem_mhz[read]).size == 1:
            reasons.append(_ONE_MEMORY_CLOCK)
        else:
            reasons.append("")
    return tuple(reasons)


def effective_memory(mem_mhz: npt.ArrayLike, states: Floats, efficiency: Floats) -> Floats:
    """Memory clock times its efficiency, in between interpolated; NaN outside if any efficiency is not 1."""
    memory = np.asarray(mem_mhz, dtype=np.float64)
    if (efficiency == 1.0).all():
        return memory
    outside = (memory < states[0]) | (memory > states[-1])
    effective: Floats = np.where(outside, np.nan, memory * np.interp(memory, states, efficiency))
    return effective


def fit_latency(readings: Readings, form: LatencyForm | str = "p4+c") -> LatencyFit:
    """Fit a form to every kernel, by robust least squares on relative errors.

    Clocks are those read where a sweep has them (after capping), else as requested. A kernel with no more
    readings than coefficients gets p = 4. Raises InputError where a kernel has no reading or no form has
    this name.
    """
    form = named_form(form)
    measured = ~np.isnan(readings.time_s)
    if not measured.any(axis=1).all():
        kernel = readings.kernels[int(measured.any(axis=1).argmin())]
        raise InputError(f"{readings.source or 'sweep'}: {kernel} has no measured time")
    states = readings.memory_states
    efficiency = np.ones(states.size)
    fits = [_Kernel(readings, k, form) for k in range(readings.n_kernels)]
    for fit in fits:
        fit.theta = fit.scan(efficiency)
    scale = outlier_scale(np.concatenate([fit.log_error(efficiency) for fit in fits]))
    for fit in fits:
        fit.polish(efficiency, scale)
    if form.memory_efficiency and states.size > 1:
        for _ in range(_ROUNDS):
            updated = _efficiencies(fits, efficiency, scale)
            change = float(np.abs(updated - efficiency).max())
            efficiency = updated
            for fit in fits:
                fit.polish(efficiency, scale)
            if change < 1e-4:
                break
    table = np.array([fit.coefficients for fit in fits])
    residual = np.full(measured.shape, np.nan)
    for row, fit in zip(residual, fits, strict=True):
        row[fit.columns] = -fit.log_error(efficiency)
    return LatencyFit(
        form=form,
        kernels=readings.kernels,
        sm_s_mhz=table[:, 0],
        memory_s_mhz=table[:, 1],
        fixed_s=table[:, 2],
        exponent=table[:, 3],
        cap_mhz=table[:, 4],
        memory_states=states,
        memory_efficiency=efficiency,
        standard_error=np.array([fit.standard_error(efficiency) for fit in fits]),
        log_residual=residual,
    )


def named_form(form: LatencyForm | str) -> LatencyForm:
    """Raises InputError for a name that is none."""
    if isinstance(form, LatencyForm):
        return form
    if form not in FORMS:
        raise InputError(f"latency form {form!r}: one of {', '.join(FORMS)} is right")
    return FORMS[form]


class _Kernel:
    """One kernel's readings in units in which every coefficient is about 1, and its coefficients.

    ``theta`` = SM-bound, memory-bound and fixed time at the fastest reading, exponent, cap over highest
    clock.
    """

    def __init__(self, readings: Readings, row: int, form: LatencyForm) -> None:
        time = readings.time_s[row]
        self.columns = np.flatnonzero(~np.isnan(time))
        self.time_s = time[self.columns]
        self.sm = readings.effective_sm_mhz[row, self.columns]
        self.mem = readings.mem_mhz[self.columns]
        self.state = np.searchsorted(readings.memory_states, self.mem)
        self.unit_s, self.unit_sm, self.unit_mem = self.time_s.min(), self.sm.max(), self.mem.max()
        self.target = self.time_s / self.unit_s
        self.form = form
        self.exponent = form.exponent
        if form.exponent is None and self.columns.size <= n_parameters(form):
            self.exponent = DEFAULT_EXPONENT
        self.theta = np.array([1.0, 1.0, 0.0, self.exponent or DEFAULT_EXPONENT, 1.0])

    def model(self, theta: Floats, efficiency: Floats) -> Floats:
        slow_sm = self.unit_sm / np.minimum(self.sm, theta[4] * self.unit_sm)
        slow_mem = self.unit_mem / (self.mem * efficiency[self.state])
        model: Floats = p_norm(theta[0] * slow_sm, theta[1] * slow_mem, float(theta[3])) + theta[2]
        return model

    def log_error(self, efficiency: Floats, theta: Floats | None = None) -> Floats:
        """(n_readings,): log of fitted over measured."""
        model = self.model(self.theta if theta is None else theta, efficiency)
        error: Floats = np.log(np.maximum(model, 1e-9) / self.target)
        return error

    def polish(self, efficiency: Floats, scale: float) -> None:
        """Robust least squares from where it stands; kept where it is better."""
        start, free = self.theta, self.free
        low, high = (np.array(bound)[free] for bound in _BOUNDS)
        inside = np.clip(start[free], low, high)
        result = least_squares(
            self._residual(efficiency, start, free),
            inside,
            bounds=(low, high),
            loss="soft_l1",
            f_scale=scale,
            x_scale=np.maximum(inside, 0.05),
        )
        polished = start.copy()
        polished[free] = result.x
        self.theta = min(
            (start, polished), key=lambda theta: robust_cost(self.log_error(efficiency, theta), scale)
        )

    @property
    def free(self) -> Bools:
        return np.array(
            [True, True, self.form.fixed, self.exponent is None, self.form.capped], dtype=np.bool_
        )

    @property
    def coefficients(self) -> tuple[float, float, float, float, float]:
        sm, memory, fixed, exponent, cap = (float(x) for x in self.theta)
        return (
            sm * self.unit_s * self.unit_sm,
            memory * self.unit_s * self.unit_mem,
            fixed * self.unit_s,
            exponent,
            cap * self.unit_sm if self.form.capped and cap < 1.0 else np.inf,
        )

    def standard_error(self, efficiency: Floats) -> Floats:
        """(4,), from the curvature at the fit; NaN for what is at a bound or not fitted."""
        low, high = (np.array(bound) for bound in _BOUNDS)
        inner = self.free & (self.theta > low + 1e-6) & (self.theta < high - 1e-6)
        error = np.full(5, np.nan)
        n, k = self.columns.size, int(inner.sum())
        if 0 < k < n:
            step = 1e-5 * np.maximum(self.theta, 0.1)
            at = self.log_error(efficiency)
            columns = []
            for i in np.flatnonzero(inner):
                moved = self.theta.copy()
                moved[i] += step[i]
                columns.append((self.log_error(efficiency, moved) - at) / step[i])
            jacobian = np.stack(columns, axis=1)
            scale = np.linalg.norm(jacobian, axis=0)
            determined = scale > 1e-6
            information = (jacobian / np.maximum(scale, 1e-12)).T @ (jacobian / np.maximum(scale, 1e-12))
            if np.linalg.cond(information[np.ix_(determined, determined)]) < 1e10:
                inverse = np.linalg.pinv(information)
                variance = np.diag(inverse) / np.maximum(scale, 1e-12) ** 2 * (at @ at) / (n - k)
                error[np.flatnonzero(inner)[determined]] = np.sqrt(variance[determined])
        units = np.array([self.unit_s * self.unit_sm, self.unit_s * self.unit_mem, self.unit_s, 1.0])
        in_units: Floats = error[:4] * units
        return in_units

    def _residual(self, efficiency: Floats, start: Floats, free: Bools) -> Callable[[Floats], Any]:
        def residual(x: Floats) -> Floats:
            theta = start.copy()
            theta[free] = x
            return self.log_error(efficiency, theta)

        return residual

    def scan(self, efficiency: Floats) -> Floats:
        """Best of a grid of shares, exponents and caps; scale and fixed part are linear and solved for.

        The grid of shares is narrowed twice: the corner of a maximum lies between two clocks.
        """
        exponents = _START_EXPONENTS if self.exponent is None else (self.exponent,)
        caps = np.unique(self.sm) / self.unit_sm if self.form.capped else np.ones(1)
        slow_mem = self.unit_mem / (self.mem * efficiency[self.state])
        best, best_cost = self.theta, np.inf
        for cap in caps[caps >= 0.5]:
            slow_sm = self.unit_sm / np.minimum(self.sm, cap * self.unit_sm)
            for exponent in exponents:
                shares = _SHARES
                for _ in range(3):
                    shape = p_norm(shares[:, None] * slow_sm, (1.0 - shares)[:, None] * slow_mem, exponent)
                    scale, fixed = _scale_and_fixed(shape / self.target, 1.0 / self.target, self.form.fixed)
                    error = (scale[:, None] * shape + fixed[:, None]) / self.target - 1.0
                    cost = (error**2).sum(axis=1)
                    # beyond its corner a maximum has many equal shares: the one at the corner is refined
                    i = int(np.argmax(cost <= cost.min() * (1.0 + 1e-6) + 1e-15))
                    if cost[i] < best_cost * (1.0 - 1e-9):
                        best_cost = float(cost[i])
                        sm, memory = scale[i] * shares[i], scale[i] * (1.0 - shares[i])
                        best = np.array([sm, memory, fixed[i], exponent, cap])
                    shares = np.linspace(shares[max(i - 1, 0)], shares[min(i + 1, shares.size - 1)], 31)
        return best


_BOUNDS: Final = ((0.0, 0.0, 0.0, 1.0, 0.3), (np.inf, np.inf, np.inf, LARGEST_EXPONENT, 1.0))


def _scale_and_fixed(shape: Floats, ones: Floats, fixed: bool) -> tuple[Floats, Floats]:
    """Non-negative s, c that minimize |s shape + c ones - 1|^2 for each row of ``shape``."""
    ss, so, oo = (shape * shape).sum(axis=1), shape @ ones, float(ones @ ones)
    s1, o1 = shape.sum(axis=1), float(ones.sum())
    alone = s1 / ss
    if not fixed:
        return alone, np.zeros_like(alone)
    det = ss * oo - so * so
    regular = det > 1e-12 * ss * oo
    safe = np.where(regular, det, 1.0)
    scale, constant = (s1 * oo - so * o1) / safe, (ss * o1 - so * s1) / safe
    use = regular & (scale > 0) & (constant >= 0)
    return np.where(use, scale, alone), np.where(use, constant, 0.0)


def _efficiencies(fits: list[_Kernel], efficiency: Floats, scale: float) -> Floats:
    """One memory clock after the other, for the kernels as they stand; the highest is the unit."""
    updated = efficiency.copy()
    for state in range(efficiency.size - 1):

        def cost(value: float, state: int = state) -> float:
            trial = updated.copy()
            trial[state] = value
            return sum(robust_cost(kernel.log_error(trial), scale) for kernel in fits)

        found = cast(Any, minimize_scalar(cost, bounds=(0.7, 1.1), method="bounded", options={"xatol": 1e-4}))
        updated[state] = float(found.x)
    return updated
