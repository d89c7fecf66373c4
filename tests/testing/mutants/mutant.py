"""A plug-in that is broken on purpose, and the list of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kdvfs_sim.testing.law import Kind


@dataclass(frozen=True)
class Mutant:
    """``breaks`` is the law that only this mutant's fault should break."""

    kind: Kind
    breaks: str
    says: str
    make: Callable[[], Any]


MUTANTS: list[Mutant] = []


def mutant(kind: Kind, breaks: str) -> Callable[[Any], Any]:
    """A class without arguments, or a factory for kinds whose plug-in is one. The docstring says the
    fault."""

    def register(make: Any) -> Any:
        factory = make if kind in ("optimizer", "latency", "power", "switching", "reader") else lambda: make
        MUTANTS.append(Mutant(kind, breaks, " ".join(make.__doc__.split()), factory))
        return make

    return register
