"""Searches that are right in everything but one law."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from kdvfs_sim.core.problem import Metrics, Problem
from kdvfs_sim.optimize.search import LocalSearch
from tests.testing.mutants.mutant import mutant


@mutant("search", "it_asks_and_can_be_told")
class CannotBearFailure(LocalSearch):
    """Does arithmetic with the metrics of a candidate that could not be run."""

    def tell(self, candidate: Any, metrics: Metrics | None, /) -> None:
        if candidate.number in self._asked:
            _ = metrics.time_s
        super().tell(candidate, metrics)


@mutant("search", "candidates_fit_the_trace")
class ProposesBeyondTheEnd(LocalSearch):
    """Now and then anchors a request behind the last launch."""

    def ask(self) -> Any:
        candidate = super().ask()
        if candidate is None or candidate.number % 3 != 2:
            return candidate
        requests = tuple(replace(r, launch=r.launch + 10_000) for r in candidate.schedule.requests)
        return replace(candidate, schedule=replace(candidate.schedule, requests=requests))


@mutant("search", "no_number_is_given_twice")
class CountsToSix(LocalSearch):
    """Numbers its candidates from 0 to 5, over and over."""

    def ask(self) -> Any:
        candidate = super().ask()
        if candidate is None:
            return None
        number = candidate.number % 6
        self._asked[number] = self._asked.pop(candidate.number)
        return replace(candidate, number=number)


@mutant("search", "answers_come_in_any_order")
class OneAfterTheOther(LocalSearch):
    """Expects to be told in the order in which it was asked."""

    def tell(self, candidate: Any, metrics: Metrics | None, /) -> None:
        if candidate.number in self._asked and candidate.number != min(self._asked):
            raise RuntimeError("tell me of the first one first")
        super().tell(candidate, metrics)


@mutant("search", "only_awaited_candidates_are_told")
class BelievesAnything(LocalSearch):
    """Takes any candidate for one of its own."""

    def tell(self, candidate: Any, metrics: Metrics | None, /) -> None:
        if candidate.number in self._asked:
            super().tell(candidate, metrics)


@mutant("search", "nothing_more_is_for_good")
class HasAnAfterthought(LocalSearch):
    """Says None, and then has something after all."""

    def ask(self) -> Any:
        candidate = super().ask()
        if candidate is None and not hasattr(self, "afterthought"):
            self.afterthought = True
            self._done = False
            self._seen.clear()
        return candidate


@mutant("search", "same_seed_same_candidates")
class SharedDice(LocalSearch):
    """Draws from a generator that all searches share."""

    shared = random.Random(1)

    def __init__(self, problem: Problem, seed: int) -> None:
        super().__init__(problem, seed)
        self._random = self.shared
