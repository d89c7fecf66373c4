"""The tables of ../shared/reference/measured_dvfs_data.md: what somebody else's fits left unexplained."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from .datasets import SHARED

PAGE: Final = SHARED / "reference" / "measured_dvfs_data.md"
# The page's names of sets, where they differ from ours; tables of three clocks put two sets in a row.
_OURS: Final = {
    "GTX 980 low (6x6)": "GTX 980 low",
    "GTX 980 high (5x5)": "GTX 980 high",
    "GTX 1080 Ti (5x4)": "GTX 1080 Ti",
    "Titan X Pascal, DNN apps (5x4)": "Titan X apps",
    "V100 zyj (33 apps)": "V100 zyj",
    "RTX 2070 S (5x4)": "RTX 2070 S",
    "A100 HPC + DGEMM, STREAM": "A100 HPC",
    "A40 Perseus (capped)": "A40 Perseus",
    "H100 llama (medians of 3)": "H100 llama",
    "H100 NVL llama": "H100 llama",
    "GTX 980 low / high": "GTX 980 low/GTX 980 high",
    "GTX 1080 Ti / RTX 2070 S": "GTX 1080 Ti/RTX 2070 S",
    "V100 2022 real / micro": "V100 2022 real/V100 2022 micro",
    "A100 SPEC / HPC": "A100 SPEC/A100 HPC",
    "A100 SXM / A40 Perseus": "A100 SXM Perseus/A40 Perseus",
}
Errors = tuple[float, float]


@cache
def table(heading: str) -> dict[str, dict[str, Errors]]:
    """Errors, median and p95, by set and form, of the first table after ``heading``."""
    lines = PAGE.read_text().partition(heading)[2].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|"))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:]]
    stop = next((i for i, line in enumerate(lines[start:]) if not line.startswith("|")), len(rows))
    head, *body = rows[:stop]
    found: dict[str, dict[str, Errors]] = {}
    for row in body[1:]:
        names = _OURS.get(row[0], row[0]).split("/")
        for form, cell in zip(head[1:], row[1:], strict=True):
            pairs = re.findall(r"(\d+\.\d+)/(\d+\.\d+)", cell)
            for name, (median, p95) in zip(names, pairs, strict=False):
                found.setdefault(name, {})[form] = (float(median), float(p95))
    return found


def time_all() -> dict[str, dict[str, Errors]]:
    return table("3.1 Time, all points fitted")


def time_three() -> dict[str, dict[str, Errors]]:
    return table("Fitted at three core clocks only")


def power_all() -> dict[str, dict[str, Errors]]:
    return table("3.2 Power, all points fitted")


def best(forms: dict[str, Errors]) -> tuple[str, Errors]:
    """The best single form: least product of median and p95."""
    name = min(forms, key=lambda form: forms[form][0] * forms[form][1])
    return name, forms[name]


def as_good(ours: Errors, theirs: Errors, *, rel: float = 0.10) -> bool:
    """Median and p95 within ``rel`` of figures printed with two digits and one."""
    return ours[0] <= (theirs[0] + 0.005) * (1 + rel) and ours[1] <= (theirs[1] + 0.05) * (1 + rel)
