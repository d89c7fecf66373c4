"""What the table says to people: its page, its flags and its closing sentence."""

from __future__ import annotations

import importlib
import re
from dataclasses import replace
from pathlib import Path

import pytest

from kdvfs_sim.core.switching import PROTOCOLS
from kdvfs_sim.report.page import in_words
from kdvfs_sim.report.policy_page import policies_json, show_policies
from kdvfs_sim.study.equal_slack import EqualSlack, equal_slack
from kdvfs_sim.study.plans import Budget, plans_from
from kdvfs_sim.study.scene import Scene
from kdvfs_sim.study.sentence import NOT_VALIDATED, closing_sentence, own_error
from tests.study.conftest import PLANS


def page_of(table: EqualSlack, capsys: pytest.CaptureFixture[str]) -> list[str]:
    show_policies(table)
    lines = capsys.readouterr().out.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("protocol"))
    last = next(i for i, line in enumerate(lines) if line.startswith("range:"))
    return lines[first + 1 : last]


def test_baselines_that_no_protocol_changes_stand_once(
    table: EqualSlack, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [line[10:].split("  ")[0].strip() for line in page_of(table, capsys)]
    for name in ("auto", "static", "static-mix", "power-limit", "power-limit and lock"):
        assert names.count(name) == 1, name
    for plan in PLANS:
        assert names.count(plan.name) == len(PROTOCOLS)
    assert next(name for name in names if name) == "auto"


def test_baselines_that_a_protocol_changes_stand_under_each(
    table: EqualSlack, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        replace(row, energy_pct=row.energy_pct + 0.5)
        if row.name == "static" and row.protocol == "drain" and row.energy_pct is not None
        else row
        for row in table.rows
    ]
    names = [line[10:].split("  ")[0].strip() for line in page_of(replace(table, rows=tuple(rows)), capsys)]
    assert names.count("static") == len(PROTOCOLS)
    one = replace(table, rows=tuple(row for row in table.rows if row.protocol in ("any", "free")))
    assert sum(line.startswith("any") for line in page_of(one, capsys)) == 1
    assert any(line.startswith("free") and " static " in line for line in page_of(one, capsys))


def test_words_of_the_table_are_plain(table: EqualSlack, capsys: pytest.CaptureFixture[str]) -> None:
    flagged = replace(table, flags=("cross_stream_unknown", "overlap_energy_is_a_bound", *table.flags))
    show_policies(flagged)
    page = capsys.readouterr().out
    assert "not exact" not in page
    assert "within the gap" in page
    assert "cross_stream_unknown" not in page
    assert "overlap_energy_is_a_bound" not in page
    assert "what waits for what between streams is not known" in page
    assert policies_json(flagged, {})["flags"] == list(flagged.flags)
    assert {row["status"] for row in policies_json(table, {})["policies"]} >= {"not exact"}


def test_every_flag_of_a_replay_has_words() -> None:
    """Flags are identifiers in the source of the replay; people read sentences."""
    for name in ("simulate", "fast", "dependencies"):
        source = Path(importlib.import_module(f"kdvfs_sim.replay.{name}").__file__ or "").read_text()
        flags = re.findall(r'flags\.append\("(\w+)"\)|\("(\w+)", (?:not )?trace\.', source)
        assert flags
        for flag in ("".join(found) for found in flags):
            assert " " in in_words(flag), flag


def test_a_bound_that_is_far_off_is_not_shown(table: EqualSlack, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tuple(
        replace(row, lower_bound_pct=-99.25, gap_pct=98.9, status="not exact")
        if row.protocol == "follow" and row.name == "launch"
        else row
        for row in table.rows
    )
    far = replace(table, rows=rows)
    line = [line for line in page_of(far, capsys) if " launch " in line][2]
    assert line.split("best found")[0].split()[-2:] == ["-", "-"]
    show_policies(far)
    page = capsys.readouterr().out
    assert "99.25" not in page
    assert "-: the bound that is known is far off" in page
    assert any(row["lower_bound_pct"] == -99.25 for row in policies_json(far, {})["policies"])


def test_the_page_is_no_wider_than_a_window(table: EqualSlack, capsys: pytest.CaptureFixture[str]) -> None:
    show_policies(table)
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("protocol"))
    last = next(i for i, line in enumerate(lines) if line.startswith("range:"))
    assert max(len(line.rstrip()) for line in lines[first:last]) <= 130
    assert "switching does not pay, as static" in " ".join(printed.split())
    words = " ".join(printed.split())
    for row in table.rows:  # what to run is there, over as many lines as it takes
        if row.name == "static":
            assert row.reason.split("; at the ")[0] in words


def test_the_closing_sentence_compares_with_the_best_baseline(table: EqualSlack) -> None:
    sentence = closing_sentence(table)
    assert sentence.endswith(NOT_VALIDATED)
    assert "AUTO's energy" in sentence
    launch = next(row for row in table.rows if row.protocol == "free" and row.name == "launch")
    mix = next(row for row in table.rows if row.protocol == "free" and row.name == "static-mix")
    assert f"{mix.energy_pct - launch.energy_pct:.2f} points" in sentence
    assert f"{own_error(launch, mix):.2f} points" in sentence


def test_the_sentence_says_what_a_lagging_governor_leaves(table: EqualSlack) -> None:
    """Of the best plan with free switching, and of the best baseline, each against AUTO under the same."""
    free = {row.name: row for row in table.rows if row.protocol == "free"}
    best, others = free["launch"], [free["static"], free["static-mix"]]
    left = [row.dynamic_pct[1] for row in (best, *others) if row.dynamic_pct is not None]
    assert len(left) == 3
    sentence = closing_sentence(table)
    assert f"Under the GPU's lagging governor it saves {-left[0]:.2f} %, where" in sentence
    assert f"saves {-min(left[1:]):.2f} %." in sentence
    unknown = replace(table, rows=tuple(replace(row, dynamic_pct=None) for row in table.rows))
    assert "lagging" not in closing_sentence(unknown)
    worse = replace(best, dynamic_pct=(0.0, 0.25))
    rows = tuple(worse if row is best else row for row in table.rows)
    assert "governor it takes 0.25 % more" in closing_sentence(replace(table, rows=rows))


def test_a_budget_of_energy_ends_with_what_is_fastest(layer: Scene) -> None:
    for saved_pct, says in ((3.0, "Within the energy budget"), (97.0, "No policy keeps the budget.")):
        budget = Budget(energy_pct=100 - saved_pct)
        sentence = closing_sentence(
            equal_slack(layer, budget=budget, protocols=["free"], plans=plans_from("kind"))
        )
        assert sentence.startswith(says)
