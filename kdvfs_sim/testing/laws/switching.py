"""What has to hold of a SwitchingModel (core.protocols)."""

from __future__ import annotations

from typing import TypeAlias

from hypothesis import strategies as st

from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.core.protocols import SwitchingModel
from kdvfs_sim.core.switching import SwitchCost
from kdvfs_sim.testing.domain import requests
from kdvfs_sim.testing.law import ask, law, require
from kdvfs_sim.testing.laws.latency import sent

Change: TypeAlias = tuple[Clocks, Clocks]


def changes(model: SwitchingModel) -> st.SearchStrategy[Change]:
    return st.tuples(requests(model), requests(model))


def cost(model: SwitchingModel, change: Change) -> SwitchCost:
    found = ask(model.switch, *change)
    assert isinstance(found, SwitchCost)
    return found


@law("switching", changes, total=True)
def every_change_has_a_cost(model: SwitchingModel, change: Change) -> None:
    """Between any two requests, AUTO included: a SwitchCost of whole nanoseconds and a finite energy."""
    found = ask(model.switch, *change)
    require(isinstance(found, SwitchCost), f"switch returned {found!r}, not a SwitchCost")


@law("switching", lambda model: requests(model))
def a_no_op_is_free(model: SwitchingModel, clocks: Clocks) -> None:
    """A request for the clocks that are requested already costs nothing."""
    found = cost(model, (clocks, clocks))
    free = SwitchCost(host_call_ns=0, switching_ns=0)
    require(found == free, f"from {clocks} to itself costs {found}")


@law("switching", lambda model: st.tuples(changes(model), st.lists(changes(model), max_size=4)))
def same_answer_in_any_order(model: SwitchingModel, case: tuple[Change, list[Change]]) -> None:
    """The same question has the same answer, whatever was asked in between."""
    change, others = case
    before = cost(model, change)
    for other in others:
        cost(model, other)
    after = cost(model, change)
    require(before == after, f"{before} first, {after} when asked again")


@law("switching", changes)
def a_copy_answers_the_same(model: SwitchingModel, change: Change) -> None:
    """The model can be sent to another process: pickled and loaded it gives the same answers."""
    copy: SwitchingModel = sent(model)
    here, there = cost(model, change), cost(copy, change)
    require(here == there, f"{here} here, {there} after pickling")
