"""Evaluators that are right in everything but one law."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kdvfs_sim.core.errors import ScheduleError
from kdvfs_sim.core.problem import Metrics
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.replay.fast import FastEvaluator
from tests.testing.mutants.mutant import mutant


@mutant("evaluator", "answers_every_schedule_that_fits")
class NeedsARequest(FastEvaluator):
    """Looks at the first request of a schedule that has none."""

    def evaluate(self, schedule: Schedule) -> Metrics:
        assert schedule.requests[0]
        return super().evaluate(schedule)


@mutant("evaluator", "times_are_those_of_the_replay")
class ForgetsFlags(FastEvaluator):
    """Counts one switch too many where there are any."""

    def evaluate(self, schedule: Schedule) -> Metrics:
        metrics = super().evaluate(schedule)
        return replace(metrics, n_switches=metrics.n_switches + (metrics.n_switches > 0))


@mutant("evaluator", "energy_is_that_of_the_replay")
class ForgetsExtraEnergy(FastEvaluator):
    """Leaves a millionth of the energy out."""

    def evaluate(self, schedule: Schedule) -> Metrics:
        metrics = super().evaluate(schedule)
        energy_j = metrics.energy_j
        return metrics if energy_j is None else replace(metrics, energy_j=energy_j * (1 - 1e-6))


@mutant("evaluator", "a_schedule_that_does_not_fit_is_refused")
class LeavesOutWhatDoesNotFit(FastEvaluator):
    """Drops requests that it cannot place."""

    def evaluate(self, schedule: Schedule) -> Metrics:
        try:
            return super().evaluate(schedule)
        except ScheduleError:
            return super().evaluate(replace(schedule, requests=()))


@mutant("evaluator", "same_answer_in_any_order")
class Remembers(FastEvaluator):
    """Answers from memory where two schedules have the same last request, or none."""

    def evaluate(self, schedule: Schedule) -> Metrics:
        metrics = super().evaluate(schedule)
        n = len(schedule.requests)
        before = getattr(self, "longest", n)
        self.longest = min(before, n)
        return replace(metrics, time_s=metrics.time_s + 1e-9) if before < n else metrics


@mutant("evaluator", "its_inputs_are_left_alone")
class WorksInPlace(FastEvaluator):
    """Marks the rows that it has used."""

    def __init__(self, program: Any, *, costs: Any, **arguments: Any) -> None:
        super().__init__(program, costs=costs, **arguments)
        self.used = costs.requestable

    def evaluate(self, schedule: Schedule) -> Metrics:
        metrics = super().evaluate(schedule)
        self.used[-1] = False
        return metrics
