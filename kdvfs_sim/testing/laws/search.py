"""What has to hold of a Search (core.protocols).

The plug-in is what makes one: ``plugin(problem, seed)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeAlias

from hypothesis import strategies as st

from kdvfs_sim.core.errors import InputError
from kdvfs_sim.core.problem import Candidate, Metrics, Problem
from kdvfs_sim.core.protocols import Search
from kdvfs_sim.testing.law import Raised, ask, assume, law, require
from kdvfs_sim.testing.laws.answers import anything

MakeSearch: TypeAlias = Callable[[Problem, int], Search]
N_ASKED = 25
cases = st.tuples(anything, st.integers(0, 3))


def made(make: MakeSearch, problem: Problem, seed: int) -> Search:
    search: Search = ask(make, problem, seed)
    return search


def asked(search: Search) -> Candidate:
    """Only where there is something to propose."""
    candidate = ask(search.ask)
    assume(candidate is not None)
    assert isinstance(candidate, Candidate)
    return candidate


def walk(search: Search, problem: Problem, *, n: int = N_ASKED) -> Iterator[Candidate]:
    """Candidates as they are asked for, each told before the next."""
    for _ in range(n):
        candidate = ask(search.ask)
        if candidate is None:
            return
        yield candidate
        ask(search.tell, candidate, problem.evaluate(candidate.schedule))


@law("search", lambda _: st.tuples(anything, st.integers(0, 3)), total=True)
def it_asks_and_can_be_told(make: MakeSearch, case: tuple[Problem, int]) -> None:
    """Whatever the candidates give, and also where some could not be run, it goes on: candidates or None."""
    problem, fails = case
    search = made(make, problem, 0)
    for _ in range(N_ASKED):
        candidate = ask(search.ask)
        if candidate is None:
            return
        require(isinstance(candidate, Candidate), f"ask returned {candidate!r}, not a Candidate")
        metrics: Metrics | None = None
        if not fails or candidate.number % fails:
            try:
                metrics = problem.evaluate(candidate.schedule)
            except InputError:
                metrics = None  # another law is about that
        ask(search.tell, candidate, metrics)


@law("search", lambda _: anything)
def candidates_fit_the_trace(make: MakeSearch, problem: Problem) -> None:
    """Every schedule proposed can be evaluated: anchors that exist, clocks on the table, the problem's
    protocol."""
    search = made(make, problem, 0)
    for candidate in walk_unrun(search):
        schedule = candidate.schedule
        planned, wanted = (schedule.protocol, schedule.boundary), (problem.protocol.name, problem.boundary)
        require(planned == wanted, f"candidate {candidate.number} is for {planned}, the problem for {wanted}")
        try:
            metrics = problem.evaluate(schedule)
        except InputError as error:
            require(False, f"candidate {candidate.number} cannot be evaluated: {error}")
        else:
            ask(search.tell, candidate, metrics)


def walk_unrun(search: Search) -> Iterator[Candidate]:
    """Candidates that the law itself evaluates and tells."""
    for _ in range(N_ASKED):
        candidate = ask(search.ask)
        if candidate is None:
            return
        yield candidate


@law("search", lambda _: cases)
def no_number_is_given_twice(make: MakeSearch, case: tuple[Problem, int]) -> None:
    """Every candidate has a number of its own."""
    problem, seed = case
    numbers = [candidate.number for candidate in walk(made(make, problem, seed), problem)]
    twice = {number for number in numbers if numbers.count(number) > 1}
    require(not twice, f"candidates are numbered {numbers}: {sorted(twice)} twice")


@law("search", lambda _: st.tuples(anything, st.permutations(range(4))))
def answers_come_in_any_order(make: MakeSearch, case: tuple[Problem, list[int]]) -> None:
    """Four candidates may be asked for before the first is told, and told in any order."""
    problem, order = case
    search = made(make, problem, 0)
    candidates = [c for c in (ask(search.ask) for _ in range(4)) if c is not None]
    for place in order:
        if place < len(candidates):
            candidate = candidates[place]
            try:
                ask(search.tell, candidate, problem.evaluate(candidate.schedule))
            except Raised as raised:
                require(False, f"candidate {candidate.number} told in the order {order}: {raised}")


@law("search", lambda _: anything)
def only_awaited_candidates_are_told(make: MakeSearch, problem: Problem) -> None:
    """Telling a candidate twice, or one that was never asked for, raises InputError."""
    search = made(make, problem, 0)
    candidate = asked(search)
    metrics = problem.evaluate(candidate.schedule)
    ask(search.tell, candidate, metrics)
    stranger = replace(candidate, number=candidate.number + 1_000_000)
    for what, told in (("told twice", candidate), ("never asked for", stranger)):
        try:
            ask(search.tell, told, metrics)
        except Raised as raised:
            require(
                isinstance(raised.error, InputError), f"a candidate {what}: {raised}; InputError is right"
            )
        else:
            require(False, f"a candidate {what} was accepted")


@law("search", lambda _: anything)
def nothing_more_is_for_good(make: MakeSearch, problem: Problem) -> None:
    """Once it has nothing more to propose it stays so."""
    search = made(make, problem, 0)
    n = sum(1 for _ in walk(search, problem, n=200))
    assume(n < 200)
    again = [ask(search.ask) for _ in range(3)]
    require(again == [None] * 3, f"after {n} candidates and None it proposed {again}")


@law("search", lambda _: cases)
def same_seed_same_candidates(make: MakeSearch, case: tuple[Problem, int]) -> None:
    """The same problem, seed and answers give the same candidates."""
    problem, seed = case
    first, second = (list(walk(made(make, problem, seed), problem)) for _ in range(2))
    differs = next((i for i, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), None)
    same = differs is None and len(first) == len(second)
    require(same, f"candidate {differs} is {second[differs or 0]} the second time, not {first[differs or 0]}")
