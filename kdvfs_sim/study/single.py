"""One replay, compared with AUTO."""

from __future__ import annotations

from dataclasses import dataclass

from kdvfs_sim.core.clocks import AUTO_CLOCKS, Clocks
from kdvfs_sim.core.errors import InputError
from kdvfs_sim.core.governor import DynamicGovernor
from kdvfs_sim.core.problem import Metrics
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.core.switching import Boundary
from kdvfs_sim.replay.program import Program
from kdvfs_sim.replay.simulate import ReplayResult, replay
from kdvfs_sim.study.scene import Scene, build_scene, catalogue_entry
from kdvfs_sim.study.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleReplay:
    """``setting``: on which GPU, at which clocks or under which protocol, by which governor.

    ``gpu``: its entry's short name. ``baseline`` is the same trace at (AUTO, AUTO) under the same governor;
    None, with ``reason``, where there is no model.
    """

    run: ReplayResult
    setting: str
    baseline: Metrics | None
    reason: str = ""
    assumed: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    gpu: str | None = None

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
    workload: Workload, *, gpu: str | None = None, device: int | None = None, node_power_w: float = 0.0
) -> SingleReplay:
    """The recorded clocks: the recorded times exactly, energy where the GPU is in the catalogue."""
    entry, reason = (gpu, "") if gpu is not None else catalogue_entry(workload.trace, device)
    if entry is None:
        program = Program.from_trace(workload.trace, device=device)
        setting = f"{workload.trace.device_name or 'GPU not named'}, recorded clocks"
        return SingleReplay(
            run=replay(program), setting=setting, baseline=None, reason=reason, flags=program.flags
        )
    scene = build_scene(
        workload.trace, costs=workload.costs, gpu=entry, device=device, node_power_w=node_power_w
    )
    costs = scene.costs["nominal"]
    run = replay(scene.program, costs=costs, start=costs.clocks[costs.recorded])
    return _compared(scene, run, f"recorded clocks ({costs.clocks[costs.recorded]})")


def replay_on_gpu(
    workload: Workload,
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
    """Other clocks, or a schedule. Raises InputError for a GPU without a model or without a governor, and for
    clocks outside of the sweep that the GPU's entry was fitted to."""
    scene = build_scene(
        workload.trace,
        costs=workload.costs,
        gpu=gpu,
        device=device,
        boundary=boundary,
        node_power_w=node_power_w,
    )
    if dynamic and scene.governor is None:
        raise InputError(f"the governor of {scene.gpu.name} has not been measured; the steady one is")
    plan = schedule if schedule is not None else scene.static(clocks or AUTO_CLOCKS, protocol)
    for pair in dict.fromkeys(r.clocks for r in plan.requests) if workload.costs is None else ():
        if pair in scene.gpu.clock_table() and not scene.gpu.offers(pair):
            raise InputError(
                f"{pair} lies outside of the sweep behind {scene.gpu.slug}: its costs would be extrapolated; "
                "sweep it too, or change clocks.swept_... in the entry (docs/how-to/fit-a-sweep.md)"
            )
    governor = scene.governor if dynamic else None
    what = (
        f"clocks {clocks or AUTO_CLOCKS}"
        if schedule is None
        else f"a schedule of {len(schedule)} request{'s' * (len(schedule) != 1)} under {protocol}, {boundary}"
    )
    run = scene.replay(plan, protocol, governor=governor)
    return _compared(scene, run, what, governor)


def _compared(
    scene: Scene, run: ReplayResult, what: str, governor: DynamicGovernor | None = None
) -> SingleReplay:
    costs = scene.costs["nominal"]
    return SingleReplay(
        run=run,
        setting=f"{scene.gpu.title}, {what}, {'steady' if governor is None else 'dynamic'} governor",
        baseline=scene.replay(scene.static(AUTO_CLOCKS, "free"), "free", governor=governor).metrics,
        assumed=costs.assumed,
        flags=scene.flags,
        gpu=scene.gpu.slug,
    )
