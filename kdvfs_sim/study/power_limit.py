"""The power-limit baseline: the best static limit, alone and together with the best single lock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kdvfs_sim.core.clocks import AUTO_CLOCKS, Clocks
from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.core.problem import Objective
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.core.switching import SwitchProtocol
from kdvfs_sim.gpu.facts import Level
from kdvfs_sim.study.scene import LEVELS, Scene


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLimitChoice:
    """The best limit found. ``tables``: the GPU under it, at each corner of the assumptions."""

    limit_w: float
    clocks: Clocks
    schedule: Schedule
    tables: Mapping[Level, CostTable]


def best_power_limit(
    scene: Scene, protocol: str | SwitchProtocol, objective: Objective, *, with_lock: bool
) -> PowerLimitChoice | str:
    """The limit (and the lock, if ``with_lock``) that is best within the budget.

    A limit is a setting, not a request: it costs nothing and is in force from the start. Returns
    the reason as text where there is no answer.
    """
    if scene.power_table is None or not scene.power_limits_w:
        return f"the range of power limits of {scene.gpu.name} is unknown"
    if len(scene.program.streams) > 1:
        return "overlapping kernels: which clocks another limit leads to is not modelled"
    choices = scene.choices
    candidates = [pair for pair, allowed in zip(choices.clocks, choices.requestable, strict=True) if allowed]
    best: tuple[float, float, Clocks] | None = None
    idle_w = scene.gpu.value("power.idle_w", 0.0)
    for limit_w in (watts for watts in scene.power_limits_w if watts > idle_w):  # others cannot be kept
        table = scene.power_table("nominal", limit_w)
        judge = scene.judge(protocol, costs=table)
        for clocks in candidates if with_lock else (AUTO_CLOCKS,):
            metrics = judge(scene.static(clocks, protocol))
            if metrics.energy_j is not None and objective.allows(metrics.time_s, metrics.energy_j):
                found = (objective.value(metrics.time_s, metrics.energy_j), limit_w, clocks)
                best = found if best is None or found[0] < best[0] else best
    if best is None:
        return "no limit keeps the budget"
    _, limit_w, clocks = best
    return PowerLimitChoice(
        limit_w=limit_w,
        clocks=clocks,
        schedule=scene.static(clocks, protocol),
        tables={level: scene.power_table(level, limit_w) for level in LEVELS},
    )
