"""The equal-slack table, for people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rich.table import Table

from kdvfs_sim.core.problem import Metrics
from kdvfs_sim.core.units import format_duration
from kdvfs_sim.report.page import in_words, wide_console
from kdvfs_sim.study.equal_slack import EqualSlack, PolicyRow
from kdvfs_sim.study.sentence import closing_sentence

WITHIN_GAP: Final = "within the gap"
NO_BOUND: Final = "-"
FAR_OFF_PCT: Final = 50.0  # of the answer: a bound so far below it is noise
CLOSED_PCT: Final = 0.01  # of the gap: what is searched to
STATUS_WIDTH: Final = 31  # the table is then about 130 wide; --json has all


def policies_json(table: EqualSlack, settings: dict[str, Any]) -> dict[str, Any]:
    """``baseline``, ``policies`` (one object a row) and ``sentence``; ``settings`` say what was asked."""
    return {
        "settings": settings,
        "baseline": metrics_json(table.baseline),
        "policies": [row.to_json() for row in table.rows],
        "flags": list(table.flags),
        "sentence": closing_sentence(table),
    }


def metrics_json(metrics: Metrics) -> dict[str, Any]:
    """Of one run; null where a number is not known."""
    return {
        "time_s": metrics.time_s,
        "energy_j": metrics.energy_j,
        "mean_power_w": metrics.mean_power_w,
        "n_switches": metrics.n_switches,
        "energy_reason": metrics.energy_reason,
        "flags": list(metrics.flags),
    }


def show_policies(table: EqualSlack) -> None:
    """Print the table, one block per protocol, then what it rests on, then the closing sentence."""
    console = wide_console()
    base = table.baseline
    console.print(
        f"AUTO: {format_duration(base.time_s * 1e9)}, {base.energy_j:.4g} J, {base.mean_power_w:.0f} W. "
        f"Budget: {table.budget}. Percentages against AUTO; negative energy is saved."
    )
    grid = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    grid.add_column("protocol")
    grid.add_column("policy")
    for heading in ("time %", "energy %", "energy % range", "dynamic", "switches", "at best %", "gap %"):
        grid.add_column(heading, justify="right", no_wrap=True)
    grid.add_column("status", max_width=STATUS_WIDTH)
    last = ""
    for protocol, cells in shown_rows(table):
        if protocol != last:
            grid.add_section()
        grid.add_row(protocol if protocol != last else "", *cells)
        last = protocol
    console.print(grid)
    for line in notes(table):
        console.print(line, style="dim")
    console.print(closing_sentence(table), soft_wrap=True)


def shown_rows(table: EqualSlack) -> list[tuple[str, list[str]]]:
    """Protocol and cells of every line. Baselines that are the same under every protocol (without a change of
    clocks there is nothing that could differ) stand once, under ``any``."""
    protocols = list(dict.fromkeys(row.protocol for row in table.rows if row.protocol != "any"))
    lines = [(row, _cells(row, _reason(row, table))) for row in table.rows]
    alike: dict[tuple[str, ...], int] = {}
    for row, cells in lines:
        if row.is_baseline:
            alike[tuple(cells)] = alike.get(tuple(cells), 0) + 1
    once: list[tuple[str, list[str]]] = []
    others: list[tuple[str, list[str]]] = []
    for row, cells in lines:
        if row.is_baseline and len(protocols) > 1 and alike[tuple(cells)] == len(protocols):
            if row.protocol == protocols[0]:
                once.append(("any", cells))
        else:
            (once if row.protocol == "any" else others).append((row.protocol, cells))
    return once + others


def _reason(row: PolicyRow, table: EqualSlack) -> str:
    # what holds for the whole table is noted below it, once
    said_below = any(row.reason and flag.endswith(row.reason) for flag in table.flags)
    return "" if said_below else same_as(row, table.rows) or row.reason.partition("; at the ")[0]


def same_as(row: PolicyRow, rows: Sequence[PolicyRow]) -> str:
    """In words, the baseline of the same protocol whose schedule, or mix, this row's is; "" for none."""
    if row.is_baseline and row.name != "pass":
        return ""
    for other in rows:
        alike = other.protocol == row.protocol and other.name in ("static", "static-mix")
        if alike and _answer(row) and _answer(other) == _answer(row):
            closed = row.gap_pct is not None and row.gap_pct <= CLOSED_PCT
            pays = "switching does not pay" if closed else "none found that pays"
            return f"{pays}, as {other.name}"
    return ""


def _answer(row: PolicyRow) -> tuple[object, ...]:
    found = row.solution
    if found is None or found.schedule is None:
        return ()
    return found.schedule, found.alternate, round(found.share, 9)


def notes(table: EqualSlack) -> list[str]:
    """What the rows rest on: flags, assumed numbers, and what the columns mean."""
    lines = [
        "range: the same schedule when assumed numbers take the ends of their ranges. "
        "at best: no schedule of this policy can be better (a proved bound). "
        "switches: changes an iteration, which is the whole recording. "
        "feasible: keeps the budget; a gap to the bound is open, or no bound is known."
    ]
    if any(row.dynamic_pct is not None for row in table.rows):
        lines.append(
            "dynamic: by how many points time/energy move when schedule and AUTO are both replayed under the "
            "GPU's lagging governor instead of an ideal one."
        )
    latest = max(
        (row for row in table.rows if row.time_pct_range and row.objective == "energy"),
        key=lambda row: row.time_pct_range[1] if row.time_pct_range else 0.0,
        default=None,
    )
    slack_pct = table.budget.slack_pct
    if (
        latest is not None
        and latest.time_pct_range
        and slack_pct is not None
        and latest.time_pct_range[1] > slack_pct + 0.01
    ):
        lines.append(
            "budgets are kept at the nominal numbers: at the ends of their ranges a plan takes up to "
            f"{latest.time_pct_range[1]:+.2f} % time ({latest.name}, {latest.protocol}; --json has all)."
        )
    if slack_pct is not None and any(row.objective in ("edp", "ed2p") for row in table.rows):
        lines.append("edp, ed2p: they weigh time against energy themselves, and have no budget of time.")
    if table.confidence is not None and not all(map(table.is_answer, table.rows)):
        lines.append(
            f"plans that keep the budget in less than {100 * table.confidence:g} % of replays are shown to "
            "compare with: they are not the answer, and not written."
        )
    if any(_bound_says_little(row) for row in table.rows):
        lines.append(f"{NO_BOUND}: the bound that is known is far off, and says nothing (--json has it).")
    if any(_status(row) == WITHIN_GAP for row in table.rows):
        lines.append(f"{WITHIN_GAP}: nothing is better than at best; whether anything lies between is open.")
    lines += [f"note: {in_words(flag)}" for flag in table.flags]
    assumed = sorted({name for row in table.rows for name in row.assumed})
    if assumed:
        shown = ", ".join(assumed[:4])
        more = f" and {len(assumed) - 4} more (--json lists them)" if len(assumed) > 4 else ""
        lines.append(f"assumed, not measured: {shown}{more}")
    return lines


def _bound_says_little(row: PolicyRow) -> bool:
    return row.gap_pct is not None and row.gap_pct > FAR_OFF_PCT


def _status(row: PolicyRow) -> str:
    """The status; one that is not exact in words."""
    if row.status != "not exact":
        return row.status
    return "best found" if row.gap_pct is None or _bound_says_little(row) else WITHIN_GAP


def _cells(row: PolicyRow, reason: str) -> list[str]:
    status = f"{_status(row)}: {reason}" if reason else _status(row)
    bound = _signed(row.lower_bound_pct) + ("" if row.objective == "energy" else f" {row.objective}")
    gap = "" if row.gap_pct is None else f"{round(row.gap_pct, 3) + 0.0:.3f}"
    if _bound_says_little(row):
        bound = gap = NO_BOUND
    energy_range = " .. ".join(_signed(end) for end in row.energy_pct_range or ())
    return [
        row.name,
        _signed(row.time_pct),
        _signed(row.energy_pct),
        energy_range,
        _dynamic(row),
        "" if row.n_switches is None else f"{row.n_switches:g}",
        bound,
        gap,
        status,
    ]


def _dynamic(row: PolicyRow) -> str:
    """By how many points time and energy differ when the governor lags as measured."""
    if row.dynamic_pct is None or row.time_pct is None or row.energy_pct is None:
        return ""
    time_pct, energy_pct = row.dynamic_pct
    return f"{_signed(time_pct - row.time_pct)}/{_signed(energy_pct - row.energy_pct)}"


def _signed(value: float | None) -> str:
    # adding 0.0 turns a rounded -0.0 into +0.0
    return "" if value is None else f"{round(value, 2) + 0.0:+.2f}"
