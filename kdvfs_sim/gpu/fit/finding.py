"""A finding: something about a sweep that a user should know before trusting it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Code: TypeAlias = Literal[
    "bimodal",
    "cap-plateau",
    "clock-not-reached",
    "cold-start",
    "duplicate-series",
    "missing-values",
    "no-final-line-break",
    "seam",
    "several-limits",
    "unit-mix-up",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """``text``: one line with numbers. ``kernels``: those concerned, in the order of the sweep."""

    code: Code
    text: str
    kernels: tuple[str, ...]
