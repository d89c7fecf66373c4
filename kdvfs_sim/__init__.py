"""Per-kernel GPU clock schedules with the cost of switching included.

``import kdvfs_sim`` is light: every name below is loaded from its room on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from kdvfs_sim.core.version import __version__

_HOME: Final[dict[str, str]] = {
    "AUTO": "kdvfs_sim.core.clocks",
    "Clocks": "kdvfs_sim.core.clocks",
    "ClockTable": "kdvfs_sim.core.clocks",
    "KernelKind": "kdvfs_sim.core.kinds",
    "CostTable": "kdvfs_sim.core.costs",
    "PROTOCOLS": "kdvfs_sim.core.switching",
    "SwitchCost": "kdvfs_sim.core.switching",
    "SwitchProtocol": "kdvfs_sim.core.switching",
    "SwitchTable": "kdvfs_sim.core.switching",
    "Chain": "kdvfs_sim.core.chain",
    "ClockRequest": "kdvfs_sim.core.schedule",
    "Schedule": "kdvfs_sim.core.schedule",
    "read_schedule": "kdvfs_sim.core.schedule_file",
    "write_schedule": "kdvfs_sim.core.schedule_file",
    "Metrics": "kdvfs_sim.core.problem",
    "Objective": "kdvfs_sim.core.problem",
    "Problem": "kdvfs_sim.core.problem",
    "Solution": "kdvfs_sim.core.problem",
    "KdvfsError": "kdvfs_sim.core.errors",
    "Trace": "kdvfs_sim.trace.table",
    "read_trace": "kdvfs_sim.trace.readers",
    "summary": "kdvfs_sim.trace.summary",
    "gpu_names": "kdvfs_sim.gpu.catalogue",
    "load_gpu": "kdvfs_sim.gpu.catalogue",
    "cost_table": "kdvfs_sim.gpu.build",
    "read_cost_table": "kdvfs_sim.gpu.tables",
    "Program": "kdvfs_sim.replay.program",
    "ReplayResult": "kdvfs_sim.replay.simulate",
    "FastEvaluator": "kdvfs_sim.replay.fast",
    "solve": "kdvfs_sim.optimize.solve",
    "Scene": "kdvfs_sim.study.scene",
    "build_scene": "kdvfs_sim.study.scene",
    "Budget": "kdvfs_sim.study.plans",
    "equal_slack": "kdvfs_sim.study.equal_slack",
    "write_perfetto": "kdvfs_sim.report.perfetto",
}

if TYPE_CHECKING:
    from kdvfs_sim.core.chain import Chain as Chain
    from kdvfs_sim.core.clocks import AUTO as AUTO
    from kdvfs_sim.core.clocks import Clocks as Clocks
    from kdvfs_sim.core.clocks import ClockTable as ClockTable
    from kdvfs_sim.core.costs import CostTable as CostTable
    from kdvfs_sim.core.errors import KdvfsError as KdvfsError
    from kdvfs_sim.core.kinds import KernelKind as KernelKind
    from kdvfs_sim.core.problem import Metrics as Metrics
    from kdvfs_sim.core.problem import Objective as Objective
    from kdvfs_sim.core.problem import Problem as Problem
    from kdvfs_sim.core.problem import Solution as Solution
    from kdvfs_sim.core.schedule import ClockRequest as ClockRequest
    from kdvfs_sim.core.schedule import Schedule as Schedule
    from kdvfs_sim.core.schedule_file import read_schedule as read_schedule
    from kdvfs_sim.core.schedule_file import write_schedule as write_schedule
    from kdvfs_sim.core.switching import PROTOCOLS as PROTOCOLS
    from kdvfs_sim.core.switching import SwitchCost as SwitchCost
    from kdvfs_sim.core.switching import SwitchProtocol as SwitchProtocol
    from kdvfs_sim.core.switching import SwitchTable as SwitchTable
    from kdvfs_sim.gpu.build import cost_table as cost_table
    from kdvfs_sim.gpu.catalogue import gpu_names as gpu_names
    from kdvfs_sim.gpu.catalogue import load_gpu as load_gpu
    from kdvfs_sim.gpu.tables import read_cost_table as read_cost_table
    from kdvfs_sim.optimize.solve import solve as solve
    from kdvfs_sim.replay.fast import FastEvaluator as FastEvaluator
    from kdvfs_sim.replay.program import Program as Program
    from kdvfs_sim.replay.simulate import ReplayResult as ReplayResult
    from kdvfs_sim.report.perfetto import write_perfetto as write_perfetto
    from kdvfs_sim.study.equal_slack import equal_slack as equal_slack
    from kdvfs_sim.study.plans import Budget as Budget
    from kdvfs_sim.study.scene import Scene as Scene
    from kdvfs_sim.study.scene import build_scene as build_scene
    from kdvfs_sim.trace.readers import read_trace as read_trace
    from kdvfs_sim.trace.summary import summary as summary
    from kdvfs_sim.trace.table import Trace as Trace


def __getattr__(name: str) -> Any:
    try:
        home = _HOME[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*_HOME, "__version__"])


__all__ = ["__version__", *sorted(_HOME)]
