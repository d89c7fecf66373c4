"""What ``optimize --out-dir`` leaves behind: the schedule, the table, and a timeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from kdvfs_sim.core.files import atomic_write, refuse_foreign, remove_stale, says_format
from kdvfs_sim.core.schedule_file import is_schedule_file, write_schedule
from kdvfs_sim.core.version import __version__
from kdvfs_sim.report.perfetto import is_timeline_file, write_perfetto
from kdvfs_sim.study.equal_slack import EqualSlack, PolicyRow
from kdvfs_sim.study.scene import Scene

POLICIES: Final = "policies.json"
SCHEDULE: Final = "schedule.json"
ALTERNATE: Final = "schedule-alternate.json"
TIMELINE: Final = "timeline.json"
FORMAT: Final = "kdvfs-policies"


def best_row(table: EqualSlack) -> PolicyRow | None:
    """The row whose schedule is worth running: the best of those that pay for their switches, else of all.

    With a confidence, of those that keep the budget so surely. Among equals the simplest, which is the one
    listed first.
    """
    rows = [row for row in table.rows if row.solution is not None and row.solution.schedule is not None]
    rows = [row for row in rows if table.is_answer(row)]
    rows = [row for row in rows if row.energy_pct is not None and not row.name.startswith("power-limit")]
    rows = [row for row in rows if row.objective in ("energy", "time")] or rows
    charged = [row for row in rows if row.protocol != "free"] or rows
    if table.budget.energy_pct is not None:
        return min(charged, key=lambda row: row.time_pct or 0.0, default=None)
    return min(charged, key=lambda row: row.energy_pct or 0.0, default=None)


def check_targets(folder: Path) -> None:
    """Raise InputError if one of the files would replace a file of another kind: before any work."""
    for name, is_ours, what in (
        (POLICIES, is_policies_file, "a table of policies"),
        (SCHEDULE, is_schedule_file, "a schedule"),
        (ALTERNATE, is_schedule_file, "a schedule"),
        (TIMELINE, is_timeline_file, "a timeline"),
    ):
        refuse_foreign(folder / name, is_ours, what)


def write_results(
    folder: str | Path, scene: Scene, table: EqualSlack, document: dict[str, Any]
) -> tuple[list[Path], list[Path]]:
    """Write the files, and remove those of an earlier run that would not belong to them; returns the paths
    of both. Raises InputError like ``check_targets``."""
    folder = Path(folder)
    check_targets(folder)
    policies, schedule, alternate, timeline = (
        folder / name for name in (POLICIES, SCHEDULE, ALTERNATE, TIMELINE)
    )
    row = best_row(table)
    answer = None if row is None else row.solution
    written = [policies]
    if answer is not None:
        written += [schedule, timeline] if answer.alternate is None else [alternate, schedule, timeline]
    removed = remove_stale(p for p in (schedule, alternate, timeline) if p not in written)
    with atomic_write(policies) as file:
        head = {"format": FORMAT, "kdvfs_version": __version__}
        file.write((json.dumps({**head, **document}, indent=1) + "\n").encode())
    if row is None or answer is None or answer.schedule is None:
        return written, removed
    about = {
        **document["settings"],
        "policy": row.name,
        "time_pct": row.time_pct,
        "energy_pct": row.energy_pct,
        "kept": row.kept,
        "validated_on_hardware": False,
    }
    if answer.alternate is not None:
        about["share_of_iterations"] = answer.share
        other = {**about, "share_of_iterations": 1 - answer.share}
        write_schedule(answer.alternate, alternate, about=other)
    write_schedule(answer.schedule, schedule, about=about)
    run = scene.replay(answer.schedule, row.protocol)
    write_perfetto(run.timeline, timeline, title=f"{row.name}, {row.protocol}")
    return written, removed


def is_policies_file(path: Path) -> bool:
    """Was this file written here?"""
    return says_format(path, FORMAT)
