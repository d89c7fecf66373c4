"""Hypothesis strategies for every noun. They shrink to one launch, one clock, nothing else.

A failing example of one is printed as code that makes it again (``kdvfs_sim.testing.notation``).
"""

from typing import Any

from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.core.problem import Problem
from kdvfs_sim.core.switching import SwitchTable
from kdvfs_sim.testing.notation import as_code
from kdvfs_sim.testing.strategies.clocks import clock_pairs as clock_pairs
from kdvfs_sim.testing.strategies.clocks import clock_tables as clock_tables
from kdvfs_sim.testing.strategies.clocks import gpus as gpus
from kdvfs_sim.testing.strategies.costs import cost_tables as cost_tables
from kdvfs_sim.testing.strategies.costs import physical_cost_tables as physical_cost_tables
from kdvfs_sim.testing.strategies.costs import protocols as protocols
from kdvfs_sim.testing.strategies.costs import switch_tables as switch_tables
from kdvfs_sim.testing.strategies.costs import switching_models as switching_models
from kdvfs_sim.testing.strategies.faults import device_faults as device_faults
from kdvfs_sim.testing.strategies.problems import problems as problems
from kdvfs_sim.testing.strategies.recordings import kernel_kinds as kernel_kinds
from kdvfs_sim.testing.strategies.recordings import recordings as recordings
from kdvfs_sim.testing.strategies.scenes import Scene as Scene
from kdvfs_sim.testing.strategies.scenes import scenes as scenes
from kdvfs_sim.testing.strategies.scenes import schedules as schedules
from kdvfs_sim.testing.strategies.traces import single_stream as single_stream
from kdvfs_sim.testing.strategies.traces import traces as traces
from kdvfs_sim.trace.table import Trace


def _print_as_code(value: Any, printer: Any, _cycle: bool) -> None:
    printer.text(as_code(value)[2])


# Hypothesis and IPython look for this method; core cannot have it, since core knows nothing of this room
for _noun in (Trace, CostTable, SwitchTable, Problem, Scene):
    setattr(_noun, "_repr_pretty_", _print_as_code)  # noqa: B010
