"""Policies compared at equal slack, under the same protocol and boundary, beside the baselines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kdvfs_sim.core.clocks import AUTO_CLOCKS, Clocks
from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.core.problem import Metrics, Objective, Problem, Solution
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.core.switching import SwitchProtocol
from kdvfs_sim.gpu.facts import Level
from kdvfs_sim.optimize.baselines import judged_again, static_lock, static_mix
from kdvfs_sim.optimize.solve import pass_plan, solve
from kdvfs_sim.study.mixes import without_noise
from kdvfs_sim.study.plans import BASELINES, COMMON, SURE, Budget, Plan, comparable
from kdvfs_sim.study.power_limit import PowerLimitChoice, best_power_limit
from kdvfs_sim.study.scene import LEVELS, Judge, Scene
from kdvfs_sim.study.uncertainty import Luck, scattered, sure_plan

Corner = tuple[Level, Level]  # of the model's assumptions, and of the switching latency
NOMINAL: Final[Corner] = ("nominal", "nominal")
MOSTLY_BUSY: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRow:
    """One row of the table. Percentages against AUTO; negative energy is saved.

    The ranges are those of the *same* schedule when the assumed numbers it leans on take the ends
    of their ranges; the schedule itself was chosen at the nominal ones. ``corners`` holds the
    (time, energy) percentages behind them. ``dynamic_pct``: (time, energy) of the same schedule, it and
    AUTO replayed under the GPU's dynamic governor; None where that is not known. ``kept``: share of the
    replays with scattered switching times that keep the budget, 1 without a change of clocks; None where
    none were asked for.
    """

    name: str
    granularity: str
    aggregation: str
    objective: str
    protocol: str
    status: str
    reason: str = ""
    time_pct: float | None = None
    energy_pct: float | None = None
    time_pct_range: tuple[float, float] | None = None
    energy_pct_range: tuple[float, float] | None = None
    dynamic_pct: tuple[float, float] | None = None
    n_switches: float | None = None
    kept: float | None = None
    lower_bound_pct: float | None = None
    gap_pct: float | None = None
    assumed: tuple[str, ...] = ()
    corners: Mapping[Corner, tuple[float, float]] = field(default_factory=dict)
    solution: Solution | None = None

    @property
    def is_baseline(self) -> bool:
        return self.name in BASELINES

    def to_json(self) -> dict[str, Any]:
        """The columns that others rely on."""
        return {name: getattr(self, name) for name in self.__slots__ if name not in ("corners", "solution")}


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualSlack:
    """The table, and the AUTO run that its percentages refer to.

    ``costs_given``: costs came as a table, without ends of what is believable; ranges then show what
    assumed switching costs move, and nothing else. ``confidence``: the probability asked for with which an
    answer keeps the time budget.
    """

    baseline: Metrics
    budget: Budget
    rows: tuple[PolicyRow, ...]
    flags: tuple[str, ...] = ()
    costs_given: bool = False
    confidence: float | None = None

    def is_answer(self, row: PolicyRow) -> bool:
        """May this row be named or written as the answer? Not if it is less sure than was asked for."""
        return self.confidence is None or row.kept is None or row.kept >= self.confidence


def equal_slack(
    scene: Scene,
    *,
    budget: Budget,
    protocols: str | Sequence[str],
    plans: Iterable[Plan] = COMMON,
    confidence: float | None = None,
    luck: Luck | None = None,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> EqualSlack:
    """Solve every plan under every protocol within the same time budget, baselines included.

    ``confidence``: add, under every charged protocol, a plan per launch that keeps a time budget with this
    probability when switching times scatter as ``luck`` says; and say of every plan that switches how often
    it does. Raises InputError for a protocol that is unknown, and if AUTO's energy is not known, or it takes
    no time or no energy: there is nothing to compare with then.
    """
    names = (protocols,) if isinstance(protocols, str) else protocols
    switch_protocols = [scene.protocol(name) for name in names]
    plans = tuple(plans)
    comparison = _Comparison(scene, budget, seed, None if confidence is None else luck or Luck(), progress)
    flags = list(dict.fromkeys((*scene.flags, *scene.auto_metrics.flags)))
    busy = float(scene.chain.duration_ns.sum()) * 1e-9 / comparison.auto_at["nominal"].time_s
    if busy < MOSTLY_BUSY:
        flags.append(
            f"the stream is busy {busy:.1%} of the time: savings are mostly idle power, and kernels that run "
            "slower in gaps of the host; its launches are taken to come as recorded, the profiler's own time "
            "in them included"
        )
    if scene.governor is None:
        flags.append(f"no replay under a dynamic governor: that of {scene.gpu.name} has not been measured")
    if scene.costs["low"] is scene.costs["high"]:
        flags.append("the cost table comes without ends of what is believable: ranges leave its error out")
    if not scene.chain.additive:
        flags.append(f"times do not simply add, so answers may lie above their bounds: {scene.chain.reason}")
    rows = [comparison.auto()]
    for protocol in switch_protocols:
        progress(f"{protocol.name}: baselines")
        rows += comparison.baselines(protocol)
        for plan in plans:
            progress(f"{protocol.name}: {plan.name}")
            rows.append(comparison.policy(plan, protocol))
        if confidence is not None and protocol.charged:
            progress(f"{protocol.name}: {SURE}")
            rows.append(comparison.sure(confidence, protocol))
    return EqualSlack(
        baseline=comparison.auto_at["nominal"],
        budget=budget,
        rows=tuple(rows),
        flags=tuple(flags),
        costs_given=scene.costs["low"] is scene.costs["high"],
        confidence=confidence,
    )


class _Comparison:
    """The budget, the AUTO runs, and the evaluators, built once per table."""

    def __init__(
        self, scene: Scene, budget: Budget, seed: int, luck: Luck | None, progress: Callable[[str], None]
    ) -> None:
        self.progress = progress
        self.luck = luck
        self.scene = scene
        self.seed = seed
        auto = scene.static(AUTO_CLOCKS, "free")
        self.auto_at = {"nominal": scene.auto_metrics}
        for level in ("low", "high"):
            self.auto_at[level] = scene.replay(auto, "free", costs=scene.costs[level]).metrics
        self.auto_dynamic = (
            None if scene.governor is None else scene.replay(auto, "free", governor=scene.governor).metrics
        )
        for metrics in self.auto_at.values():
            comparable(metrics)
        self.budget = budget
        self._judges: dict[tuple[str, Level, Level], Judge] = {}
        self._locks: dict[tuple[Level, Clocks], Metrics] = {}
        # by protocol and plan: others may do as well by them
        self._solved: dict[str, dict[str, Solution]] = {}
        self._power_limits: dict[tuple[str, bool], PowerLimitChoice | str] = {}

    def auto(self) -> PolicyRow:
        energy = {level: metrics.energy_j for level, metrics in self.auto_at.items()}
        return PolicyRow(
            name="auto",
            granularity="static",
            aggregation="global",
            objective="none",
            protocol="any",
            status="optimal",
            time_pct=0.0,
            energy_pct=0.0,
            time_pct_range=(0.0, 0.0),
            energy_pct_range=(0.0, 0.0),
            dynamic_pct=None if self.auto_dynamic is None else (0.0, 0.0),
            n_switches=0,
            assumed=self.scene.costs["nominal"].assumed if energy["low"] != energy["high"] else (),
        )

    def baselines(self, protocol: SwitchProtocol) -> list[PolicyRow]:
        """Static, static-mix, the power limit alone and with a lock, and one setting for each pass."""
        problem = self._problem(Plan(granularity="static"), protocol)
        rows = [
            self._row("static", Plan(granularity="static"), protocol, static_lock(problem)),
            self._row("static-mix", Plan(granularity="static"), protocol, static_mix(problem)),
        ]
        for name, with_lock in (("power-limit", False), ("power-limit and lock", True)):
            choice = self._power_limit(protocol, problem.objective, with_lock)
            if isinstance(choice, str):
                missing = Solution(status="not applicable", message=choice)
                rows.append(self._row(name, Plan(granularity="static"), protocol, missing))
                continue
            metrics = self.scene.replay(choice.schedule, protocol, costs=choice.tables["nominal"]).metrics
            lock = f" and {choice.clocks}" if with_lock else ""
            is_default = choice.limit_w == self.scene.power_limits_w[-1]
            unchanged = ", the default: no lower limit saves more" if is_default else ""
            solution = Solution(
                status="feasible",
                message=f"{choice.limit_w:.0f} W{lock}{unchanged}",
                schedule=choice.schedule,
                metrics=metrics,
            )
            rows.append(self._row(name, Plan(granularity="static"), protocol, solution, choice.tables))
        by_pass = Plan(granularity="pass")
        plan = pass_plan(self._problem(by_pass, protocol), seed=self.seed)
        self._solved.setdefault(protocol.name, {})["pass"] = plan
        return [*rows, self._row("pass", by_pass, protocol, plan)]

    def _power_limit(
        self, protocol: SwitchProtocol, objective: Objective, with_lock: bool
    ) -> PowerLimitChoice | str:
        key = ("any" if self.scene.boundary == "periodic" else protocol.name, with_lock)
        if key not in self._power_limits:
            self._power_limits[key] = best_power_limit(self.scene, protocol, objective, with_lock=with_lock)
        return self._power_limits[key]

    def policy(self, plan: Plan, protocol: SwitchProtocol) -> PolicyRow:
        """One plan, solved at the nominal assumptions and judged by the SimPy replay."""
        problem = self._problem(plan, protocol)
        if plan.aggregation == "local" and problem.objective.max_time_s is None:
            missing = Solution(
                status="not applicable", message="each launch is to keep a budget of time, and there is none"
            )
            return self._row(plan.name, plan, protocol, missing)
        also = [*self._solved.get(protocol.name, {}).values(), self._solved.get("free", {}).get(plan.name)]
        schedules = [s for found in also if found is not None for s in (found.schedule, found.alternate)]
        known = [schedule for schedule in schedules if schedule is not None and not schedule.is_static]
        solution = without_noise(problem, solve(problem, seed=self.seed, also=known))
        self._solved.setdefault(protocol.name, {})[plan.name] = solution
        return self._row(plan.name, plan, protocol, solution)

    def sure(self, confidence: float, protocol: SwitchProtocol) -> PolicyRow:
        """A plan per launch that keeps its time budget with a probability; metrics at the median latency."""
        plan = Plan(granularity="launch")
        objective = self.budget.objective(plan.minimize, self.auto_at["nominal"])
        if objective.max_time_s is None:
            missing = Solution(status="not applicable", message="a probability is kept of a time budget")
            return self._row(SURE, plan, protocol, missing)
        found = sure_plan(
            self.scene,
            protocol,
            objective,
            probability=confidence,
            luck=self.luck,
            seed=self.seed,
            progress=lambda text: self.progress(f"{protocol.name}: {SURE}, {text}"),
        )
        missing = Solution(status="infeasible", message="no lock keeps the budget")
        return self._row(SURE, plan, protocol, missing if found is None else found.solution)

    def _problem(self, plan: Plan, protocol: SwitchProtocol) -> Problem:
        return self.scene.problem(
            self.budget.objective(plan.minimize, self.auto_at["nominal"]),
            protocol,
            granularity=plan.granularity,
            aggregation=plan.aggregation,
            evaluate=self._judge(protocol, NOMINAL),
        )

    def _judge(
        self, protocol: SwitchProtocol, corner: Corner, tables: Mapping[Level, CostTable] | None = None
    ) -> Judge:
        model, level = corner
        if tables is not None:
            return self.scene.judge(protocol, costs=tables[model], switching=self.scene.switching[level])
        key = (protocol.name, *corner)
        if key not in self._judges:
            judge = self.scene.judge(
                protocol, costs=self.scene.costs[model], switching=self.scene.switching[level]
            )
            self._judges[key] = self._remembering(judge, model)
        return self._judges[key]

    def _remembering(self, judge: Judge, model: Level) -> Judge:
        """A lock without a change costs the same under every protocol; it is judged once."""
        if self.scene.boundary != "periodic":
            return judge

        def remembered(schedule: Schedule) -> Metrics:
            if len(schedule) != 1:
                return judge(schedule)
            key = (model, schedule.requests[0].clocks)
            if key not in self._locks:
                self._locks[key] = judge(schedule)
            return self._locks[key]

        return remembered

    def _row(
        self,
        name: str,
        plan: Plan,
        protocol: SwitchProtocol,
        solution: Solution,
        tables: Mapping[Level, CostTable] | None = None,
    ) -> PolicyRow:
        objective = self.budget.objective(plan.minimize, self.auto_at["nominal"])
        kept = None
        if self.luck is not None and tables is None and protocol.charged and solution.metrics is not None:
            kept = 1.0
            if solution.metrics.n_switches:
                luck = scattered(self.scene, solution, protocol, luck=self.luck, seed=self.seed + 2)
                kept, said = luck.kept(objective), luck.in_words(objective, self.auto_at["nominal"])
                solution = replace(solution, message="; ".join(filter(None, (said, solution.message))))
        common: dict[str, Any] = {
            "name": name,
            "granularity": plan.granularity,
            "aggregation": plan.aggregation,
            "objective": objective.minimize,
            "protocol": protocol.name,
            "status": solution.status,
            "reason": solution.message,
            "kept": kept,
            "solution": solution,
        }
        if solution.schedule is None:
            return PolicyRow(**common)
        metrics = self._replayed(solution, protocol, tables)
        if metrics.energy_j is None:
            return PolicyRow(**{**common, "reason": metrics.energy_reason})
        corners = {NOMINAL: metrics.pct_of(self.auto_at["nominal"])}
        switches = solution.schedule.requests[1:] or solution.alternate is not None
        levels = LEVELS if protocol.charged and switches else ("nominal",)
        for corner in ((model, level) for model in LEVELS for level in levels):
            if corner != NOMINAL:
                run = judged_again(solution, self._judge(protocol, corner, tables))
                corners[corner] = run.pct_of(self.auto_at[corner[0]])
        times, energies = zip(*corners.values(), strict=True)
        costs = self.scene.costs["nominal"] if tables is None else tables["nominal"]
        assumed = costs.assumed
        if protocol.charged and switches:
            assumed = (*assumed, *self.scene.switching["nominal"].assumed)
        bound_pct, gap_pct = self._bounds(solution, metrics, objective)
        return PolicyRow(
            **common,
            time_pct=corners[NOMINAL][0],
            energy_pct=corners[NOMINAL][1],
            time_pct_range=(min(times), max(times)),
            energy_pct_range=(min(energies), max(energies)),
            dynamic_pct=self._under_dynamic(solution, protocol) if tables is None else None,
            n_switches=metrics.n_switches,
            lower_bound_pct=bound_pct,
            gap_pct=gap_pct,
            assumed=assumed,
            corners=corners,
        )

    def _replayed(
        self, solution: Solution, protocol: SwitchProtocol, tables: Mapping[Level, CostTable] | None
    ) -> Metrics:
        costs = None if tables is None else tables["nominal"]
        return judged_again(solution, lambda s: self.scene.replay(s, protocol, costs=costs).metrics)

    def _under_dynamic(self, solution: Solution, protocol: SwitchProtocol) -> tuple[float, float] | None:
        """Time and energy when the governor lags as measured, in per cent of AUTO's under the same."""
        governor, base = self.scene.governor, self.auto_dynamic
        if governor is None or base is None:
            return None

        def replayed(schedule: Schedule) -> Metrics:
            return self.scene.replay(schedule, protocol, governor=governor).metrics

        return judged_again(solution, replayed).pct_of(base)

    def _bounds(
        self, solution: Solution, metrics: Metrics, objective: Objective
    ) -> tuple[float | None, float | None]:
        """The lower bound against AUTO and the gap to it, in per cent of the objective."""
        bound, base = solution.lower_bound, self.auto_at["nominal"]
        if bound is None or metrics.energy_j is None or base.energy_j is None:
            return None, None
        value = objective.value(metrics.time_s, metrics.energy_j)
        return (
            100 * (bound / objective.value(base.time_s, base.energy_j) - 1),
            100 * (value - bound) / value if value else 0.0,
        )
