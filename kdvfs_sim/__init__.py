"""Per-kernel GPU clock schedules with the cost of switching included.

``import kdvfs_sim`` is light: every name below is loaded from its room on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from kdvfs_sim.core.version import __version__

_HOME: Final[dict[str, str]] = {
    "Chain": "kdvfs_sim.core.chain",
    "AUTO": "kdvfs_sim.core.clocks",
    "ClockTable": "kdvfs_sim.core.clocks",
    "Clocks": "kdvfs_sim.core.clocks",
    "CostTable": "kdvfs_sim.core.costs",
    "ClocksNotReachedError": "kdvfs_sim.core.errors",
    "ContractError": "kdvfs_sim.core.errors",
    "DeviceError": "kdvfs_sim.core.errors",
    "DeviceLostError": "kdvfs_sim.core.errors",
    "DevicePermissionError": "kdvfs_sim.core.errors",
    "DeviceUnsupportedError": "kdvfs_sim.core.errors",
    "DriverError": "kdvfs_sim.core.errors",
    "InputError": "kdvfs_sim.core.errors",
    "InvariantError": "kdvfs_sim.core.errors",
    "KdvfsError": "kdvfs_sim.core.errors",
    "NotApplicableError": "kdvfs_sim.core.errors",
    "PlacedError": "kdvfs_sim.core.errors",
    "PluginError": "kdvfs_sim.core.errors",
    "ScheduleError": "kdvfs_sim.core.errors",
    "TraceFormatError": "kdvfs_sim.core.errors",
    "UnknownGpuError": "kdvfs_sim.core.errors",
    "UnknownKernelError": "kdvfs_sim.core.errors",
    "UnsupportedClocksError": "kdvfs_sim.core.errors",
    "UsageError": "kdvfs_sim.core.errors",
    "DynamicGovernor": "kdvfs_sim.core.governor",
    "KernelKind": "kdvfs_sim.core.kinds",
    "Candidate": "kdvfs_sim.core.problem",
    "Metrics": "kdvfs_sim.core.problem",
    "Objective": "kdvfs_sim.core.problem",
    "Problem": "kdvfs_sim.core.problem",
    "Solution": "kdvfs_sim.core.problem",
    "Evaluator": "kdvfs_sim.core.protocols",
    "LatencyModel": "kdvfs_sim.core.protocols",
    "Optimizer": "kdvfs_sim.core.protocols",
    "PowerModel": "kdvfs_sim.core.protocols",
    "Search": "kdvfs_sim.core.protocols",
    "SwitchingModel": "kdvfs_sim.core.protocols",
    "ClockRequest": "kdvfs_sim.core.schedule",
    "Schedule": "kdvfs_sim.core.schedule",
    "read_schedule": "kdvfs_sim.core.schedule_file",
    "write_schedule": "kdvfs_sim.core.schedule_file",
    "PROTOCOLS": "kdvfs_sim.core.switching",
    "SwitchCost": "kdvfs_sim.core.switching",
    "SwitchDraws": "kdvfs_sim.core.switching",
    "SwitchProtocol": "kdvfs_sim.core.switching",
    "SwitchTable": "kdvfs_sim.core.switching",
    "write_parquet": "kdvfs_sim.trace.parquet",
    "READERS": "kdvfs_sim.trace.readers",
    "TraceReader": "kdvfs_sim.trace.readers",
    "read_trace": "kdvfs_sim.trace.readers",
    "TraceSummary": "kdvfs_sim.trace.summary",
    "summary": "kdvfs_sim.trace.summary",
    "Trace": "kdvfs_sim.trace.table",
    "cost_table": "kdvfs_sim.gpu.build",
    "gpu_names": "kdvfs_sim.gpu.catalogue",
    "load_gpu": "kdvfs_sim.gpu.catalogue",
    "GpuFacts": "kdvfs_sim.gpu.facts",
    "read_cost_table": "kdvfs_sim.gpu.tables",
    "write_cost_table": "kdvfs_sim.gpu.tables",
    "BatchMetrics": "kdvfs_sim.replay.fast",
    "FastEvaluator": "kdvfs_sim.replay.fast",
    "RequestArrays": "kdvfs_sim.replay.fast",
    "Program": "kdvfs_sim.replay.program",
    "ReplayResult": "kdvfs_sim.replay.simulate",
    "Timeline": "kdvfs_sim.replay.timeline",
    "solve": "kdvfs_sim.optimize.solve",
    "EqualSlack": "kdvfs_sim.study.equal_slack",
    "PolicyRow": "kdvfs_sim.study.equal_slack",
    "equal_slack": "kdvfs_sim.study.equal_slack",
    "Budget": "kdvfs_sim.study.plans",
    "Plan": "kdvfs_sim.study.plans",
    "Scene": "kdvfs_sim.study.scene",
    "build_scene": "kdvfs_sim.study.scene",
    "SingleReplay": "kdvfs_sim.study.single",
    "replay_at_recorded": "kdvfs_sim.study.single",
    "replay_on_gpu": "kdvfs_sim.study.single",
    "StudyRow": "kdvfs_sim.study.switching_study",
    "SwitchingStudy": "kdvfs_sim.study.switching_study",
    "switching_study": "kdvfs_sim.study.switching_study",
    "Luck": "kdvfs_sim.study.uncertainty",
    "Workload": "kdvfs_sim.study.workload",
    "read_workload": "kdvfs_sim.study.workload",
    "write_perfetto": "kdvfs_sim.report.perfetto",
}

if TYPE_CHECKING:
    from kdvfs_sim.core.chain import Chain as Chain
    from kdvfs_sim.core.clocks import AUTO as AUTO
    from kdvfs_sim.core.clocks import Clocks as Clocks
    from kdvfs_sim.core.clocks import ClockTable as ClockTable
    from kdvfs_sim.core.costs import CostTable as CostTable
    from kdvfs_sim.core.errors import ClocksNotReachedError as ClocksNotReachedError
    from kdvfs_sim.core.errors import ContractError as ContractError
    from kdvfs_sim.core.errors import DeviceError as DeviceError
    from kdvfs_sim.core.errors import DeviceLostError as DeviceLostError
    from kdvfs_sim.core.errors import DevicePermissionError as DevicePermissionError
    from kdvfs_sim.core.errors import DeviceUnsupportedError as DeviceUnsupportedError
    from kdvfs_sim.core.errors import DriverError as DriverError
    from kdvfs_sim.core.errors import InputError as InputError
    from kdvfs_sim.core.errors import InvariantError as InvariantError
    from kdvfs_sim.core.errors import KdvfsError as KdvfsError
    from kdvfs_sim.core.errors import NotApplicableError as NotApplicableError
    from kdvfs_sim.core.errors import PlacedError as PlacedError
    from kdvfs_sim.core.errors import PluginError as PluginError
    from kdvfs_sim.core.errors import ScheduleError as ScheduleError
    from kdvfs_sim.core.errors import TraceFormatError as TraceFormatError
    from kdvfs_sim.core.errors import UnknownGpuError as UnknownGpuError
    from kdvfs_sim.core.errors import UnknownKernelError as UnknownKernelError
    from kdvfs_sim.core.errors import UnsupportedClocksError as UnsupportedClocksError
    from kdvfs_sim.core.errors import UsageError as UsageError
    from kdvfs_sim.core.governor import DynamicGovernor as DynamicGovernor
    from kdvfs_sim.core.kinds import KernelKind as KernelKind
    from kdvfs_sim.core.problem import Candidate as Candidate
    from kdvfs_sim.core.problem import Metrics as Metrics
    from kdvfs_sim.core.problem import Objective as Objective
    from kdvfs_sim.core.problem import Problem as Problem
    from kdvfs_sim.core.problem import Solution as Solution
    from kdvfs_sim.core.protocols import Evaluator as Evaluator
    from kdvfs_sim.core.protocols import LatencyModel as LatencyModel
    from kdvfs_sim.core.protocols import Optimizer as Optimizer
    from kdvfs_sim.core.protocols import PowerModel as PowerModel
    from kdvfs_sim.core.protocols import Search as Search
    from kdvfs_sim.core.protocols import SwitchingModel as SwitchingModel
    from kdvfs_sim.core.schedule import ClockRequest as ClockRequest
    from kdvfs_sim.core.schedule import Schedule as Schedule
    from kdvfs_sim.core.schedule_file import read_schedule as read_schedule
    from kdvfs_sim.core.schedule_file import write_schedule as write_schedule
    from kdvfs_sim.core.switching import PROTOCOLS as PROTOCOLS
    from kdvfs_sim.core.switching import SwitchCost as SwitchCost
    from kdvfs_sim.core.switching import SwitchDraws as SwitchDraws
    from kdvfs_sim.core.switching import SwitchProtocol as SwitchProtocol
    from kdvfs_sim.core.switching import SwitchTable as SwitchTable
    from kdvfs_sim.gpu.build import cost_table as cost_table
    from kdvfs_sim.gpu.catalogue import gpu_names as gpu_names
    from kdvfs_sim.gpu.catalogue import load_gpu as load_gpu
    from kdvfs_sim.gpu.facts import GpuFacts as GpuFacts
    from kdvfs_sim.gpu.tables import read_cost_table as read_cost_table
    from kdvfs_sim.gpu.tables import write_cost_table as write_cost_table
    from kdvfs_sim.optimize.solve import solve as solve
    from kdvfs_sim.replay.fast import BatchMetrics as BatchMetrics
    from kdvfs_sim.replay.fast import FastEvaluator as FastEvaluator
    from kdvfs_sim.replay.fast import RequestArrays as RequestArrays
    from kdvfs_sim.replay.program import Program as Program
    from kdvfs_sim.replay.simulate import ReplayResult as ReplayResult
    from kdvfs_sim.replay.timeline import Timeline as Timeline
    from kdvfs_sim.report.perfetto import write_perfetto as write_perfetto
    from kdvfs_sim.study.equal_slack import EqualSlack as EqualSlack
    from kdvfs_sim.study.equal_slack import PolicyRow as PolicyRow
    from kdvfs_sim.study.equal_slack import equal_slack as equal_slack
    from kdvfs_sim.study.plans import Budget as Budget
    from kdvfs_sim.study.plans import Plan as Plan
    from kdvfs_sim.study.scene import Scene as Scene
    from kdvfs_sim.study.scene import build_scene as build_scene
    from kdvfs_sim.study.single import SingleReplay as SingleReplay
    from kdvfs_sim.study.single import replay_at_recorded as replay_at_recorded
    from kdvfs_sim.study.single import replay_on_gpu as replay_on_gpu
    from kdvfs_sim.study.switching_study import StudyRow as StudyRow
    from kdvfs_sim.study.switching_study import SwitchingStudy as SwitchingStudy
    from kdvfs_sim.study.switching_study import switching_study as switching_study
    from kdvfs_sim.study.uncertainty import Luck as Luck
    from kdvfs_sim.study.workload import Workload as Workload
    from kdvfs_sim.study.workload import read_workload as read_workload
    from kdvfs_sim.trace.parquet import write_parquet as write_parquet
    from kdvfs_sim.trace.readers import READERS as READERS
    from kdvfs_sim.trace.readers import TraceReader as TraceReader
    from kdvfs_sim.trace.readers import read_trace as read_trace
    from kdvfs_sim.trace.summary import TraceSummary as TraceSummary
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
