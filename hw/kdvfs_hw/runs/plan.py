"""What a validation will do and what it expects, fixed before the first reading."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from kdvfs_hw.emulator.catalogue import load_names
from kdvfs_hw.runs.verdict import ENERGY_TOLERANCE, SWITCHING_TOLERANCE, TIME_TOLERANCE
from kdvfs_hw.workloads.base import Workload
from kdvfs_sim.core.clocks import AUTO_CLOCKS, Clocks
from kdvfs_sim.core.errors import InputError, ScheduleError
from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.core.schedule import ClockRequest, Schedule
from kdvfs_sim.core.switching import SwitchProtocol
from kdvfs_sim.study.scene import Scene

AUTO_ARM: Final = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A kernel at some clocks: its expected time and power, and ``n`` such launches in the trace."""

    part: str
    clocks: Clocks
    n: float
    time_s: float
    power_w: float | None


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way to run the workload: its requests, the kernels it runs, and the step that is expected."""

    name: str
    requests: tuple[ClockRequest, ...]
    cells: tuple[Cell, ...]
    time_s: float
    energy_j: float | None

    @property
    def kernel_time_s(self) -> float:
        """Without gaps and switching: kernels alone, summed by count."""
        return sum(cell.n * cell.time_s for cell in self.cells)

    @property
    def kernel_energy_j(self) -> float | None:
        energies = [
            None if cell.power_w is None else cell.n * cell.time_s * cell.power_w for cell in self.cells
        ]
        return None if None in energies else sum(energy for energy in energies if energy is not None)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """``arms``: the first is AUTO, the baseline; ``protocol``: how requests are made while the workload runs.

    ``cap_w``: the power limit that the predictions are for; None: of none.
    ``switching_ns``: expected latency by (old, new). ``kinds``: what each kernel of a cell launches.
    ``memsets``: for each operation of the trace's driven stream, whether it is a memory set.
    """

    source: str
    gpu: str
    arms: tuple[Arm, ...]
    protocol: SwitchProtocol
    switching_ns: Mapping[tuple[Clocks, Clocks], int]
    kinds: Mapping[str, KernelKind]
    memsets: tuple[bool, ...]
    assumed: tuple[str, ...]
    cap_w: float | None = None

    @property
    def n_ops(self) -> int:
        return len(self.memsets)

    def cells(self) -> Iterator[Cell]:
        """Every kernel at every clocks, once."""
        seen = set()
        for arm in self.arms:
            for cell in arm.cells:
                if (cell.part, cell.clocks) not in seen:
                    seen.add((cell.part, cell.clocks))
                    yield cell

    def to_json(self, **settings: Any) -> dict[str, Any]:
        """With a digest of all of it, so that nobody can move the goal after the shot.

        ``settings``: what else is decided before the first reading, as modes, lengths and seed.
        """
        document: dict[str, Any] = {
            **settings,
            "source": self.source,
            "gpu": self.gpu,
            "protocol": self.protocol.name,
            "timing": asdict(self.protocol),
            "tolerances": {
                "time": TIME_TOLERANCE,
                "energy": ENERGY_TOLERANCE,
                "switching": SWITCHING_TOLERANCE,
            },
            "switching_ns": [[str(old), str(new), ns] for (old, new), ns in self.switching_ns.items()],
            "kinds": {name: asdict(kind) for name, kind in self.kinds.items()},
            "n_ops": self.n_ops,
            "memsets": [i for i, is_memset in enumerate(self.memsets) if is_memset],
            "power_limit_w": self.cap_w,
            "assumed": list(self.assumed),
            "arms": [
                {
                    "name": arm.name,
                    "time_s": arm.time_s,
                    "energy_j": arm.energy_j,
                    "kernel_time_s": arm.kernel_time_s,
                    "kernel_energy_j": arm.kernel_energy_j,
                    "requests": [[r.launch, r.offset_ns, str(r.clocks)] for r in arm.requests],
                    "cells": [[c.part, str(c.clocks), c.n, c.time_s, c.power_w] for c in arm.cells],
                }
                for arm in self.arms
            ],
        }
        text = json.dumps(document, sort_keys=True)
        return {**document, "sha256": hashlib.sha256(text.encode()).hexdigest()}


def make_plan(scene: Scene, schedules: Mapping[str, Schedule], *, protocol: str) -> Plan:
    """AUTO and the given schedules on a scene.

    Raises ScheduleError for one that drives another stream, InputError for one named as the arm of AUTO is.
    """
    if AUTO_ARM in schedules:
        raise InputError(f"a schedule named {AUTO_ARM!r} would take the place of the baseline: rename it")
    arms = {AUTO_ARM: Schedule.static(AUTO_CLOCKS, stream=scene.chain.stream, device=scene.chain.device)}
    arms |= schedules
    costs, table = scene.costs["nominal"], scene.switching["nominal"]
    requested = {request.clocks for schedule in arms.values() for request in schedule.requests}
    return Plan(
        source=scene.trace.source,
        gpu=scene.gpu.slug,
        arms=tuple(_arm(scene, name, schedule, protocol) for name, schedule in arms.items()),
        protocol=scene.protocols[protocol],
        switching_ns={
            (old, new): int(table.switching_ns[costs.index(old), costs.index(new)])
            for old in requested
            for new in requested
        },
        kinds=dict(zip(load_names(costs), scene.program.kinds, strict=True)),
        memsets=tuple(_is_memset(scene.program.kinds[int(kind)]) for kind in scene.chain.kind),
        assumed=tuple(dict.fromkeys((*costs.assumed, *table.assumed))),
        cap_w=costs.cap_w,
    )


def _arm(scene: Scene, name: str, schedule: Schedule, protocol: str) -> Arm:
    chain, costs = scene.chain, scene.costs["nominal"]
    for request in schedule.requests:
        try:
            driven = scene.program.streams[scene.program.stream_index(request.device, request.stream)]
        except InputError as error:
            raise ScheduleError(name, str(error)) from None
        if driven != (chain.device, chain.stream):
            raise ScheduleError(name, f"drives stream {driven[1]}; the busiest one is {chain.stream}")
    is_static = len({request.clocks for request in schedule.requests}) == 1
    run = scene.replay(schedule, scene.protocols[protocol], governor=scene.governor).metrics
    rows = _rows(scene, schedule)
    names = load_names(costs)
    n_of: dict[tuple[int, int], float] = {}
    for i, row in enumerate(rows):
        kind = int(chain.kind[i])
        n_of[kind, row] = n_of.get((kind, row), 0.0) + launches_of(scene, i)
    cells = []
    for (kind, row), n in n_of.items():
        effective = int(costs.effective[kind, row])
        watts = float(costs.power_w[kind, effective])
        cells.append(
            Cell(
                part=names[kind],
                clocks=costs.clocks[row],
                n=n,
                time_s=float(costs.duration_ns[kind, effective]) * 1e-9,
                power_w=None if np.isnan(watts) else watts,
            )
        )
    return Arm(
        name=name,
        requests=schedule.requests[:1] if is_static else schedule.requests,
        cells=tuple(cells),
        time_s=run.time_s,
        energy_j=run.energy_j,
    )


def launches_of(scene: Scene, i: int) -> float:
    """Operation ``i`` of the driven stream, as launches of its kind's typical length."""
    costs, kind = scene.costs["nominal"], int(scene.chain.kind[i])
    reference = costs.recorded_effective
    row = costs.effective[kind, costs.recorded] if reference is None else reference[kind]
    return float(scene.chain.duration_ns[i] / costs.duration_ns[kind, row])


def _rows(scene: Scene, schedule: Schedule) -> list[int]:
    """The row requested for each operation; a periodic schedule begins with its own last request."""
    costs = scene.costs["nominal"]
    start = scene.start
    if scene.boundary == "periodic" and schedule.requests:
        start = schedule.requests[-1].clocks
    rows, row, i = [], costs.index(start), 0
    ordered = sorted(schedule.requests, key=lambda r: r.launch)
    for operation in range(len(scene.chain)):
        while i < len(ordered) and ordered[i].launch <= operation:
            row = costs.index(ordered[i].clocks)
            i += 1
        rows.append(row)
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """How a plan and a workload fit. ``parts``: the plan's kernels to the workload's parts, several where the
    workload tells apart what the trace does not. ``n_per_pass``: steps in one pass of the trace.
    ``anchors``: the trace's operations (and their end) to operations of the pass."""

    parts: Mapping[str, tuple[str, ...]]
    n_per_pass: int
    anchors: tuple[int, ...]


def bind(plan: Plan, workload: Workload, modes: Sequence[str]) -> Binding:
    """Match kernels by name, or by what they launch; operations by order, with or without memory sets.

    Raises InputError for a workload without the trace's kernels, or of another length.
    """
    wanted = dict.fromkeys(cell.part for cell in plan.cells())
    parts = {name: _parts_for(name, plan.kinds[name], workload) for name in wanted}
    missing = [name for name, found in parts.items() if not found and not _is_memset(plan.kinds[name])]
    if "isolated" in modes and missing:
        raise InputError(
            f"workload {workload.name}: has no kernel {missing[0]!r} ({len(missing)} of the trace's "
            "are missing); validate it with a trace of its own step"
        )
    without = [0, *np.cumsum([not each for each in plan.memsets]).tolist()]
    for anchors in (list(range(plan.n_ops + 1)), without):
        n_per_pass = _whole(anchors[-1], workload.n_ops)
        if n_per_pass:
            return Binding(parts=parts, n_per_pass=n_per_pass, anchors=tuple(anchors))
    if "live" not in modes and workload.n_ops == 0:  # any callable: its step is taken to be the trace
        return Binding(parts=parts, n_per_pass=1, anchors=())
    raise InputError(
        f"workload {workload.name}: a step has {workload.n_ops} operations, the trace {plan.n_ops} "
        f"({without[-1]} without memory sets); the trace must be a whole number of steps"
    )


def _whole(n: int, of: int) -> int:
    return n // of if of and n % of == 0 else 0


def _parts_for(name: str, kind: KernelKind, workload: Workload) -> tuple[str, ...]:
    """The part of this name; else those that launch the same kernel alike, with the same FLOPs if known."""
    if any(part.name == name for part in workload.parts):
        return (name,)
    launch = (kind.name, kind.grid, kind.block)
    alike = [p for p in workload.parts if (p.kind.name, p.kind.grid, p.kind.block) == launch]
    same = [p for p in alike if kind.flops and p.kind.flops and abs(p.kind.flops / kind.flops - 1) < 0.01]
    return tuple(part.name for part in same or alike)


def _is_memset(kind: KernelKind) -> bool:
    return kind.op_class == "memset"
