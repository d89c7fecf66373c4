"""Every law can fail: each finds a plug-in that is broken in that one way, and no other law need find it."""

from __future__ import annotations

import pytest

from kdvfs_sim.testing.law import KINDS, Kind, Law, laws_of
from kdvfs_sim.testing.run import run_law
from tests.testing.laws_page import PAGE, page
from tests.testing.mutants import MUTANTS, Mutant

ALL = [law for kind in KINDS for law in laws_of(kind)]


def killed(law: Law, mutant: Mutant, n_examples: int) -> bool:
    verdict = run_law(law, mutant.make(), n_examples=n_examples, shrink=False)
    return verdict.outcome == "broken"


def test_every_law_has_its_mutant() -> None:
    assert sorted((law.kind, law.name) for law in ALL) == sorted((m.kind, m.breaks) for m in MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.kind}-{mutant.breaks}")
def test_a_law_finds_its_mutant(mutant: Mutant) -> None:
    law = next(law for law in laws_of(mutant.kind) if law.name == mutant.breaks)
    assert killed(law, mutant, 400)


def test_the_page_of_laws_is_up_to_date() -> None:
    assert page() == PAGE.read_text(), "run: python -m tests.testing.laws_page"


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_each_mutant_is_killed_by_one_law_only(kind: Kind, request: pytest.FixtureRequest) -> None:
    """The table law x mutant: x where the law finds the mutant."""
    mutants = [mutant for mutant in MUTANTS if mutant.kind == kind]
    table = {
        law.name: {m.breaks: killed(law, m, 400 if law.name == m.breaks else 25) for m in mutants}
        for law in laws_of(kind)
    }
    print(f"\n{kind}: law (rows) x mutant (columns, in the same order)")
    for name, row in table.items():
        print("".join("x" if found else "." for found in row.values()), name)
    for law, row in table.items():
        assert row[law], f"{law} does not find its mutant"
        others = [other for other, cells in table.items() if cells[law] and other != law]
        assert not others, f"the mutant of {law} is also found by {others}"
