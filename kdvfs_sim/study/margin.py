"""Times raised by what a fit leaves unexplained: a schedule then keeps its budget though the model errs."""

from __future__ import annotations

from dataclasses import replace

from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.gpu.facts import Level
from kdvfs_sim.study.scene import Scene


def with_time_margin(scene: Scene) -> Scene:
    """The scene with every time at other clocks than those recorded longer by ``latency.residual_p95``.

    95 % of the readings that the GPU's entry was fitted to stay below that. Raises InputError if the entry
    was not fitted to readings.
    """
    margin = scene.gpu.need("latency.residual_p95").value
    costs = {level: table.with_time_margin(margin) for level, table in scene.costs.items()}
    tables = scene.power_table

    def raised(level: Level, power_limit_w: float | None) -> CostTable:
        assert tables is not None
        return tables(level, power_limit_w).with_time_margin(margin)

    return replace(
        scene,
        costs=costs,
        chain=scene.program.chain(
            costs["nominal"], stream=(scene.chain.device, scene.chain.stream), start=scene.start
        ),
        power_table=None if tables is None else raised,
        flags=(*scene.flags, f"times at clocks other than those recorded include a margin of {margin:.1%}"),
    )
