"""A sweep priced with the entry made of it: what the entry's idle power and voltage cost the fit."""

from __future__ import annotations

from dataclasses import dataclass
from glob import escape
from typing import Final, cast

import numpy as np

from kdvfs_sim.core.kinds import Category, KernelKind
from kdvfs_sim.gpu.facts import GpuFacts
from kdvfs_sim.gpu.fit.entry import entry_latency, few_readings
from kdvfs_sim.gpu.fit.fit import SweepFit
from kdvfs_sim.gpu.fit.residuals import ErrorSummary, summarize
from kdvfs_sim.gpu.model import analytic_model

# What the form leaves unexplained is noise of the readings; an entry that leaves this much more errs itself.
_OVER_FORM: Final = 2.0


@dataclass(frozen=True, kw_only=True)
class EntryErrors:
    """``time``: of the shape, each kernel scaled to the form's time at the highest clocks. ``power``: in W,
    as priced. ``held``: kernels whose work share the entry's idle power and voltage hold at 0 or 1;
    ``held_power`` and ``form_power``: their power by the entry, and by the form of the fit.
    """

    time: ErrorSummary
    power: ErrorSummary
    held: tuple[str, ...]
    held_power: ErrorSummary
    form_power: ErrorSummary

    @property
    def warning(self) -> str:
        """One line where the entry errs more than the readings say it must; else ""."""
        if not self.held or self.held_power.p95_pct <= _OVER_FORM * self.form_power.p95_pct:
            return ""
        return (
            f"the entry's power of {len(self.held)} kernels, such as {self.held[0]}, errs by "
            f"{self.held_power} % (median/p95), the form by {self.form_power} %: their work_share is held at "
            "its end, so the idle power or the voltage of --gpu may not be that of your board"
        )


def entry_errors(entry: GpuFacts, fit: SweepFit) -> EntryErrors:
    """Readings of kernels with more of them than coefficients against what ``entry`` says there.

    ``entry``: what ``fitted_entry`` made of ``fit``.
    """
    assert fit.latency is not None
    readings, base = fit.readings, fit.readings.baseline
    kinds = [
        KernelKind(name=name, category=cast(Category, category))
        for name, category in zip(readings.kernels, readings.categories, strict=True)
    ]
    at_base_s = fit.latency.time_s(readings.sm_mhz[base], readings.mem_mhz[base])[:, 0]
    model = analytic_model(entry, kinds, at_base_s * 1e9, recorded=readings.clocks[base])
    few = few_readings(fit, fit.latency)
    cap_mhz = entry_latency(entry, fit, few, "middle").cap_mhz[:, None]
    sm_mhz = np.minimum(readings.effective_sm_mhz, cap_mhz)
    duration_ns = model.latency.duration_ns(sm_mhz, readings.mem_mhz)
    time_s = duration_ns / duration_ns[:, [base]] * at_base_s[:, None]
    time_error = np.log(readings.time_s / time_s)
    power_error = np.log(readings.power_w / model.power.busy_w(sm_mhz, readings.mem_mhz, duration_ns))
    known = (
        []
        if fit.power is None
        else [
            (k, i)
            for i, k in enumerate(map(readings.kernels.index, fit.power.kernels))
            if fit.power.determined[i] and not few[k]
        ]
    )
    held = [(k, i) for k, i in known if _at_an_end(entry, readings.kernels[k])]
    form_error = np.empty((0, 0)) if fit.power is None else fit.power.log_residual
    return EntryErrors(
        time=summarize(time_error[~few]),
        power=summarize(power_error[[k for k, _ in known]]),
        held=tuple(readings.kernels[k] for k, _ in held),
        held_power=summarize(power_error[[k for k, _ in held]]),
        form_power=summarize(form_error[[i for _, i in held]]),
    )


def _at_an_end(entry: GpuFacts, kernel: str) -> bool:
    fact = entry.get(f"kernel.{escape(kernel)}.work_share")
    return fact is not None and fact.value in (0.0, 1.0) and fact.kind == "measured"
