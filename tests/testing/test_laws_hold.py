"""Everything built in keeps its laws, but for failures that are named."""

from __future__ import annotations

import pytest
from hypothesis import settings

from kdvfs_sim.testing.builtin import Subject, subjects
from kdvfs_sim.testing.run import check, report

# laws about claims of optimality say nothing of a search, which claims none
SILENT = {
    "local-search": {
        "a_dominated_clock_changes_nothing",
        "duplicated_kinds_do_not_matter",
        "lower_bound_is_true",
        "more_slack_is_never_worse",
        "optimal_where_it_says_so",
        "two_traces_joined_are_no_worse",
    },
}
N_EXAMPLES = max(10, settings().max_examples // 5)


@pytest.mark.parametrize("subject", list(subjects()), ids=lambda subject: subject.name)
def test_a_built_in_keeps_the_laws_of_its_kind(subject: Subject) -> None:
    verdicts = list(check(subject.make(), subject.kind, known=subject.known, n_examples=N_EXAMPLES))
    broken = [report(verdict) for verdict in verdicts if verdict.outcome == "broken"]
    assert not broken, "\n".join(broken)
    silent = {verdict.law.name for verdict in verdicts if verdict.outcome == "not judged"}
    assert silent == SILENT.get(subject.name, set())
