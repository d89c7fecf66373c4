"""Kernel kinds: what models are asked about, shared by many launches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from kdvfs_sim.core.checks import one_of

Category: TypeAlias = Literal[
    "gemm",
    "attention",
    "elementwise",
    "reduction",
    "normalization",
    "copy",
    "communication",
    "optimizer",
    "other",
]
CATEGORIES: Final[tuple[Category, ...]] = get_args(Category)
OpClass: TypeAlias = Literal["kernel", "memcpy", "memset"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelKind:
    """One thing that a GPU executes, identified by name and launch geometry.

    ``flops`` and ``bytes`` are per launch and ``None`` where the recording holds no shapes.
    ``op_class`` tells copies and memory sets apart from kernels: they are kinds too.
    """

    name: str
    op_class: OpClass = "kernel"
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    category: Category = "other"
    flops: float | None = None
    bytes: float | None = None

    def __post_init__(self) -> None:
        one_of("KernelKind: op_class", self.op_class, OpClass)
        one_of("KernelKind: category", self.category, Category)
