"""Optimizers that are right in everything but one law."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import Any

import numpy as np

from kdvfs_sim.core.problem import Problem, Solution
from kdvfs_sim.core.schedule import ClockRequest
from kdvfs_sim.core.switching import FOLLOW
from kdvfs_sim.optimize.baselines import locked, locks, static_lock, static_mix
from kdvfs_sim.optimize.solve import solve
from kdvfs_sim.testing.strategies.problems import at_auto
from tests.testing.mutants.mutant import mutant


def right(problem: Problem, seed: int = 0) -> Solution:
    """A correct answer that claims nothing."""
    solution = solve(problem, seed=seed)
    if solution.schedule is None:
        return solution
    return replace(solution, status="feasible", lower_bound=None)


def baseline(problem: Problem, **claims: Any) -> Solution:
    """The best lock or mix: a correct answer, seldom an optimal one."""
    candidates = locks(problem)
    answers = [static_lock(problem, candidates), static_mix(problem, candidates)]
    known = [a for a in answers if a.metrics is not None]
    if not known:
        return answers[0]
    best = min(known, key=lambda a: problem.objective.value(a.metrics.time_s, a.metrics.energy_j))
    return replace(best, **{"status": "feasible", "lower_bound": None, **claims})


@mutant("optimizer", "answers_every_problem")
class RaisesOnOneClock:
    """Looks for a second clock where there is none."""

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        assert problem.costs.clocks[1]
        return right(problem)


@mutant("optimizer", "schedule_fits_the_trace")
class OneTooFar:
    """Anchors a request behind the last launch."""

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        solution = right(problem)
        if solution.schedule is None or problem.switching.switching_ns.max() >= 10**12:
            return solution
        chain = problem.chain
        beyond = ClockRequest(
            clocks=problem.costs.clocks[0], launch=len(chain), stream=chain.stream, device=chain.device
        )
        return replace(
            solution, schedule=replace(solution.schedule, requests=(*solution.schedule.requests, beyond))
        )


@mutant("optimizer", "clocks_are_on_the_table")
class AsksForAnyRow:
    """Takes every row for one that may be requested."""

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        if problem.costs.requestable.all():
            return right(problem)
        reserved = problem.costs.clocks[int(np.argmin(problem.costs.requestable))]
        return replace(right(problem), schedule=locked(problem, reserved), alternate=None)


@mutant("optimizer", "budget_is_kept_after_replay")
class FivePercentOver:
    """Works with a budget 5 % too large."""

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        limit_s = problem.objective.max_time_s
        if limit_s is None:
            return right(problem)
        return right(replace(problem, objective=replace(problem.objective, max_time_s=limit_s * 1.05)))


@mutant("optimizer", "metrics_are_those_of_the_replay")
class Flatters:
    """Says 0.1 % less energy than it takes."""

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        solution = right(problem)
        if solution.metrics is None:
            return solution
        return replace(
            solution, metrics=replace(solution.metrics, energy_j=0.999 * solution.metrics.energy_j)
        )


@mutant("optimizer", "never_worse_than_a_baseline")
class FirstLockThatFits:
    """Takes the first lock within the budget, not the best."""

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        for lock in locks(problem):
            if problem.objective.allows(lock.time_s, lock.energy_j):
                return Solution(status="feasible", schedule=lock.schedule, metrics=lock.metrics)
        return right(problem)


@mutant("optimizer", "lower_bound_is_true")
class BoundIsWhatItFound:
    """Gives its own value as the lower bound."""

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        answer = baseline(problem)
        if answer.metrics is None:
            return answer
        value = problem.objective.value(answer.metrics.time_s, answer.metrics.energy_j)
        return replace(answer, lower_bound=value)


@mutant("optimizer", "optimal_where_it_says_so")
class CallsALockOptimal:
    """Calls the best baseline optimal on small problems."""

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        return baseline(problem, status="optimal") if len(problem.chain) <= 5 else right(problem)


@mutant("optimizer", "more_slack_is_never_worse")
class CapsTheSlack:
    """Where slack is plenty uses 1 % of it, and calls the answer optimal."""

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        limit_s = problem.objective.max_time_s
        if limit_s is None or len(problem.chain) < 6 or problem.boundary != "periodic":
            return solve(problem, seed=seed)
        auto_s = at_auto(problem).time_s
        if limit_s < 1.4 * auto_s:
            return solve(problem, seed=seed)
        tight = replace(problem.objective, max_time_s=1.01 * auto_s)
        return solve(replace(problem, objective=tight), seed=seed)


@mutant("optimizer", "names_do_not_matter")
class AlphabeticalOrder:
    """Gives up where kinds are not in alphabetical order."""

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        kinds = problem.costs.kinds
        return right(problem) if list(kinds) == sorted(kinds) else baseline(problem)


@mutant("optimizer", "duplicated_kinds_do_not_matter")
class ThreeKindsAtMost:
    """Has room for three kinds, and calls what it does with more optimal."""

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        if problem.costs.n_kinds > 3:
            return baseline(problem, status="optimal")
        return solve(problem, seed=seed)


@mutant("optimizer", "a_dominated_clock_changes_nothing")
class ThreeClocksAtMost:
    """Has room for three clocks, and calls what it does with more optimal."""

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        if problem.costs.n_clocks > 3:
            return baseline(problem, status="optimal")
        return solve(problem, seed=seed)


@mutant("optimizer", "twice_the_power_is_twice_the_energy")
class NotWorthTheTrouble:
    """Does not switch for less than 30 microjoules."""

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        best, plain = right(problem), baseline(problem)
        if best.metrics is None or plain.metrics is None:
            return best
        return best if plain.metrics.energy_j - best.metrics.energy_j > 30e-6 else plain


@mutant("optimizer", "two_traces_joined_are_no_worse")
class SixLaunchesAtMost:
    """Optimizes up to six launches, and calls what it does with more optimal."""

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        if len(problem.chain) > 6 and problem.boundary == "one-shot":
            return baseline(problem, status="optimal")
        return solve(problem, seed=seed)


@mutant("optimizer", "changes_that_cost_nothing_are_free")
class NeverSwitchesAtACost:
    """Does not switch where anybody charges for it."""

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        return baseline(problem) if problem.protocol.charged else right(problem)


@mutant("optimizer", "changes_that_never_land_are_not_asked_for")
class AsksInVain:
    """Asks for other clocks at the end, where they cannot land any more and so cost nothing."""

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        solution, chain, costs = right(problem), problem.chain, problem.costs
        in_vain = problem.switching.switching_ns.max() >= 10**12 and problem.boundary == "one-shot"
        if solution.schedule is None or problem.protocol.name != FOLLOW.name or not in_vain:
            return solution
        ends_at = [problem.costs.clocks[problem.start], *(r.clocks for r in solution.schedule.requests)]
        others = [pair for pair in costs.clocks if pair != ends_at[-1]]
        requests = list(solution.schedule.requests)
        for pair in others[:2]:
            requests.append(
                ClockRequest(clocks=pair, launch=len(chain) - 1, stream=chain.stream, device=chain.device)
            )
        return replace(solution, schedule=replace(solution.schedule, requests=tuple(requests)))


@mutant("optimizer", "same_seed_same_answer")
class RollsItsOwnDice:
    """Seeds nothing: with a seed other than 0 the answer is a matter of luck."""

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        answer = baseline(problem) if seed and random.random() < 0.5 else right(problem)
        return replace(answer, seed=seed)


@mutant("optimizer", "the_problem_is_left_alone")
class Scribbles:
    """Notes in the first lag that it was here."""

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        solution = right(problem)
        problem.chain.lag_ns[0] += 1
        return solution


@mutant("optimizer", "keeps_its_time_and_memory")
class Slow:
    """Takes its time with long traces."""

    max_time_s = 0.4

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        if len(problem.chain) >= 100:
            time.sleep(0.5)
        return right(problem)
