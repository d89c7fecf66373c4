"""Fit the surfaces to what is published: by least squares, robustly, always from the same start.

For each kernel: time and energy at the clocks of Table 1, the extremes of both over all clocks, and that no
other clocks are better at the slope between energy and time which Table 1's choices share. For all
together: the pass sweeps, loosely, for they are another campaign; and the totals of Table 2. Parameters
without data of their own stay near those of their class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from kdvfs_sim.core.clocks import AUTO, Clocks
from kdvfs_sim.gpu.gpt3xl_3080ti.calls import CALLS
from kdvfs_sim.gpu.gpt3xl_3080ti.published import Published
from kdvfs_sim.gpu.gpt3xl_3080ti.surface import CLOCKS, Board, Floats, Kernels, Surfaces, surfaces

# start and relative step of every shared parameter, all positive
_SHARED: Final[dict[str, tuple[float, float]]] = {
    "static_405_w": (25.0, 0.3),
    "static_810_w": (25.0, 0.3),
    "static_5001_w": (57.0, 0.2),
    "static_9501_w": (80.0, 0.1),
    "efficiency_405": (0.75, 0.1),
    "efficiency_810": (0.93, 0.1),
    "efficiency_5001": (0.95, 0.1),
    "ceiling_mhz": (1877.0, 0.01),
    "ceiling_810_mhz": (1985.0, 0.02),
    "knee_mhz": (1400.0, 0.1),
    "rise": (0.3, 0.3),
    "bend": (0.45, 0.3),
    "slope_w": (380.0, 0.1),
}
# a kernel's: SM clock at AUTO, memory-bound over SM-bound time, fixed share, power by clock, work and traffic
_CLASS_START: Final = {
    "gemm": (1835.0, 0.25, 0.004, 24.0, 108.0, 5.0),
    "batched": (1850.0, 0.70, 0.008, 24.0, 88.0, 50.0),
    "stream": (1850.0, 3.00, 0.006, 21.0, 46.0, 88.0),
    "tiny": (1850.0, 0.10, 0.300, 18.0, 20.0, 1.0),
}
_OWN_STEP: Final = np.array([0.005, 0.4, 1.0, 0.3, 0.3, 0.6])
_OWN_PRIOR: Final = np.array([0.6, 0.5, 0.5, 0.5, 0.5, 0.5])
_N_SHARED: Final = len(_SHARED)
_N_OWN: Final = _OWN_STEP.size
_LARGEST_FIXED: Final = 0.9
# Totals of Table 2 and of the text: time and energy relative to AUTO.
_TOTALS: Final = {"edp_local": (1.1003, 0.7266), "edp": (1.1028, 0.7248), "floor": (1.841, 0.631)}
_TOTALS_TOLERANCE: Final = 0.006
# Weight of the totals and softness of a kernel's choice, stage after stage: choices are made hard gradually.
_STAGES: Final = ((0.0, 0.006), (1.0, 0.006), (1.0, 0.004), (1.0, 0.003), (1.5, 0.002), (2.0, 0.0015))
_DIFFERENCE: Final = 1e-4
_LARGEST_STEP: Final = 3.0
_MAX_STEPS: Final = 80
_SETTLED: Final = 1e-5


@dataclass(frozen=True, kw_only=True, eq=False)
class Fitted:
    """``slope_w``: the energy, in J, that a second is worth to Table 1's choices."""

    board: Board
    kernels: Kernels
    slope_w: float

    @property
    def surfaces(self) -> Surfaces:
        return surfaces(self.board, self.kernels)


def fit(published: Published, report: Callable[[str], None] = lambda _: None) -> Fitted:
    """The same numbers every time on one machine. ``report`` is told of every stage.

    On another, or with another release of numpy, sums are rounded otherwise, and the search may end in
    another of several minima that fit about as well, a few units of cost apart (decision 095).
    """
    problem = _Problem(published)
    x = np.zeros(_N_SHARED + len(CALLS) * _N_OWN)
    for problem.totals_weight, problem.softness in _STAGES:
        x, cost = _least_squares(problem.residuals, problem.jacobian, x)
        report(
            f"totals weigh {problem.totals_weight:g}, choices within {problem.softness:g}: cost {cost:.2f}"
        )
    return problem.unpack(x)


class _Problem:
    """Residuals, in units of what each number is trusted to, and their derivatives."""

    def __init__(self, published: Published) -> None:
        self.published = published
        self.totals_weight, self.softness = _STAGES[0]
        self._start = np.array([_CLASS_START[call.role] for call in CALLS])
        self._loose = np.array([call.role == "gemm" for call in CALLS])
        self._excess = excess_at_auto_memory(published)
        forward = np.array([call.forward for call in CALLS])
        self._passes = {
            f"{name}_{quantity}": _shares(np.where(member, per_call, 0.0))
            for name, member in (("forward", forward), ("backward", ~forward))
            for quantity, per_call in (("time", published.auto_time_s), ("energy", published.auto_energy_j))
        }
        self._time_share = _shares(published.n_calls * published.auto_time_s)
        self._energy_share = _shares(published.n_calls * published.auto_energy_j)

    def unpack(self, x: Floats) -> Fitted:
        shared = {
            name: start * float(np.exp(step * x[i]))
            for i, (name, (start, step)) in enumerate(_SHARED.items())
        }
        slope_w = shared.pop("slope_w")
        own = self._start * np.exp(_OWN_STEP * x[_N_SHARED:].reshape(-1, _N_OWN))
        auto_sm, ratio, fixed, clock, work, traffic = own.T
        fixed = np.minimum(fixed, _LARGEST_FIXED)
        sm_time = (1.0 - fixed) / (1.0 + ratio**4) ** 0.25
        kernels = Kernels(
            auto_sm_mhz=auto_sm,
            sm_time=sm_time,
            memory_time=sm_time * ratio,
            fixed_time=fixed,
            clock_w=clock,
            work_w=work,
            traffic_w=traffic,
            cap_w=self.published.auto_power_w,
        )
        return Fitted(board=Board(**shared, excess=self._excess), kernels=kernels, slope_w=slope_w)

    def residuals(self, x: Floats) -> Floats:
        found, slope_w = self._surfaces(x)
        return np.concatenate(
            [
                self._own(found, slope_w, x).ravel(),
                self._sweeps(found),
                self._policies(found).sum(axis=1) - self._wanted,
            ]
        )

    def jacobian(self, x: Floats) -> Floats:
        """By differences. A kernel's own parameters move its own rows only, and what is a sum over
        kernels by its own term: all kernels are moved at once."""
        at = self.residuals(x)
        found, slope_w = self._surfaces(x)
        own, policies = self._own(found, slope_w, x), self._policies(found)
        jacobian = np.zeros((at.size, x.size))
        for i in range(_N_SHARED):
            moved = x.copy()
            moved[i] += _DIFFERENCE
            jacobian[:, i] = (self.residuals(moved) - at) / _DIFFERENCE
        kernels = np.arange(len(CALLS))
        n_rows = own.shape[1]
        for j in range(_N_OWN):
            columns = _N_SHARED + kernels * _N_OWN + j
            moved = x.copy()
            moved[columns] += _DIFFERENCE
            other, _ = self._surfaces(moved)
            change = (self._own(other, slope_w, moved) - own) / _DIFFERENCE
            for kernel in kernels:
                jacobian[kernel * n_rows : (kernel + 1) * n_rows, columns[kernel]] = change[kernel]
            terms = [self._sweep_terms(found, other), (self._policies(other) - policies)]
            jacobian[own.size :, columns] = np.concatenate(terms) / _DIFFERENCE
        return jacobian

    def _surfaces(self, x: Floats) -> tuple[Surfaces, float]:
        fitted = self.unpack(x)
        return fitted.surfaces, fitted.slope_w

    def _own(self, found: Surfaces, slope_w: float, x: Floats) -> Floats:
        """(n_kernels, n): what is published of each kernel, and how far it is from its class."""
        published, kernels = self.published, np.arange(len(CALLS))
        time, energy, chosen = found.time, found.energy, published.chosen
        price = slope_w / published.auto_power_w
        cheapest = (energy + price[:, None] * time).min(axis=1)
        product = time * energy
        slow_memory = np.array([clocks.mem_mhz in (405, 810) for clocks in CLOCKS])
        return np.stack(
            [
                (time[kernels, chosen] - published.chosen_time) / 0.003,
                (energy[kernels, chosen] - published.chosen_energy) / 0.006,
                (time.min(axis=1) - published.least_time) / 0.003,
                # at 405 MHz three large products are far slower than their traffic explains
                np.log(time.max(axis=1) / published.most_time) / np.where(self._loose, 0.5, 0.05),
                (energy.min(axis=1) - published.least_energy) / 0.01,
                np.log(energy.max(axis=1) / published.most_energy) / 0.05,
                np.maximum(published.chosen_energy + price * published.chosen_time - cheapest, 0.0) / 0.004,
                # "405 and 810 MHz are never best", in energy times delay
                np.maximum(
                    np.log(product[:, ~slow_memory].min(axis=1) / product[:, slow_memory].min(axis=1)), 0.0
                )
                / 0.01,
                *(x[_N_SHARED:].reshape(-1, _N_OWN) * _OWN_PRIOR).T,
            ],
            axis=1,
        )

    def _sweeps(self, found: Surfaces) -> Floats:
        """Both passes, time and energy, one layer each with the loss in the backward pass."""
        rows = []
        for name, share in self._passes.items():
            measured = getattr(self.published, name)
            modelled = share @ (found.time if name.endswith("time") else found.energy)
            rows.append(np.log(modelled / measured) / _sweep_tolerance(measured))
        return np.concatenate(rows)

    def _sweep_terms(self, found: Surfaces, other: Surfaces) -> Floats:
        rows = []
        for name, share in self._passes.items():
            before, after = (s.time if name.endswith("time") else s.energy for s in (found, other))
            tolerance = _sweep_tolerance(getattr(self.published, name))
            rows.append((share[:, None] * (after - before) / (share @ before) / tolerance).T)
        return np.concatenate(rows)

    @property
    def _wanted(self) -> Floats:
        return self.totals_weight / _TOTALS_TOLERANCE * np.array(list(_TOTALS.values())).ravel()

    def _policies(self, found: Surfaces) -> Floats:
        """(n, n_kernels): each kernel's part of the totals, time and energy, its choice made softly."""
        time, energy = found.time, found.energy
        mean_w = (self.published.n_calls @ self.published.auto_energy_j) / (
            self.published.n_calls @ self.published.auto_time_s
        )
        total_time, total_energy = _TOTALS["edp"]
        price = mean_w / self.published.auto_power_w[:, None] * total_energy / total_time
        rows = []
        for cost in (np.log(time * energy), energy + price * time, energy):
            weight = np.exp(-(cost - cost.min(axis=1, keepdims=True)) / self.softness)
            weight /= weight.sum(axis=1, keepdims=True)
            rows += [
                self._time_share * (weight * time).sum(axis=1),
                self._energy_share * (weight * energy).sum(axis=1),
            ]
        return self.totals_weight / _TOTALS_TOLERANCE * np.stack(rows)


def excess_at_auto_memory(published: Published) -> float:
    """Power at SM 1680 MHz with AUTO memory over that with 9501 MHz locked: mean of both passes."""
    auto, locked = (CLOCKS.index(Clocks(1680, mem)) for mem in (AUTO, 9501))
    energies = (published.forward_energy, published.backward_energy)
    return float(np.mean([energy[auto] / energy[locked] for energy in energies]))


def _shares(amounts: Floats) -> Floats:
    shares: Floats = amounts / amounts.sum()
    return shares


def _sweep_tolerance(measured: Floats) -> Floats:
    return np.maximum(0.04, 0.1 * np.abs(np.log(measured)))


def _least_squares(
    residuals: Callable[[Floats], Floats], jacobian: Callable[[Floats], Floats], x: Floats
) -> tuple[Floats, float]:
    """Levenberg and Marquardt on the loss ``sqrt(1 + r^2)``: outliers count linearly."""
    damping, r = 1e-2, residuals(x)
    cost = _loss(r)
    for _ in range(_MAX_STEPS):
        j, weight = jacobian(x), 1.0 / np.sqrt(1.0 + r * r)
        normal, gradient = (j * weight[:, None]).T @ j, (j * weight[:, None]).T @ r
        scale = np.diag(np.diag(normal) + 1e-3)
        before = cost
        while cost == before and damping < 1e6:
            step = np.linalg.solve(normal + damping * scale, -gradient)
            step *= min(1.0, _LARGEST_STEP / float(np.abs(step).max()))
            tried = residuals(x + step)
            if _loss(tried) < cost:
                x, r, cost, damping = x + step, tried, _loss(tried), damping / 3.0
            else:
                damping *= 4.0
        if before - cost < _SETTLED * before:
            break
    return x, cost


def _loss(r: Floats) -> float:
    return float((np.sqrt(1.0 + r * r) - 1.0).sum())
