"""Published workloads that load by name, each with the cost table that was fitted to it."""

from __future__ import annotations

from dataclasses import dataclass

from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.gpu.gpt3xl_3080ti import shipped as gpt3xl_3080ti
from kdvfs_sim.trace.table import Trace


@dataclass(frozen=True, kw_only=True, eq=False)
class PublishedRun:
    """``gpu``: the catalogue entry that gives switching costs. ``costs`` belong to the kinds of ``trace``."""

    name: str
    gpu: str
    trace: Trace
    costs: CostTable


def find_published_run(name: str) -> PublishedRun | None:
    """The run of this name, or None."""
    if name != gpt3xl_3080ti.NAME:
        return None
    return PublishedRun(
        name=name, gpu=gpt3xl_3080ti.GPU, trace=gpt3xl_3080ti.trace(), costs=gpt3xl_3080ti.cost_table()
    )
