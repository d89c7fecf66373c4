"""The sentence that every answer ends with."""

from __future__ import annotations

from collections.abc import Iterable

from kdvfs_sim.study.equal_slack import EqualSlack, PolicyRow

NOT_VALIDATED = "Not validated on hardware."
WITHOUT_SWITCHING = ("static", "static-mix", "power-limit", "power-limit and lock")
NOTHING_PCT = 5e-4  # points; less than a table shows
SHOWN_PCT = 5e-3  # points; what a table shows


def closing_sentence(table: EqualSlack) -> str:
    """The saving over the best of static, static-mix and power limit, whether that exceeds what the assumed
    numbers alone move, and what remains of it under the GPU's lagging governor, where that is known. With a
    confidence, only of what keeps the budget so surely."""
    asked = any(not row.is_baseline and row.name != "auto" for row in table.rows)
    answers = [row for row in table.rows if table.is_answer(row)]
    policies = [row for row in answers if not row.is_baseline or (asked and row.name == "pass")]
    free = _best(row for row in policies if row.protocol == "free")
    charged = _best(row for row in policies if row.protocol not in ("free", "any"))
    parts = [_compare(row, table) for row in (free, charged) if row is not None]
    if not parts:
        baseline = _best(row for row in answers if row.is_baseline)
        if baseline is not None and all(row.is_baseline or row.name == "auto" for row in table.rows):
            assert baseline.energy_pct is not None
            parts = [
                f"Of the baselines, all that was asked for, {baseline.name} ({baseline.protocol}) saves "
                f"most: {-baseline.energy_pct:.2f} % of AUTO's energy at {baseline.time_pct:+.2f} % time."
            ]
        else:
            fastest = _fastest(table)
            sure = "" if table.confidence is None else f" in {100 * table.confidence:g} % of replays"
            parts = [f"No policy keeps the budget{sure}."] if fastest is None else [fastest]
    return " ".join([*parts, NOT_VALIDATED])


def _fastest(table: EqualSlack) -> str | None:
    """For a budget of energy: which policy takes least time, beside what is fastest without switching."""

    def least(rows: Iterable[PolicyRow]) -> PolicyRow | None:
        known = [row for row in rows if row.time_pct is not None and row.objective == "time"]
        return min(known, key=lambda row: row.time_pct or 0.0, default=None)

    baseline = least(row for row in table.rows if row.name in WITHOUT_SWITCHING)
    policy = least(row for row in table.rows if row.name not in WITHOUT_SWITCHING)
    if baseline is None:
        return None
    assert baseline.time_pct is not None
    said = f"{baseline.name} takes {baseline.time_pct:+.2f} % time at {baseline.energy_pct:+.2f} % energy"
    if policy is None or policy.time_pct is None or baseline.time_pct - policy.time_pct <= NOTHING_PCT:
        return f"Within the energy budget nothing was found that is faster than without switching: {said}."
    return (
        f"Within the energy budget {policy.name} clocks ({policy.protocol}) take least time, "
        f"{policy.time_pct:+.2f} % at {policy.energy_pct:+.2f} % energy; without switching {said}."
    )


def _compare(row: PolicyRow, table: EqualSlack) -> str:
    assert row.energy_pct is not None
    title = "With free switching" if row.protocol == "free" else f"Switching included ({row.protocol})"
    kept = ""
    if table.confidence is not None and row.kept is not None:
        kept = f", the budget kept in {row.kept:.1%} of replays"
    baseline = _best(
        other
        for other in table.rows
        if other.name in WITHOUT_SWITCHING and other.protocol == row.protocol and table.is_answer(other)
    )
    if baseline is None or baseline.energy_pct is None:
        return f"{title}{kept}, {row.name} clocks save {-row.energy_pct:.2f} % of AUTO's energy."
    over = baseline.energy_pct - row.energy_pct
    if over <= NOTHING_PCT:
        title = "With free switching" if row.protocol == "free" else f"Switching included{kept}"
        bound_pct = _bound(table, row.protocol)
        open_pct = 0.0 if bound_pct is None else baseline.energy_pct - bound_pct
        found = "was found that saves" if open_pct > SHOWN_PCT else "saves"
        rest = f" (up to {open_pct:.2f} points more are not ruled out)" if open_pct > SHOWN_PCT else ""
        return (
            f"{title}, no policy {found} more than {baseline.name} does without switching: "
            f"{_saved(baseline)} % of AUTO's energy at {baseline.time_pct:+.2f} % time{rest}."
            f"{_lagging(baseline, None)}"
        )
    error = own_error(row, baseline)
    if table.costs_given:
        verdict = "the cost table's own error is not in this number."
    else:
        verdict = (
            f"{'more' if over > error else 'no more'} than the {error:.2f} points by which the assumed "
            "numbers move this difference."
        )
    return (
        f"{title}{kept}, {row.name} clocks save {-row.energy_pct:.2f} % of AUTO's energy at "
        f"{row.time_pct:+.2f} % time, {over:.2f} points over the best of static, static-mix and power limit "
        f"({baseline.name}, {-baseline.energy_pct:.2f} %): {verdict}"
        f"{_lagging(row, _best_lagging(table, row.protocol))}"
    )


def _saved(row: PolicyRow) -> str:
    assert row.energy_pct is not None
    return f"{round(-row.energy_pct, 2) + 0.0:.2f}"  # no minus before nothing


def _lagging(row: PolicyRow, baseline: PolicyRow | None) -> str:
    """What remains when the governor lags as measured, beside the best baseline under the same."""
    if row.dynamic_pct is None:
        return ""
    said = f" Under the GPU's lagging governor it {_saves(row.dynamic_pct[1])}"
    if baseline is not None and baseline.dynamic_pct is not None:
        said += f", where {baseline.name} {_saves(baseline.dynamic_pct[1])}"
    return f"{said}."


def _saves(energy_pct: float) -> str:
    if abs(energy_pct) <= SHOWN_PCT:
        return "saves nothing"
    return f"saves {-energy_pct:.2f} %" if energy_pct < 0 else f"takes {energy_pct:.2f} % more"


def _best_lagging(table: EqualSlack, protocol: str) -> PolicyRow | None:
    """The baseline without switching that saves most when the governor lags."""
    known = [
        row
        for row in table.rows
        if row.name in WITHOUT_SWITCHING and row.protocol == protocol and row.dynamic_pct is not None
    ]
    return min(known, key=lambda row: row.dynamic_pct[1] if row.dynamic_pct else 0.0, default=None)


def own_error(row: PolicyRow, baseline: PolicyRow) -> float:
    """By how much the difference of two rows moves over the corners that both were priced at, in points."""
    assert row.energy_pct is not None
    assert baseline.energy_pct is not None
    nominal = baseline.energy_pct - row.energy_pct
    moved = [0.0]
    for corner, (_, energy_pct) in row.corners.items():
        other = baseline.corners.get(corner) or baseline.corners.get((corner[0], "nominal"))
        if other is not None:
            moved.append(abs(other[1] - energy_pct - nominal))
    return max(moved)


def _bound(table: EqualSlack, protocol: str) -> float | None:
    """The least energy that is not ruled out under the charged protocols, or with free switching."""
    bounds = [
        row.lower_bound_pct
        for row in table.rows
        if row.lower_bound_pct is not None
        and row.objective == "energy"
        and (row.protocol == "free") == (protocol == "free")
    ]
    return min(bounds, default=None)


def _best(rows: Iterable[PolicyRow]) -> PolicyRow | None:
    known = [row for row in rows if row.energy_pct is not None and row.objective == "energy"]
    return min(known, key=lambda row: row.energy_pct or 0.0, default=None)
