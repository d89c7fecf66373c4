"""What is validated: schedules and their trace, from files or optimized here; and an emulated twin."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from kdvfs_hw.emulator.catalogue import load_names, spec_from_costs
from kdvfs_hw.emulator.gpu import EmulatedGpu
from kdvfs_hw.emulator.spec import DeviceSpec
from kdvfs_hw.runs.plan import launches_of
from kdvfs_hw.workloads.emulated import EmulatedWorkload, Operation
from kdvfs_sim.core.errors import InputError, ScheduleError, UsageError
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.core.schedule_file import is_schedule_file, read_about, read_schedule
from kdvfs_sim.study.scene import Scene, build_scene
from kdvfs_sim.trace.readers import read_trace


def load_subject(
    names: Sequence[str],
    *,
    trace: str | None = None,
    gpu: str | None = None,
    protocol: str | None = None,
    slack_pct: float = 0.6,
    optimize: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[Scene, dict[str, Schedule], str]:
    """Schedule files of one trace; or one trace, which is optimized first. The scene, schedules, protocol.

    Without ``optimize``, where only AUTO will be looked at, a trace has no schedule.

    Raises UsageError for a mixture, and as reading, modelling and optimizing do.
    """
    files = [Path(name) for name in names]
    if not all(is_schedule_file(path) for path in files):
        if len(names) > 1 or (files[0].suffix == ".json" and trace is not None):
            raise UsageError("name schedule files (kdvfs optimize --out-dir writes them), or one trace")
        if not optimize:
            return build_scene(read_trace(names[0]), gpu=gpu), {}, protocol or "follow"
        return _optimized(names[0], gpu, protocol or "follow", slack_pct, say)
    schedules, path_of = {}, dict[str, Path]()
    for path in files:
        if path.stem in path_of:
            raise UsageError(
                f"{path_of[path.stem]} and {path} are both named {path.stem!r}, by which a verdict knows "
                "them: rename one"
            )
        path_of[path.stem], schedules[path.stem] = path, read_schedule(path)
    protocols = {schedule.protocol for schedule in schedules.values()}
    abouts = [read_about(path) for path in files]
    traces, gpus = ([_text(about.get(name)) for about in abouts] for name in ("trace", "gpu"))
    silent = next((path for path, named in zip(files, traces, strict=True) if named is None), None)
    if trace is None and silent is not None:
        raise ScheduleError(str(silent), "does not say which trace it is for; name it with --trace")
    _alike(files, traces, "trace")
    if gpu is None:
        _alike(files, gpus, "GPU")
    _alike(files, [schedule.boundary for schedule in schedules.values()], "boundary")
    if len(protocols) > 1 and protocol is None:
        raise UsageError(f"the schedules are for {', '.join(sorted(protocols))}: name one with --protocol")
    source = trace or traces[0] or ""
    say(f"reading {source}")
    boundary: Any = schedules[files[0].stem].boundary
    scene = build_scene(read_trace(source), gpu=gpu or next(filter(None, gpus), None), boundary=boundary)
    return scene, schedules, protocol or protocols.pop()


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _alike(files: Iterable[Path], said: Iterable[str | None], what: str) -> None:
    """Raise UsageError where two schedules name different things; None names none. ./ makes no difference."""
    told = [(path, value) for path, value in zip(files, said, strict=True) if value is not None]
    other = next((each for each in told if os.path.realpath(each[1]) != os.path.realpath(told[0][1])), None)
    if other is not None:
        raise UsageError(
            f"{told[0][0]} is for the {what} {told[0][1]!r}, {other[0]} for {other[1]!r}: "
            "validate them one by one"
        )


def _optimized(
    name: str, gpu: str | None, protocol: str, slack_pct: float, say: Callable[[str], None]
) -> tuple[Scene, dict[str, Schedule], str]:
    """The best single schedule under the protocol: an alternation between two is no schedule of one pass."""
    from kdvfs_sim.optimize.solve import solve
    from kdvfs_sim.study.plans import Budget

    scene = build_scene(read_trace(name), gpu=gpu)
    say(f"optimizing {name} under {protocol}")
    objective = Budget(slack_pct=slack_pct).objective("energy", scene.auto_metrics)
    found = solve(scene.problem(objective, scene.protocols[protocol]), seed=0, mixes=False)
    if found.schedule is None:
        raise InputError(f"{name}: no schedule keeps within {slack_pct:g} % more time under {protocol}")
    return scene, {"static" if len(found.schedule) == 1 else "launch": found.schedule}, protocol


def emulated_spec(scene: Scene) -> DeviceSpec:
    """The GPU that behaves as the scene's nominal model says."""
    return spec_from_costs(scene.gpu, scene.costs["nominal"])


def emulated_workload(scene: Scene, gpu: EmulatedGpu) -> EmulatedWorkload:
    """The trace's driven stream as work for such a GPU."""
    names = load_names(scene.costs["nominal"])
    chain = scene.chain
    kinds = dict(zip(names, scene.program.kinds, strict=True))
    operations = [
        Operation(names[int(kind)], launches_of(scene, i), float(chain.lag_ns[i]))
        for i, kind in enumerate(chain.kind)
    ]
    return EmulatedWorkload(gpu, operations, name=scene.trace.source, kinds=kinds)
