"""A law: one sentence that holds of every plug-in of a kind, cases to try it on, and what finds it broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from hypothesis import strategies as st

from kdvfs_sim.core.objects import theirs

Kind: TypeAlias = Literal[
    "optimizer", "search", "latency", "power", "switching", "reader", "evaluator", "device"
]
KINDS: Final[tuple[Kind, ...]] = (
    "optimizer",
    "search",
    "latency",
    "power",
    "switching",
    "reader",
    "evaluator",
    "device",
)
Cases: TypeAlias = Callable[[Any], "st.SearchStrategy[Any]"]
Test: TypeAlias = Callable[[Any, Any], None]


class Broken(AssertionError):  # noqa: N818  a verdict, not an accident
    """A law does not hold in this case; the text says what was found instead."""


class Raised(Exception):  # noqa: N818
    """The plug-in raised. Its own law breaks on that; to every other law the case says nothing."""

    def __init__(self, call: str, error: BaseException) -> None:
        super().__init__(call, error)
        self.call = call
        self.error = error

    def __str__(self) -> str:
        return f"{self.call} raised {type(self.error).__name__}: {self.error}"


class NoCase(Exception):  # noqa: N818
    """The case says nothing about this plug-in: a condition of the law is not met."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """``law(plugin, case)`` raises Broken if the law does not hold in that case, NoCase if that says nothing.

    ``cases(plugin)``: strategy for the cases. ``once``: the case is always the same one, so one
    example is enough. ``total``: this is the law about exceptions, which breaks if the plug-in raises.
    """

    kind: Kind
    name: str
    says: str
    cases: Cases
    test: Test
    once: bool = False
    total: bool = False

    def __call__(self, plugin: Any, case: Any) -> None:
        try:
            self.test(plugin, case)
        except Raised as raised:
            if not self.total:
                raise
            raise Broken(str(raised)) from raised.error


LAWS: Final[dict[Kind, list[Law]]] = {kind: [] for kind in KINDS}


def law(kind: Kind, cases: Cases, *, once: bool = False, total: bool = False) -> Callable[[Test], Law]:
    """Make a function of a plug-in and a case a law: its docstring is the sentence."""

    def register(test: Test) -> Law:
        says = " ".join((test.__doc__ or "").split())
        made = Law(kind=kind, name=test.__name__, says=says, cases=cases, test=test, once=once, total=total)
        LAWS[kind].append(made)
        return made

    return register


def require(holds: bool, found: str) -> None:
    """Raises Broken unless ``holds``; ``found`` says what is wrong, with the values."""
    if not holds:
        raise Broken(found)


def assume(holds: bool) -> None:
    """A condition of the law; raises NoCase unless it holds.

    Unlike Hypothesis's own it may be called when a case is run again by hand.
    """
    if not holds:
        raise NoCase("a condition of the law is not met: this case says nothing about the plug-in")


def ask(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call the plug-in; whatever it raises becomes Raised."""
    try:
        return function(*args, **kwargs)
    except BaseException as error:
        if not theirs(error):
            raise
        raise Raised(getattr(function, "__qualname__", repr(function)), error) from error


def laws_of(kind: Kind) -> tuple[Law, ...]:
    """The laws of a kind of plug-in, in the order in which they are best read."""
    import importlib

    importlib.import_module(f"kdvfs_sim.testing.laws.{kind}")
    return tuple(LAWS[kind])
