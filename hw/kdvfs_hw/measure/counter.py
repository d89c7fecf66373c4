"""The energy counter: it moves in steps, so energy is only ever taken from step to step.

A reading takes milliseconds and the counter moves every 20 to 100 ms (100 ms on an H200, 3 to 5 ms a
read). An update is somewhere between the call of the last old reading and the return of the first new
one. Over whole periods that blur disappears: the time between two updates is a number of periods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from kdvfs_sim.core.device import EnergyReading

MIN_PERIODS: Final = 5
_MIN_EDGES: Final = 4
_SHARP: Final = 0.6  # of a period: an update seen less sharply is not used
_IRREGULAR: Final = 0.25
_MAX_DROPPED: Final = 8
READ_TOO_SELDOM: Final = (
    "the energy counter was read too seldom to tell its updates apart: "
    "was the machine busy with other things?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """An update of the counter, which happened between ``early_ns`` and ``late_ns``."""

    early_ns: int
    late_ns: int
    energy_mj: int

    @property
    def t_ns(self) -> float:
        return (self.early_ns + self.late_ns) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """How often the counter moves. ``jitter_ns``: how far updates are seen from where they should be."""

    period_ns: float
    jitter_ns: float
    n_edges: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyWindow:
    """Energy between two updates of the counter; ``energy_j`` None, with a ``reason``, if not known.

    ``ill_watched``: not known because of how the counter was read, not of what it gave.
    """

    begin_ns: float
    end_ns: float
    n_periods: int
    energy_j: float | None
    reason: str = ""
    ill_watched: bool = False

    @property
    def power_w(self) -> float | None:
        seconds = (self.end_ns - self.begin_ns) * 1e-9
        return None if self.energy_j is None or seconds <= 0 else self.energy_j / seconds


def find_edges(readings: Sequence[EnergyReading]) -> tuple[Edge, ...]:
    """Updates seen in readings that follow one another."""
    return tuple(
        Edge(early_ns=old.called_ns, late_ns=new.returned_ns, energy_mj=new.energy_mj)
        for old, new in pairwise(readings)
        if new.energy_mj != old.energy_mj
    )


def find_period(edges: Sequence[Edge]) -> Period | None:
    """The period from updates, of which few may have been missed or be out of turn; None from under four."""
    if len(edges) < _MIN_EDGES:
        return None
    apart = np.diff([edge.t_ns for edge in edges])
    # seen at every few milliseconds, updates lie one reading more or less apart: the mean of them is right
    typical = float(np.median(apart))
    near = apart[np.abs(apart - typical) <= 0.5 * typical]
    if not near.size:  # half of them far shorter, half far longer: no period shows
        return None
    typical = float(near.mean())
    t = np.array([edge.t_ns for edge in edges if edge.late_ns - edge.early_ns <= _SHARP * typical])
    if t.size < _MIN_EDGES:
        return None
    t -= t[0]
    k = np.concatenate([[0.0], np.cumsum(np.maximum(1.0, np.rint(np.diff(t) / typical)))])
    period, start = np.polyfit(k, t, 1)
    late = t - (start + period * k)
    usual = np.abs(late) <= 0.25 * period
    if usual.sum() >= _MIN_EDGES and not usual.all():
        period, start = np.polyfit(k[usual], t[usual], 1)
        late = (t - (start + period * k))[usual]
    return Period(period_ns=float(period), jitter_ns=float(np.sqrt(np.mean(late**2))), n_edges=len(edges))


def energy_between(
    edges: Sequence[Edge], period: Period | None, from_ns: int, to_ns: int, *, min_periods: int = MIN_PERIODS
) -> EnergyWindow:
    """Energy of the longest window of whole periods inside [from_ns, to_ns].

    Unknown, never 0, if the counter did not move, went back, or moved too few times.
    """
    inside = [edge for edge in edges if edge.early_ns >= from_ns and edge.late_ns <= to_ns]
    sharp = (
        [] if period is None else [e for e in inside if e.late_ns - e.early_ns <= _SHARP * period.period_ns]
    )

    def unknown(reason: str, *, ill_watched: bool = False) -> EnergyWindow:
        return EnergyWindow(
            begin_ns=from_ns,
            end_ns=to_ns,
            n_periods=0,
            energy_j=None,
            reason=reason,
            ill_watched=ill_watched,
        )

    if not inside:
        return unknown(f"the energy counter did not move in {(to_ns - from_ns) * 1e-9:.3g} s")
    if any(new.energy_mj < old.energy_mj for old, new in pairwise(inside)):
        return unknown("the energy counter went back")
    seldom = float(np.median([edge.late_ns - edge.early_ns for edge in inside]))
    if period is None and seldom > _IRREGULAR * (to_ns - from_ns) / len(inside):
        return unknown(READ_TOO_SELDOM, ill_watched=True)
    if period is None:
        return unknown("the energy counter's period is not known: it moved too seldom")
    if period.jitter_ns > _IRREGULAR * period.period_ns or len(sharp) < 2:
        return unknown(READ_TOO_SELDOM, ill_watched=True)
    pair = _in_step(sharp, period)
    if pair is None:
        return unknown("the energy counter's updates are out of step with its period", ill_watched=True)
    first, last = pair
    n_periods = round((last.t_ns - first.t_ns) / period.period_ns)
    if n_periods < min_periods:
        return unknown(
            f"too short: {n_periods} periods of the energy counter; at least {min_periods}", ill_watched=True
        )
    return EnergyWindow(
        begin_ns=first.t_ns,
        end_ns=first.t_ns + n_periods * period.period_ns,
        n_periods=n_periods,
        energy_j=(last.energy_mj - first.energy_mj) * 1e-3,
    )


def _in_step(edges: Sequence[Edge], period: Period) -> tuple[Edge, Edge] | None:
    """The two updates farthest apart whose distance is a number of periods, as exactly as they were seen.

    Else the window would be another length than the energy is of: one H200 record, whose period had been
    taken for 53.9 ms instead of 100, has readings that are 2 to 4 % off by that.
    """
    for dropped in range(min(_MAX_DROPPED, len(edges) - 1)):
        for i in range(dropped + 1):
            first, last = edges[i], edges[len(edges) - 1 - (dropped - i)]
            apart = (last.t_ns - first.t_ns) / period.period_ns
            blur_ns = (last.late_ns - last.early_ns + first.late_ns - first.early_ns) / 2 + period.jitter_ns
            if abs(apart - round(apart)) * period.period_ns <= blur_ns:
                return first, last
    return None
