"""What survives switching: the best saving as a function of what a clock change costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from kdvfs_sim.core.clocks import AUTO, Clocks
from kdvfs_sim.core.errors import InputError, UsageError
from kdvfs_sim.core.problem import Metrics, Objective, Solution
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.core.switching import SwitchTable
from kdvfs_sim.core.units import format_duration
from kdvfs_sim.gpu.facts import GpuFacts, Level
from kdvfs_sim.gpu.switching import switching_model, tabulate
from kdvfs_sim.optimize.baselines import static_lock, static_mix
from kdvfs_sim.optimize.solve import solve
from kdvfs_sim.study.plans import Budget, comparable
from kdvfs_sim.study.scene import LEVELS, Scene

GRID_NS: Final = (
    1_000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 6_000_000, 10_000_000, 25_000_000,
    60_000_000, 150_000_000, 400_000_000, 1_000_000_000,
)  # fmt: skip
CHARGED: Final = ("drain", "follow", "lookahead")
GAP: Final = 3e-4  # of each answer
ENOUGH_PCT: Final = 0.05  # points; more iterations in a period have to save more than this to be worth it
BATCHES_PER_WORKER: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What a change costs. ``gpu`` None: the same for every pair; else as the catalogue's entry says at
    ``level``. ``host_call_ns``, where given, is that of one call instead: a change of both clocks is two.
    ``switching_ns`` is that of an SM clock change, for the axis. A GPU with one memory clock has nothing to
    say of memory changes: on a workload that has them they are taken to cost what SM clock changes cost."""

    name: str
    switching_ns: int
    host_call_ns: int | None = 0
    gpu: GpuFacts | None = None
    level: Level = "nominal"

    @property
    def sm_call_ns(self) -> int:
        """How long one call that changes the SM clock blocks its caller."""
        if self.host_call_ns is not None or self.gpu is None:
            return self.host_call_ns or 0
        return round(self.gpu.need("switching.sm.host_call_ns").at(self.level))

    @property
    def is_nominal(self) -> bool:
        """Is this a GPU's nominal switching, call included?"""
        return self.gpu is not None and self.level == "nominal" and self.host_call_ns is None

    def table(self, clocks: Sequence[Clocks]) -> SwitchTable:
        """Costs between all pairs of clocks."""
        if self.gpu is None:
            table = SwitchTable.uniform(len(clocks), host_call_ns=0, switching_ns=self.switching_ns)
        else:
            model = switching_model(self.gpu, self.level)
            if len(self.gpu.memory) == 1 and len({pair.mem_mhz for pair in clocks} - {AUTO}) > 1:
                model = replace(model, memory=model.sm)
            table = tabulate(model, clocks)
        if self.host_call_ns is None:
            return table
        return SwitchTable(
            host_call_ns=_n_calls(clocks) * self.host_call_ns,
            switching_ns=table.switching_ns,
            stall_ns=table.stall_ns,
            extra_energy_j=table.extra_energy_j,
            assumed=table.assumed,
        )


def _n_calls(clocks: Sequence[Clocks]) -> npt.NDArray[np.int64]:
    """(n, n): calls that a change takes, one for each domain whose clock it changes."""
    domains = ([str(pair.sm_mhz) for pair in clocks], [str(pair.mem_mhz) for pair in clocks])
    calls = np.zeros((len(clocks), len(clocks)), dtype=np.int64)
    for names in map(np.array, domains):
        calls += names[:, None] != names[None, :]
    return calls


HARDWARE_FLOOR: Final = Scenario(name="hardware floor (the H200's own clock moves)", switching_ns=100_000)


def of_latency(switching_ns: int) -> Scenario:
    """One point of the axis: every change takes this long, the call returns at once."""
    return Scenario(name="", switching_ns=switching_ns)


def of_gpu(gpu: GpuFacts) -> tuple[Scenario, ...]:
    """A GPU's switching at both ends of what is believable and in between; where its call may cost nothing,
    the nominal latency with such a call too. Raises InputError where no latency is known."""
    call, latency = (gpu.need(f"switching.sm.{name}") for name in ("host_call_ns", "switching_ns"))
    found = [
        Scenario(
            name=f"{gpu.title}, {level}",
            switching_ns=round(latency.at(level)),
            host_call_ns=None,
            gpu=gpu,
            level=level,
        )
        for level in LEVELS
    ]
    if call.at("low") == 0:
        found.append(
            Scenario(
                name=f"{gpu.title}, nominal, host call 0",
                switching_ns=round(latency.value),
                host_call_ns=0,
                gpu=gpu,
            )
        )
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRow:
    """The best schedule of one scenario, protocol and period. Percentages against AUTO.

    ``lower_bound_pct``: None where no bound is proven. ``n_switches`` a period; ``switches_pay``: False if
    static or static-mix is the answer. ``surviving_pct``: the part of what kernel clocks add to static-mix
    with free switching.
    """

    scenario: Scenario
    protocol: str
    n_iterations: int
    time_pct: float
    energy_pct: float
    lower_bound_pct: float | None
    n_switches: float
    switches_pay: bool
    surviving_pct: float
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchingStudy:
    """``baselines``: (time, energy) percentages of static, static-mix and ideal (free switching).

    ``schedulable``: for each latency of the grid the share of GPU time in runs, as free switching would have
    them, that are longer than it: the quick answer. ``gpus``: those whose scenarios are among the rows.
    """

    workload: str
    gpu: str
    budget: Budget
    baseline: Metrics
    baselines: Mapping[str, tuple[float, float]]
    schedulable: tuple[tuple[int, float], ...]
    rows: tuple[StudyRow, ...]
    gpus: tuple[GpuFacts, ...]
    flags: tuple[str, ...]

    def curve(self, protocol: str) -> Iterator[StudyRow]:
        """The rows of one protocol along the axis, one iteration a period."""
        for row in self.rows:
            if row.protocol == protocol and not row.scenario.name:
                yield row

    def best_period(self, gpu: GpuFacts, protocol: str) -> StudyRow:
        """The shortest period that saves as much as the best, to within ENOUGH_PCT, at nominal switching."""
        rows = [
            row
            for row in self.rows
            if row.scenario.gpu is not None
            and row.scenario.gpu.slug == gpu.slug
            and row.scenario.is_nominal
            and row.protocol == protocol
        ]
        least = min(row.energy_pct for row in rows)
        return min(
            (row for row in rows if row.energy_pct <= least + ENOUGH_PCT), key=lambda row: row.n_iterations
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    scenario: Scenario
    protocol: str
    n_iterations: int = 1


@dataclass(frozen=True, kw_only=True, eq=False)
class _Bench:
    """What every case needs; travels to the workers."""

    scene: Scene
    objective: Objective
    base: Metrics
    mix_pct: float
    ideal_pct: float
    ideal: tuple[Schedule, ...]  # of this scene, as far as it was solved
    seed: int

    def run(self, case: _Case) -> StudyRow:
        scene = self.scene
        table = case.scenario.table(scene.costs["nominal"].clocks)
        problem = scene.problem(self.objective, case.protocol, switching=table)
        solution = solve(problem, seed=self.seed, gap=GAP, also=self.ideal)
        metrics = solution.metrics
        if metrics is None or solution.schedule is None:
            what = case.scenario.name or f"changes of {format_duration(case.scenario.switching_ns)}"
            raise InputError(f"{what}, {case.protocol}: {solution.status} ({solution.message})")
        time_pct, energy_pct = metrics.pct_of(self.base)
        assert self.base.energy_j is not None
        bound_j = solution.lower_bound
        possible = self.mix_pct - self.ideal_pct
        return StudyRow(
            scenario=case.scenario,
            protocol=case.protocol,
            n_iterations=case.n_iterations,
            time_pct=time_pct,
            energy_pct=energy_pct,
            lower_bound_pct=None if bound_j is None else 100 * (bound_j / self.base.energy_j - 1),
            n_switches=metrics.n_switches,
            switches_pay=metrics.n_switches > 0,
            surviving_pct=100 * (self.mix_pct - energy_pct) / possible if possible > 0 else 0.0,
            status=solution.status,
        )


def switching_study(
    scenes: Mapping[int, Scene],
    *,
    budget: Budget,
    gpus: Sequence[GpuFacts],
    latencies_ns: Iterable[int] = GRID_NS,
    protocols: str | Sequence[str] = CHARGED,
    executor: Executor | None = None,
    n_workers: int = 1,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> SwitchingStudy:
    """Solve the workload at every latency, and as every GPU of ``gpus`` would switch.

    ``scenes``: the workload by iterations in a period, 1 among them, all with periodic boundary. Costs are
    those of the scenes' own GPU throughout: only the switching is another GPU's. Cases run on ``executor``
    (any ``concurrent.futures.Executor``; None: here, one after another), in batches for ``n_workers``.
    Raises UsageError for scenes without a period of 1 or with another boundary and for a budget of energy,
    InputError for a protocol that is unknown and where AUTO's energy or a latency is not known, or it takes
    no time or no energy.
    """
    if budget.energy_pct is not None:
        raise UsageError(f"a switching study is of energy saved within a budget of time, not {budget}")
    if 1 not in scenes or any(scene.boundary != "periodic" for scene in scenes.values()):
        raise UsageError("a switching study needs a period of 1 iteration and the periodic boundary")
    names = (protocols,) if isinstance(protocols, str) else protocols
    protocols = tuple(scenes[1].protocol(name).name for name in names)
    progress("baselines")
    base, objective = _auto(scenes[1], budget)
    locks = scenes[1].problem(objective, "free", granularity="static")
    ideal = solve(scenes[1].problem(objective, "free"), seed=seed)
    baselines = {}
    for name, found in (("static", static_lock(locks)), ("static-mix", static_mix(locks)), ("ideal", ideal)):
        if found.metrics is None:
            raise InputError(f"no schedule keeps the budget: {budget}")
        baselines[name] = found.metrics.pct_of(base)
    benches = {}
    for n_iterations, scene in scenes.items():
        own_base, own_objective = _auto(scene, budget)
        benches[n_iterations] = _Bench(
            scene=scene,
            objective=own_objective,
            base=own_base,
            mix_pct=baselines["static-mix"][1],
            ideal_pct=baselines["ideal"][1],
            ideal=tuple(s for s in (ideal.schedule, ideal.alternate) if s is not None and n_iterations == 1),
            seed=seed,
        )
    latencies_ns = tuple(latencies_ns)
    cases = [_Case(scenario=of_latency(ns), protocol=p) for p in protocols for ns in latencies_ns]
    cases += [_Case(scenario=HARDWARE_FLOOR, protocol=p) for p in protocols]
    for gpu in gpus:
        for scenario in of_gpu(gpu):
            periods = sorted(scenes) if scenario.is_nominal else [1]
            cases += [
                _Case(scenario=scenario, protocol=p, n_iterations=n) for p in protocols for n in periods
            ]
    return SwitchingStudy(
        workload=Path(scenes[1].trace.source).name,
        gpu=scenes[1].gpu.title,
        budget=budget,
        baseline=base,
        baselines=baselines,
        schedulable=schedulable_share(scenes[1], ideal, latencies_ns),
        rows=tuple(run_cases(benches, cases, executor, n_workers, progress)),
        gpus=tuple(gpus),
        flags=tuple(dict.fromkeys((*scenes[1].flags, *base.flags))),
    )


def run_cases(
    benches: Mapping[int, _Bench],
    cases: Sequence[_Case],
    executor: Executor | None,
    n_workers: int,
    progress: Callable[[str], None],
) -> Iterator[StudyRow]:
    """The rows of all cases, in their order. Long periods and short ones are dealt out evenly."""
    if executor is None:
        for number, case in enumerate(cases):
            progress(f"case {number + 1} of {len(cases)}")
            yield benches[case.n_iterations].run(case)
        return
    n_batches = min(len(cases), BATCHES_PER_WORKER * n_workers)
    batches = [cases[i::n_batches] for i in range(n_batches)]
    found: list[StudyRow | None] = [None] * len(cases)
    for i, rows in enumerate(executor.map(partial(_run_batch, benches), batches)):
        found[i::n_batches] = rows
        progress(f"batch {i + 1} of {n_batches}")
    yield from (row for row in found if row is not None)


def _run_batch(benches: Mapping[int, _Bench], cases: Sequence[_Case]) -> list[StudyRow]:
    return [benches[case.n_iterations].run(case) for case in cases]


def _auto(scene: Scene, budget: Budget) -> tuple[Metrics, Objective]:
    """The AUTO run, and the budget in its terms."""
    base = comparable(scene.auto_metrics)
    return base, budget.objective("energy", base)


def schedulable_share(
    scene: Scene, ideal: Solution, latencies_ns: Iterable[int]
) -> tuple[tuple[int, float], ...]:
    """For each latency the share of the stream's time in runs at one setting that are longer than it.

    Runs are those of the answer with free switching, at recorded durations: what cannot be longer than a
    change can hardly use one.
    """
    assert ideal.schedule is not None
    busy_ns = scene.chain.duration_ns + scene.chain.lag_ns
    requests = ideal.schedule.requests
    starts = [request.launch for request in requests if request.launch > 0]
    runs_ns = np.add.reduceat(busy_ns, [0, *starts])
    # before the first request the clocks are those that the period ended with
    if len(runs_ns) > 1 and (requests[0].launch > 0 or requests[0].clocks == requests[-1].clocks):
        runs_ns = np.array([runs_ns[-1] + runs_ns[0], *runs_ns[1:-1]])  # across the end of the period
    return tuple((int(ns), float(runs_ns[runs_ns > ns].sum() / max(1, runs_ns.sum()))) for ns in latencies_ns)
