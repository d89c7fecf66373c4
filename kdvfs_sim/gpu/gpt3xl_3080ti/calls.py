"""The 46 kernels of one GPT-3 XL training iteration in llm.c, in order, with the shapes they work on.

Derived from the order of calls in llm.c and from the rates that the published times imply; which of the
two qkv gradients comes first is inferred from their clocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from kdvfs_sim.core.kinds import Category, KernelKind

Role: TypeAlias = Literal["gemm", "batched", "stream", "tiny"]
Split: TypeAlias = Literal["whole", "sharded"]

N_LAYERS: Final = 24
BATCH: Final = 40
TOKENS_PER_SEQUENCE: Final = 1024
_WIDTH: Final = 2048
_VOCABULARY: Final = 50304
_BYTES_EACH: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What an iteration works on: sequences in a batch, and over how many GPUs a layer is split."""

    n_sequences: int = BATCH
    n_gpus: int = 1

    @property
    def tokens(self) -> int:
        return self.n_sequences * TOKENS_PER_SEQUENCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One kernel. ``shape`` spells m, n and k of a matrix product: T tokens, D the width, Q, A and F what a
    GPU has of the columns of qkv, attention and the wide layer, V the vocabulary. Other kernels move
    ``n_bytes_per_token``. ``split``: "sharded" work is divided among the GPUs of a layer, "whole" is not.
    """

    name: str
    category: Category
    role: Role
    split: Split
    n_calls: int
    forward: bool
    shape: str = ""
    accumulates: bool = False
    n_bytes_per_token: int = 0
    n_flops_per_token: float = 0.0

    def dims(self, sizes: Sizes) -> tuple[int, int, int]:
        """m, n, k. Only for a call with a shape."""
        of = {
            "T": sizes.tokens,
            "D": _WIDTH,
            "Q": 3 * _WIDTH // sizes.n_gpus,
            "A": _WIDTH // sizes.n_gpus,
            "F": 4 * _WIDTH // sizes.n_gpus,
            "V": _VOCABULARY,
        }
        m, n, k = (of[letter] for letter in self.shape)
        return m, n, k

    def flops(self, sizes: Sizes) -> float:
        if self.shape:
            return 2.0 * math.prod(self.dims(sizes))
        return self.n_flops_per_token * sizes.tokens / (sizes.n_gpus if self.split == "sharded" else 1)

    def bytes(self, sizes: Sizes) -> float:
        """The least traffic: every operand once."""
        if self.shape:
            m, n, k = self.dims(sizes)
            return float(_BYTES_EACH * (m * k + k * n + m * n))
        return self.n_bytes_per_token * sizes.tokens / (sizes.n_gpus if self.split == "sharded" else 1)

    def kind(self) -> KernelKind:
        """As a recording would hold it."""
        flops, n_bytes = self.flops(Sizes()), self.bytes(Sizes())
        return KernelKind(name=self.name, category=self.category, flops=flops or None, bytes=n_bytes or None)


def _gemm(name: str, shape: str, n_calls: int, *, forward: bool = False, accumulates: bool = False) -> Call:
    split: Split = "sharded" if set(shape) & set("QAF") else "whole"
    return Call(
        name=name,
        category="gemm",
        role="gemm",
        split=split,
        n_calls=n_calls,
        forward=forward,
        shape=shape,
        accumulates=accumulates,
    )


def _batched(name: str, *, forward: bool = False) -> Call:
    return Call(
        name=name,
        category="gemm",
        role="batched",
        split="sharded",
        n_calls=N_LAYERS,
        forward=forward,
        n_bytes_per_token=20 * _WIDTH,
        n_flops_per_token=2.0 * TOKENS_PER_SEQUENCE * _WIDTH,
    )


def _stream(
    name: str,
    category: Category,
    widths: float,
    n_calls: int,
    *,
    sharded: bool = False,
    forward: bool = False,
) -> Call:
    return Call(
        name=name,
        category=category,
        role="stream",
        split="sharded" if sharded else "whole",
        n_calls=n_calls,
        forward=forward,
        n_bytes_per_token=round(widths * _WIDTH * _BYTES_EACH),
    )


def _tiny(name: str) -> Call:
    return Call(name=name, category="reduction", role="tiny", split="whole", n_calls=N_LAYERS, forward=False)


_L: Final = N_LAYERS
CALLS: Final[tuple[Call, ...]] = (
    _stream("00 encoder forward", "copy", 3, 1, forward=True),
    _stream("01 layernorm forward, first", "normalization", 2, 1, forward=True),
    _gemm("02 qkv matmul", "TQD", _L, forward=True),
    _stream("03 permute q, k, v", "copy", 6, _L, sharded=True, forward=True),
    _batched("04 q x k batched matmul", forward=True),
    _stream("05 softmax forward", "reduction", 8, _L, sharded=True, forward=True),
    _batched("06 attention x v batched matmul", forward=True),
    _stream("07 unpermute", "copy", 2, _L, sharded=True, forward=True),
    _gemm("08 attention projection matmul", "TDA", _L, forward=True),
    _stream("09 residual and layernorm forward, 2", "normalization", 4, _L, forward=True),
    _gemm("10 wide layer matmul", "TFD", _L, forward=True),
    _stream("11 gelu forward", "elementwise", 8, _L, sharded=True, forward=True),
    _gemm("12 wide layer projection matmul", "TDF", _L, forward=True),
    _stream("13 residual and layernorm forward, next", "normalization", 4, _L, forward=True),
    _gemm("14 logits matmul", "TVD", 1, forward=True),
    _stream("15 fused classifier", "reduction", 2 * _VOCABULARY / _WIDTH, 1),
    _gemm("16 logits input gradient matmul", "TDV", 1),
    _gemm("17 logits weight gradient matmul", "VDT", 1, accumulates=True),
    _stream("18 layernorm backward, last", "normalization", 4, 1),
    _stream("19 gelu forward, again", "elementwise", 8, _L, sharded=True),
    _stream("20 wide layer projection bias gradient", "reduction", 1, _L),
    _tiny("21 bias gradient sum"),
    _gemm("22 wide layer projection input gradient matmul", "TFD", _L),
    _stream("23 gelu backward", "elementwise", 12, _L, sharded=True),
    _gemm("24 wide layer projection weight gradient matmul", "DFT", _L, accumulates=True),
    _stream("25 wide layer bias gradient", "reduction", 4, _L, sharded=True),
    _gemm("26 wide layer input gradient matmul", "TDF", _L),
    _gemm("27 wide layer weight gradient matmul", "FDT", _L, accumulates=True),
    _stream("28 layernorm backward, 2", "normalization", 4, _L),
    _stream("29 attention projection bias gradient", "reduction", 1, _L),
    _tiny("30 bias gradient sum, attention"),
    _gemm("31 attention projection input gradient matmul", "TAD", _L),
    _gemm("32 attention projection weight gradient matmul", "DAT", _L, accumulates=True),
    _stream("33 unpermute backward", "copy", 2, _L, sharded=True),
    _batched("34 attention gradient batched matmul"),
    _batched("35 v gradient batched matmul"),
    _stream("36 softmax backward", "reduction", 12, _L, sharded=True),
    _batched("37 q gradient batched matmul"),
    _batched("38 k gradient batched matmul"),
    _stream("39 permute q, k, v backward", "copy", 6, _L, sharded=True),
    _stream("40 qkv bias gradient", "reduction", 3, _L, sharded=True),
    _gemm("41 qkv input gradient matmul", "TDQ", _L),
    _gemm("42 qkv weight gradient matmul", "QDT", _L, accumulates=True),
    _stream("43 layernorm backward, 1", "normalization", 4, _L),
    _stream("44 wpe backward", "reduction", 1, 1),
    _stream("45 wte backward", "reduction", 1, 1),
)


def order() -> tuple[int, ...]:
    """The 897 calls of an iteration by ID: embedding, layers forward, loss, layers backward, embedding."""
    return (
        0,
        1,
        *(tuple(range(2, 14)) * N_LAYERS),
        *range(14, 19),
        *(tuple(range(19, 44)) * N_LAYERS),
        44,
        45,
    )
