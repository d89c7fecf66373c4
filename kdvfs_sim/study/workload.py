"""What a user names on the command line: a recording, or a published run with its own cost table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.core.errors import InputError
from kdvfs_sim.gpu.published_runs import find_published_run
from kdvfs_sim.trace.readers import read_trace
from kdvfs_sim.trace.table import Trace


@dataclass(frozen=True, kw_only=True, eq=False)
class Workload:
    """``costs`` (of the kinds of ``trace``) only where somebody measured or fitted this very workload."""

    trace: Trace
    costs: CostTable | None = None


def read_workload(path_or_name: str | Path, *, recorded_clocks: Clocks | None = None) -> Workload:
    """A recording by path or shipped name, or a published run by name.

    A path wins over a name. Raises what ``read_trace`` raises, and InputError for ``recorded_clocks`` with
    a published run: its costs belong to the clocks that were published.
    """
    name = str(path_or_name)
    run = None if Path(name).exists() else find_published_run(name)
    if run is None:
        return Workload(trace=read_trace(path_or_name, recorded_clocks=recorded_clocks))
    if recorded_clocks is not None and recorded_clocks != run.trace.recorded_clocks:
        raise InputError(f"{name}: a published run at clocks {run.trace.recorded_clocks}; give no others")
    return Workload(trace=run.trace, costs=run.costs)
