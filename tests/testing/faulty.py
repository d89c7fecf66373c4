"""Five optimizers as people write them, each with a mistake that people make."""

from __future__ import annotations

import itertools

import numpy as np

from kdvfs_sim.core.clocks import Auto, Clocks
from kdvfs_sim.core.problem import Problem, Solution
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.optimize.baselines import locks, static_lock, static_mix


def schedule_of(problem: Problem, rows: list[int]) -> Schedule:
    return Schedule.from_assignment(
        [problem.costs.clocks[row] for row in rows],
        stream=problem.chain.stream,
        device=problem.chain.device,
        protocol=problem.protocol.name,
        boundary=problem.boundary,
    )


def or_a_baseline(problem: Problem, solution: Solution | None) -> Solution:
    """The better of a solution and the best lock or mix."""
    candidates = locks(problem)
    answers = [static_lock(problem, candidates), static_mix(problem, candidates)]
    if solution is not None:
        answers.append(solution)
    known = [a for a in answers if a.metrics is not None and a.metrics.energy_j is not None]
    if not known:
        return answers[0]
    best = min(known, key=lambda a: problem.objective.value(a.metrics.time_s, a.metrics.energy_j))
    return Solution(
        status="feasible",
        schedule=best.schedule,
        metrics=best.metrics,
        alternate=best.alternate,
        share=best.share,
    )


class ForEnergy:
    """Leaves other objectives, and traces whose times do not add, to the baselines."""

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        objective = problem.objective
        plain = objective.minimize == "energy" and problem.granularity == "launch" and problem.chain.additive
        if not plain or objective.max_time_s is None:
            return or_a_baseline(problem, None)
        return self.least_energy(problem, objective.max_time_s)

    def least_energy(self, problem: Problem, limit_s: float) -> Solution:
        raise NotImplementedError


class OwnEstimate(ForEnergy):
    """Least energy for each launch within the slack, by its own sum of durations. Switching is not in that
    sum."""

    def least_energy(self, problem: Problem, limit_s: float) -> Solution:
        chain, costs = problem.chain, problem.costs
        time = chain.duration_ns[:, None] * costs.ratio[chain.kind]
        energy = time * costs.request_power_w[chain.kind]
        rows = energy.argmin(axis=1)
        gaps = chain.lag_ns.sum()
        while (time[np.arange(len(rows)), rows].sum() + gaps) * 1e-9 > limit_s:
            saved = time[np.arange(len(rows)), rows] - time.min(axis=1)
            if not saved.max() > 0:
                return or_a_baseline(problem, None)
            launch = int(saved.argmax())
            rows[launch] = time[launch].argmin()
        schedule = schedule_of(problem, rows.tolist())
        return Solution(status="feasible", schedule=schedule, metrics=problem.evaluate(schedule))


class ForgetsTheWayBack(ForEnergy):
    """Tries every plan, but as if the iteration ran once: the change back to the first clocks is not
    charged."""

    def least_energy(self, problem: Problem, limit_s: float) -> Solution:
        chain, costs, switching = problem.chain, problem.costs, problem.switching
        n = len(chain)
        if costs.n_clocks**n > 300:
            return or_a_baseline(problem, None)
        best, least = None, np.inf
        for rows in itertools.product(range(costs.n_clocks), repeat=n):
            now = energy = 0.0
            for i, row in enumerate(rows):
                pause = 0.0
                old = rows[i - 1] if i else problem.start
                if problem.protocol.charged and old is not None and old != row:
                    pause = max(switching.host_call_ns[old, row], switching.switching_ns[old, row])
                    pause += problem.protocol.relaunch_ns
                duration = chain.duration_ns[i] * costs.ratio[chain.kind[i], row]
                now += pause + chain.lag_ns[i] + duration
                energy += duration * costs.request_power_w[chain.kind[i], row]
                energy += (pause + chain.lag_ns[i]) * costs.idle_power_w[row]
            if now * 1e-9 <= limit_s and energy < least:
                best, least = rows, energy
        if best is None:
            return or_a_baseline(problem, None)
        schedule = schedule_of(problem, list(best))
        return Solution(status="feasible", schedule=schedule, metrics=problem.evaluate(schedule))


class BetweenTheClocks(ForEnergy):
    """Lowers the SM clock by as much as the slack allows, as if there were a clock for every MHz."""

    def least_energy(self, problem: Problem, limit_s: float) -> Solution:
        listed = [c for c in problem.costs.clocks if not isinstance(c.sm_mhz, Auto)]
        answer = or_a_baseline(problem, None)
        if not listed or answer.metrics is None or not answer.metrics.time_s:
            return answer
        highest = max(listed, key=lambda c: c.sort_key)
        assert isinstance(highest.sm_mhz, int)
        lowered = Clocks(round(highest.sm_mhz * answer.metrics.time_s / limit_s), highest.mem_mhz)
        schedule = Schedule.static(
            lowered,
            stream=problem.chain.stream,
            device=problem.chain.device,
            protocol=problem.protocol.name,
            boundary=problem.boundary,
        )
        return Solution(status="feasible", schedule=schedule, metrics=answer.metrics)


class ProudOfItsPlan(ForEnergy):
    """Chooses clocks launch by launch and returns that plan if it keeps the budget, whatever a lock would
    give."""

    def least_energy(self, problem: Problem, limit_s: float) -> Solution:
        chain, costs = problem.chain, problem.costs
        time = chain.duration_ns[:, None] * costs.ratio[chain.kind]
        rows = (time * costs.request_power_w[chain.kind]).argmin(axis=1)
        schedule = schedule_of(problem, rows.tolist())
        metrics = problem.evaluate(schedule)
        if metrics.energy_j is None or not problem.objective.allows(metrics.time_s, metrics.energy_j):
            return or_a_baseline(problem, None)
        return Solution(status="feasible", schedule=schedule, metrics=metrics)


class UnstableUnderTies(ForEnergy):
    """Slows one kind after another while that saves; equals are taken in the order of their names."""

    def least_energy(self, problem: Problem, limit_s: float) -> Solution:
        chain, costs = problem.chain, problem.costs
        rows = np.full(len(chain), costs.auto)
        best: Solution | None = None
        for kind in sorted(range(costs.n_kinds), key=lambda k: costs.kinds[k]):
            for row in range(costs.n_clocks):
                tried = np.where(chain.kind == kind, row, rows)
                schedule = schedule_of(problem, tried.tolist())
                metrics = problem.evaluate(schedule)
                if metrics.energy_j is None or not problem.objective.allows(metrics.time_s, metrics.energy_j):
                    continue
                value = problem.objective.value(metrics.time_s, metrics.energy_j)
                if best is None or value < problem.objective.value(
                    best.metrics.time_s, best.metrics.energy_j
                ):
                    best, rows = Solution(status="feasible", schedule=schedule, metrics=metrics), tried
        return or_a_baseline(problem, best)


FAULTY = {
    OwnEstimate: "budget_is_kept_after_replay",
    ForgetsTheWayBack: "budget_is_kept_after_replay",
    BetweenTheClocks: "clocks_are_on_the_table",
    ProudOfItsPlan: "never_worse_than_a_baseline",
    UnstableUnderTies: "names_do_not_matter",
}
