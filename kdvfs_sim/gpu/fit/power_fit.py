"""Power forms fitted to readings: ``P0 + m f_mem + b V^2 f + e V^2 / t + g / t``, one V(f) for a GPU.

Coefficients are at least 0 and each kernel's own, or, with a shared floor, P0 and m are the GPU's. 1 / t is
the work rate: e is an energy per launch. Static power, idle power and dynamic power that the voltage does
not scale cannot be told apart by a clock sweep: P0 is a floor of the fit, not a property of the chip.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, cast

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize, nnls

from kdvfs_sim.core.errors import InputError
from kdvfs_sim.gpu.fit.readings import Bools, Floats, Readings
from kdvfs_sim.gpu.fit.residuals import ErrorSummary, determined, margin_factor, outlier_scale, summarize
from kdvfs_sim.gpu.fit.voltage import KNEE_GRID, RISE_GRID, Voltage, judge_voltage, relative_voltage

Term: TypeAlias = Literal["linear", "cubic", "tree", "work", "rate"]
# What one unit of each term means: W, W per MHz of memory clock, then W per MHz, W per GHz^3, and joules a
# launch.
_VOLTAGE_TERMS: Final = ("tree", "work")
_TIME_TERMS: Final = ("work", "rate")
_REWEIGHTINGS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerForm:
    """``terms`` beside the floor and, where there are several memory clocks, the memory's part.

    ``linear`` f, ``cubic`` f^3, ``tree`` V^2 f, ``work`` V^2 / t, ``rate`` 1 / t.
    """

    name: str
    terms: tuple[Term, ...]
    shared_floor: bool = False

    @property
    def needs_voltage(self) -> bool:
        return any(term in _VOLTAGE_TERMS for term in self.terms)

    @property
    def needs_time(self) -> bool:
        return any(term in _TIME_TERMS for term in self.terms)


FORMS: Final[dict[str, PowerForm]] = {
    form.name: form
    for form in (
        PowerForm(name="a+bf", terms=("linear",)),
        PowerForm(name="a+bf3", terms=("cubic",)),
        PowerForm(name="a+bV2f", terms=("tree",)),
        PowerForm(name="a+eV2/t", terms=("work",)),
        PowerForm(name="a+bV2f+eV2/t", terms=("tree", "work")),
        PowerForm(name="a+bV2f+eV2/t+g/t", terms=("tree", "work", "rate")),
        PowerForm(name="A+bV2f+eV2/t", terms=("tree", "work"), shared_floor=True),
    )
}


@dataclass(frozen=True, kw_only=True, eq=False)
class PowerFit:
    """Coefficients of each kernel, arrays of shape (n_kernels,), and what they leave unexplained.

    ``floor_w``; ``memory_w_per_mhz`` (0 with one memory clock); ``coefficients`` (n_kernels, n_terms): W per
    MHz, W per GHz^3, or J a launch, in the order of ``form.terms``. ``voltage`` is None for forms without it.
    ``standard_error`` (n_kernels, 2 + n_terms): of floor, memory and terms, NaN where a bound was reached.
    ``log_residual`` (n_kernels, n_clocks): log of measured over fitted.
    """

    form: PowerForm
    kernels: tuple[str, ...]
    floor_w: Floats
    memory_w_per_mhz: Floats
    coefficients: Floats
    voltage: Voltage | None
    standard_error: Floats
    log_residual: Floats

    def power_w(self, sm_mhz: npt.ArrayLike, mem_mhz: npt.ArrayLike, time_s: npt.ArrayLike) -> Floats:
        """(n_kernels, n): at n clock pairs, for times (n_kernels, n) in the unit of the sweep."""
        time = np.broadcast_to(np.asarray(time_s, dtype=np.float64), (len(self.kernels), np.size(mem_mhz)))
        sm = np.broadcast_to(np.asarray(sm_mhz, dtype=np.float64), time.shape)
        voltage = np.ones(time.shape) if self.voltage is None else self.voltage.at(sm)
        power = self.floor_w[:, None] + self.memory_w_per_mhz[:, None] * np.asarray(mem_mhz, dtype=np.float64)
        for i, term in enumerate(self.form.terms):
            power = power + self.coefficients[:, i, None] * _column(term, sm, voltage, time)
        return power

    @property
    def n_parameters(self) -> int:
        """Of one kernel: the floor, the terms, and the memory's part where it was fitted."""
        return 1 + len(self.form.terms) + bool(self.memory_w_per_mhz.any())

    @property
    def determined(self) -> Bools:
        """(n_kernels,): see ``residuals.determined``."""
        return determined(self.log_residual, self.n_parameters)

    @property
    def errors(self) -> ErrorSummary:
        """Of the kernels that are determined."""
        return summarize(self.log_residual[self.determined])

    def margin(self, margin: str | None) -> Floats:
        """(n_kernels,): factor on predicted powers, see ``margin_factor``."""
        return margin_factor(self.log_residual, self.n_parameters, margin)


def fit_power(
    readings: Readings, form: PowerForm | str = "a+bV2f+eV2/t", *, voltage: Voltage | None = None
) -> PowerFit:
    """Fit a form to every kernel, robustly on relative errors; V(f) to all kernels together.

    ``voltage``: a curve known from elsewhere, else it is fitted (with ``rate``, a term that V does not
    scale, it comes from the form without it). Raises InputError where a kernel has no power, or a form
    needs times that are missing.
    """
    form = named_form(form)
    kernels = [_Kernel(readings, k, form) for k in range(readings.n_kernels)]
    if form.needs_voltage and voltage is None:
        voltage = _fit_voltage(readings, form)
    for kernel in kernels:
        kernel.fit(voltage, np.inf)
    scale = outlier_scale(np.concatenate([kernel.error(voltage) for kernel in kernels]))
    for kernel in kernels:
        kernel.fit(voltage, scale)
    if form.shared_floor:
        _share_floor(kernels, voltage, scale)
    residual = np.full(readings.power_w.shape, np.nan)
    for row, kernel in zip(residual, kernels, strict=True):
        row[kernel.columns] = -np.log(np.maximum(1.0 + kernel.error(voltage), 1e-9))
    table = np.array([kernel.theta / kernel.units for kernel in kernels])
    return PowerFit(
        form=form,
        kernels=readings.kernels,
        floor_w=table[:, 0],
        memory_w_per_mhz=table[:, 1],
        coefficients=table[:, 2:],
        voltage=voltage if form.needs_voltage else None,
        standard_error=np.array([kernel.standard_error(voltage) for kernel in kernels]),
        log_residual=residual,
    )


def named_form(form: PowerForm | str) -> PowerForm:
    """Raises InputError for a name that is none."""
    if isinstance(form, PowerForm):
        return form
    if form not in FORMS:
        raise InputError(f"power form {form!r}: one of {', '.join(FORMS)} is right")
    return FORMS[form]


def _column(term: Term, sm_mhz: Floats, voltage: Floats, time_s: Floats) -> Floats:
    column: Floats
    if term == "linear":
        column = sm_mhz
    elif term == "cubic":
        column = (sm_mhz * 1e-3) ** 3
    elif term == "tree":
        column = voltage**2 * sm_mhz
    elif term == "work":
        column = voltage**2 / time_s
    else:
        column = 1.0 / time_s
    return column


class _Kernel:
    """One kernel's powers, and its coefficients ``theta`` in units in which each column is about 1.

    ``units`` turn them into W, W per MHz of memory clock, and the units of the terms.
    """

    def __init__(self, readings: Readings, row: int, form: PowerForm) -> None:
        known = ~np.isnan(readings.power_w[row])
        if form.needs_time:
            known &= ~np.isnan(readings.time_s[row])
        self.columns = np.flatnonzero(known)
        if not self.columns.size:
            raise InputError(
                f"{readings.source or 'sweep'}: {readings.kernels[row]} has no power"
                f"{' with a time' * form.needs_time}"
            )
        self.form = form
        self.power = readings.power_w[row, self.columns]
        self.sm = readings.effective_sm_mhz[row, self.columns]
        self.mem = readings.mem_mhz[self.columns]
        self.time = readings.time_s[row, self.columns]
        self.n_memory = readings.memory_states.size
        ones = np.ones(self.columns.size)
        scale = [float(_column(term, self.sm, ones, self.time).max()) for term in form.terms]
        self.units = np.array([1.0, float(self.mem.max()), *scale])
        self.theta = np.zeros(self.units.size)

    def design(self, voltage: Floats) -> Floats:
        """(n_readings, 2 + n_terms), divided by the power: the target is 1 everywhere."""
        memory = self.mem if self.n_memory > 1 else np.zeros(self.mem.size)
        columns = [np.ones(self.mem.size), memory]
        columns += [_column(term, self.sm, voltage, self.time) for term in self.form.terms]
        design: Floats = np.stack(columns, axis=1) / self.units / self.power[:, None]
        return design

    def volts(self, voltage: Voltage | None) -> Floats:
        return np.ones(self.sm.size) if voltage is None else voltage.at(self.sm)

    def cost(self, voltage: Floats) -> float:
        """Squared relative error of the best coefficients."""
        design = self.design(voltage)
        return float(nnls(design, np.ones(design.shape[0]))[1]) ** 2

    def fit(self, voltage: Voltage | None, scale: float) -> None:
        self.theta = _robust_nnls(self.design(self.volts(voltage)), scale)

    def error(self, voltage: Voltage | None) -> Floats:
        """(n_readings,): fitted over measured, less 1."""
        error: Floats = self.design(self.volts(voltage)) @ self.theta - 1.0
        return error

    def standard_error(self, voltage: Voltage | None) -> Floats:
        error = np.full(self.theta.size, np.nan)
        inner = self.theta > 0
        n, k = self.columns.size, int(inner.sum())
        if 0 < k < n:
            design = self.design(self.volts(voltage))[:, inner]
            if np.linalg.cond(design) < 1e8:
                residual = self.error(voltage)
                variance = np.diag(np.linalg.inv(design.T @ design)) * (residual @ residual) / (n - k)
                error[inner] = np.sqrt(variance)
        scaled: Floats = error / self.units
        return scaled


def _fit_voltage(readings: Readings, form: PowerForm) -> Voltage:
    """Scan of knee and rise over all kernels, then a polish; ranges by resampling the kernels."""
    scaled = PowerForm(name=form.name, terms=tuple(t for t in form.terms if t in _VOLTAGE_TERMS))
    kernels = [_Kernel(readings, k, scaled) for k in range(readings.n_kernels)]
    top = max(float(kernel.sm.max()) for kernel in kernels)
    lowest = min(float(kernel.sm.min()) for kernel in kernels)

    def costs(knee: float, rise: float) -> Floats:
        return np.array([k.cost(relative_voltage(k.sm, knee * top, rise, top)) for k in kernels])

    grid = np.array([[costs(knee, rise) for rise in RISE_GRID] for knee in KNEE_GRID]).transpose(2, 0, 1)
    best = np.unravel_index(int(grid.sum(axis=0).argmin()), grid.shape[1:])
    low, high = (KNEE_GRID[0], RISE_GRID[0]), (KNEE_GRID[-1], RISE_GRID[-1])

    def total(x: Floats) -> float:
        knee, rise = np.clip(x, low, high)
        return float(costs(float(knee), float(rise)).sum())

    found = cast(
        Any,
        minimize(
            total,
            (KNEE_GRID[best[0]], RISE_GRID[best[1]]),
            method="Nelder-Mead",
            options={"xatol": 2e-3, "fatol": 1e-9, "maxiter": 60},
        ),
    )
    knee, rise = (float(x) for x in np.clip(found.x, low, high))
    return judge_voltage(grid, costs(KNEE_GRID[0], 0.0), lowest_mhz=lowest, top_mhz=top, knee=knee, rise=rise)


def _share_floor(kernels: list[_Kernel], voltage: Voltage | None, scale: float) -> None:
    """One floor and memory part for all: solved together with every kernel's own terms."""
    n_terms = len(kernels[0].form.terms)
    n_rows = sum(kernel.columns.size for kernel in kernels)
    memory_unit = max(kernel.units[1] for kernel in kernels)
    system = np.zeros((n_rows, 2 + n_terms * len(kernels)))
    row = 0
    for i, kernel in enumerate(kernels):
        design = kernel.design(kernel.volts(voltage))
        rows = slice(row, row + kernel.columns.size)
        system[rows, 0] = design[:, 0]
        system[rows, 1] = design[:, 1] * kernel.units[1] / memory_unit
        system[rows, 2 + i * n_terms : 2 + (i + 1) * n_terms] = design[:, 2:]
        row += kernel.columns.size
    theta = _robust_nnls(system, scale)
    for i, kernel in enumerate(kernels):
        own = theta[2 + i * n_terms : 2 + (i + 1) * n_terms]
        kernel.theta = np.array([theta[0], theta[1] * kernel.units[1] / memory_unit, *own])


def _robust_nnls(design: Floats, scale: float) -> Floats:
    """Non-negative coefficients for a target of 1 everywhere, soft L1 loss by reweighting."""
    weight = np.ones(design.shape[0])
    theta = nnls(design, weight)[0]
    for _ in range(_REWEIGHTINGS if np.isfinite(scale) else 0):
        weight = (1.0 + ((design @ theta - 1.0) / scale) ** 2) ** -0.25
        theta = nnls(design * weight[:, None], weight)[0]
    return theta
