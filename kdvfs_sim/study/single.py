"""One replay, compared with AUTO."""

from __future__ import annotations

from dataclasses import dataclass

from kdvfs_sim.core.clocks import AUTO_CLOCKS, Clocks
from kdvfs_sim.core.errors import InputError
from kdvfs_sim.core.problem import Metrics
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.core.switching import Boundary
from kdvfs_sim.replay.program import Program
from kdvfs_sim.replay.simulate import ReplayResult, replay
from kdvfs_sim.study.power_limit import static
from kdvfs_sim.study.scene import Scene, build_scene, catalogue_entry
from kdvfs_sim.trace.table import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleReplay:
    """``baseline`` is the same trace at (AUTO, AUTO); None, with ``reason``, where there is no model."""

    run: ReplayResult
    baseline: Metrics | None
    reason: str = ""
    assumed: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()

    @property
    def time_pct(self) -> float | None:
        base = self.baseline
        return None if base is None or not base.time_s else 100 * (self.run.metrics.time_s / base.time_s - 1)

    @property
    def energy_pct(self) -> float | None:
        base, energy_j = self.baseline, self.run.metrics.energy_j
        if base is None or not base.energy_j or energy_j is None:
            return None
        return 100 * (energy_j / base.energy_j - 1)


def replay_at_recorded(
    trace: Trace, *, gpu: str | None = None, device: int | None = None, node_power_w: float = 0.0
) -> SingleReplay:
    """The recorded clocks: the recorded times exactly, energy where the GPU is in the catalogue."""
    entry, reason = (gpu, "") if gpu is not None else catalogue_entry(trace, device)
    if entry is None:
        program = Program.from_trace(trace, device=device)
        return SingleReplay(run=replay(program), baseline=None, reason=reason, flags=program.flags)
    scene = build_scene(trace, gpu=entry, device=device, node_power_w=node_power_w)
    costs = scene.costs["nominal"]
    run = replay(scene.program, costs=costs, start=costs.clocks[costs.recorded])
    return _compared(scene, run)


def replay_on_gpu(
    trace: Trace,
    *,
    gpu: str | None = None,
    clocks: Clocks | None = None,
    schedule: Schedule | None = None,
    protocol: str = "free",
    boundary: Boundary = "periodic",
    device: int | None = None,
    dynamic: bool = False,
    node_power_w: float = 0.0,
) -> SingleReplay:
    """Other clocks, or a schedule. Raises InputError for a GPU without a model or without a governor."""
    scene = build_scene(trace, gpu=gpu, device=device, boundary=boundary, node_power_w=node_power_w)
    if dynamic and scene.governor is None:
        raise InputError(f"the governor of {scene.gpu.name} has not been measured; use --governor steady")
    switch_protocol = scene.protocols[protocol]
    plan = schedule or static(clocks or AUTO_CLOCKS, scene, switch_protocol)
    governor = scene.governor if dynamic else None
    return _compared(scene, scene.replay(plan, switch_protocol, governor=governor))


def _compared(scene: Scene, run: ReplayResult) -> SingleReplay:
    free = scene.protocols["free"]
    costs = scene.costs["nominal"]
    return SingleReplay(
        run=run,
        baseline=scene.replay(static(AUTO_CLOCKS, scene, free), free).metrics,
        assumed=costs.assumed,
        flags=scene.flags,
    )
