"""How effective clocks move when the load changes and nobody asked for anything."""

from __future__ import annotations

from dataclasses import dataclass

from kdvfs_sim.core.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerBudget:
    """What a device that has rested may draw: more than the cap at first, then the cap on average.

    Looked at every ``tick_ns``; shares are of the table's ``cap_w``. The allowance is the lowest of

    - ``most``, also the first allowance of a rested device;
    - a burst level: it moves by ``burst_gain`` times what the last tick's power lies below ``burst``;
    - the cap, plus ``gain`` times what the mean power of the last ``n_ticks`` lies below the cap, but
      at least ``least``;
    - the last allowance plus ``rise``.

    ``burst_of``: another ``burst`` for kernels of a category. Source and residuals: docs/decisions/090.
    """

    tick_ns: int
    n_ticks: int
    gain: float
    burst: float
    burst_gain: float
    most: float
    least: float
    rise: float
    burst_of: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        if min(self.tick_ns, self.n_ticks) < 1 or min(self.gain, self.burst_gain) < 0 or self.rise <= 0:
            raise InputError(f"{self}: a tick of 1 ns, 1 tick, gains of 0 and a rise above 0 are the least")
        bursts = (self.burst, *(share for _, share in self.burst_of))
        if not 0 <= self.least <= 1 <= min(bursts) <= max(bursts) <= self.most:
            raise InputError(f"{self}: least, 1 (the cap itself), every burst, most in this order are right")


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicGovernor:
    """Time constants of the governor's own clock moves (replay only; see docs/explanation/replay.md).

    The ``steady`` governor is the absence of this object: effective clocks jump to
    ``CostTable.effective`` at once. With it, ``sense_ns`` after the set of running kernels changes
    the SM clock starts to move towards the steady row and gets there in ``steps`` equal steps
    within ``fall_ns`` (downwards) or ``rise_ns`` (upwards). A fall first goes ``overshoot`` times
    its own depth too far, then recovers within ``rise_ns``. A lock that lands acts at once.
    ``budget``: how far from the steady row a device may be that starts rested (one-shot replays of a
    table with a cap); None, and where a trace is one iteration of many: the cap holds each kernel.
    """

    sense_ns: int
    fall_ns: int
    rise_ns: int
    steps: int = 4
    overshoot: float = 0.0
    budget: PowerBudget | None = None

    def __post_init__(self) -> None:
        if min(self.sense_ns, self.fall_ns, self.rise_ns) < 0 or self.steps < 1 or self.overshoot < 0:
            raise InputError(f"{self}: times and overshoot are at least 0, steps at least 1")
