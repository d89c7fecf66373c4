"""How effective clocks move when the load changes and nobody asked for anything."""

from __future__ import annotations

from dataclasses import dataclass

from kdvfs_sim.core.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicGovernor:
    """Time constants of the governor's own clock moves (replay only; see docs/explanation/replay.md).

    The ``steady`` governor is the absence of this object: effective clocks jump to
    ``CostTable.effective`` at once. With it, ``sense_ns`` after the set of running kernels changes
    the SM clock starts to move towards the steady row and gets there in ``steps`` equal steps
    within ``fall_ns`` (downwards) or ``rise_ns`` (upwards). A fall first goes ``overshoot`` times
    its own depth too far, then recovers within ``rise_ns``. A lock that lands acts at once.
    """

    sense_ns: int
    fall_ns: int
    rise_ns: int
    steps: int = 4
    overshoot: float = 0.0

    def __post_init__(self) -> None:
        if min(self.sense_ns, self.fall_ns, self.rise_ns) < 0 or self.steps < 1 or self.overshoot < 0:
            raise InputError(f"{self}: times and overshoot are at least 0, steps at least 1")
