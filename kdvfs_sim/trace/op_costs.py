"""FLOPs and bytes of a framework operator, from the shapes that the recording holds.

Counted from the formula the operator computes, not from what its kernel does with it: a multiply-add is two
FLOPs, ``bytes`` is the traffic that cannot be avoided, every input read and every output written once. Where
the recording does not say enough (an unknown layout, a list of tensors without a type), there is no cost
rather than a guess.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from kdvfs_sim.core.kinds import Category

_BYTES: Final = {
    "bool": 1,
    "unsigned char": 1,
    "signed char": 1,
    "c10::float8_e4m3fn": 1,
    "c10::float8_e5m2": 1,
    "c10::float8_e4m3fnuz": 1,
    "c10::float8_e5m2fnuz": 1,
    "short": 2,
    "short int": 2,
    "c10::half": 2,
    "c10::bfloat16": 2,
    "int": 4,
    "float": 4,
    "long": 8,
    "long int": 8,
    "double": 8,
}
# kernels that only prepare or finish the work of the one that does it
_HELPER: Final = re.compile(
    r"dot_do_o|convert_dq|preprocess|postprocess|computeoffsets|splitk_?reduce|nchwtonhwc|nhwctonchw"
)


@dataclass(frozen=True, slots=True)
class _Tensor:
    """Shape and element size of an input; ``element_bytes`` is 0 for what is not a tensor of a known type."""

    dims: tuple[int, ...] = ()
    element_bytes: int = 0

    @property
    def numel(self) -> int:
        return prod(self.dims)

    @property
    def n_bytes(self) -> int:
        return self.numel * self.element_bytes


@dataclass(frozen=True, slots=True)
class OpCost:
    """What one kernel of an operator costs, and how to tell which kernel that is: the operator launches
    exactly ``n_kernels`` of ``category`` (of any, if None) besides helpers, each of this cost."""

    flops: float | None
    bytes: float | None
    category: Category | None = None
    n_kernels: int = 1

    def kernels(self, launched: Sequence[tuple[int, str, Category]]) -> list[int]:
        """Which of an operator's kernels (row, name, category) have the cost; none if their number is odd."""
        doing = [
            row
            for row, name, category in launched
            if self.category in (None, category) and not _HELPER.search(name.lower())
        ]
        return doing if len(doing) == self.n_kernels else []


@dataclass(frozen=True, slots=True)
class _Call:
    """Arguments of an operator. Reading one that is not what is asked for raises ValueError."""

    inputs: Sequence[_Tensor]
    values: Sequence[str]  # scalars and lists as text, "" where there is none

    def tensor(self, index: int, *n_dims: int) -> _Tensor:
        tensor = self.inputs[index]
        if not tensor.element_bytes or (n_dims and len(tensor.dims) not in n_dims):
            raise ValueError(tensor)
        return tensor

    def tensors(self) -> list[_Tensor]:
        return [tensor for tensor in self.inputs if tensor.element_bytes]

    def ints(self, index: int) -> list[int]:
        text = self.values[index]
        if not text.startswith("["):
            raise ValueError(text)
        return [int(part) for part in text.strip("[]").split(",") if part.strip()]

    def flag(self, index: int) -> bool:
        return {"True": True, "False": False, "1": True, "2": True, "0": False}[self.values[index]]


_Formula = Callable[[_Call], OpCost]


def has_formula(name: str) -> bool:
    """Whether the cost of this operator can be known at all."""
    return _formula(name) is not None


def op_cost(name: str, dims: Any, types: Any, values: Any) -> OpCost | None:
    """Cost of one call, from ``Input Dims``, ``Input type`` and ``Concrete Inputs`` as recorded (any JSON
    value, None if absent). None if they do not tell."""
    formula = _formula(name)
    if formula is None or not isinstance(dims, list) or not isinstance(types, list):
        return None
    inputs = [_tensor(shape, kind) for shape, kind in zip(dims, types, strict=False)]
    texts = [str(value) for value in values] if isinstance(values, list) else [""] * len(inputs)
    try:
        return formula(_Call(inputs, texts))
    except (ValueError, LookupError):
        return None  # fewer, other or odder arguments than the formula is written for


def _tensor(shape: Any, kind: Any) -> _Tensor:
    element_bytes = _BYTES.get(str(kind).lower(), 0)
    if not isinstance(shape, list) or not all(type(n) is int and 0 <= n < 2**48 for n in shape):
        return _Tensor()
    return _Tensor(tuple(shape), element_bytes)


def _formula(name: str) -> _Formula | None:
    return _FORMULAS.get(name.removeprefix("aten::")) if name.startswith("aten::") else None


def _matmul(first: int, *, extra: int | None = None, flops_only: bool = False) -> _Formula:
    """[..., m, k] times [..., k, n], arguments ``first`` and the next; ``extra`` is a summand, perhaps."""

    def formula(call: _Call) -> OpCost:
        a, b = call.tensor(first, 2, 3), call.tensor(first + 1, 2, 3)
        (*batch, m, k), (*batch_b, k_b, n) = a.dims, b.dims
        if k != k_b or batch != batch_b:
            raise ValueError((a, b))
        n_bytes = a.n_bytes + b.n_bytes + prod(batch) * m * n * a.element_bytes
        n_bytes += call.tensor(extra).n_bytes if extra is not None else 0
        return OpCost(2.0 * prod(batch) * m * n * k, None if flops_only else float(n_bytes), "gemm")

    return formula


def _linear(call: _Call) -> OpCost:
    x, weight = call.tensor(0), call.tensor(1, 2)
    n, k = weight.dims
    if not x.dims or x.dims[-1] != k:
        raise ValueError(x)
    m = x.numel // k
    bias_bytes = call.inputs[2].n_bytes if len(call.inputs) > 2 else 0
    n_bytes = x.n_bytes + weight.n_bytes + bias_bytes + m * n * x.element_bytes
    return OpCost(2.0 * m * n * k, float(n_bytes), "gemm")


def _convolution(stride: int, padding: int, dilation: int) -> _Formula:
    """x [n, c, spatial...] with weight [c_out, c / groups, window...]; the positions of the lists differ."""

    def formula(call: _Call) -> OpCost:
        x, weight = call.tensor(0, 3, 4, 5), call.tensor(1, 3, 4, 5)
        lists = zip(
            x.dims[2:],
            weight.dims[2:],
            call.ints(stride),
            call.ints(padding),
            call.ints(dilation),
            strict=True,
        )
        out = [
            (size + 2 * pad - gap * (window - 1) - 1) // step + 1 for size, window, step, pad, gap in lists
        ]
        n_positions = x.dims[0] * prod(out)
        n_bytes = x.n_bytes + weight.n_bytes + n_positions * weight.dims[0] * x.element_bytes
        return OpCost(2.0 * n_positions * weight.numel, float(n_bytes), "gemm")

    return formula


def _convolution_backward(call: _Call) -> OpCost:
    """A product as large as the forward one for each gradient asked for, by input and by weight."""
    grad, x, weight = call.tensor(0, 3, 4, 5), call.tensor(1, 3, 4, 5), call.tensor(2, 3, 4, 5)
    if call.values[7] != "False":
        raise ValueError("transposed")
    n_kernels = sum(part.strip() == "True" for part in call.values[10].strip("[]").split(",")[:2])
    flops = 2.0 * grad.numel / weight.dims[0] * weight.numel
    return OpCost(flops, float(grad.n_bytes + x.n_bytes + weight.n_bytes), "gemm", n_kernels)


def _convolution_backward_input(call: _Call) -> OpCost:
    grad, weight = call.tensor(1, 3, 4, 5), call.tensor(2, 3, 4, 5)
    return OpCost(2.0 * grad.numel / weight.dims[0] * weight.numel, None, "gemm")


def _attention(first: int, layout: str, causal: int, *, backward: bool = False) -> _Formula:
    """softmax(q k^T) v on [b, h, s, d] or [b, s, h, d]; two products, five in the backward pass.

    A causal mask leaves s (s + 1) / 2 of s^2 pairs; where the lengths of q and k differ, implementations
    align it differently, and there is no answer.
    """
    heads, length = layout.index("h"), layout.index("s")

    def formula(call: _Call) -> OpCost:
        q, k, v = (call.tensor(first + i, 4) for i in range(3))
        batch, n_heads, s_q, s_k = q.dims[0], q.dims[heads], q.dims[length], k.dims[length]
        pairs = float(s_q * s_k)
        if call.flag(causal):
            if s_q != s_k:
                raise ValueError("causal attention over unequal lengths")
            pairs = s_q * (s_q + 1) / 2
        flops = 2.0 * batch * n_heads * pairs * (q.dims[3] + v.dims[3])
        out_bytes = batch * n_heads * s_q * v.dims[3] * q.element_bytes
        n_bytes = q.n_bytes + k.n_bytes + v.n_bytes + out_bytes
        if backward:  # dq, dk and dv are written, out and its gradient read
            return OpCost(2.5 * flops, float(2 * n_bytes), "attention")
        return OpCost(flops, float(n_bytes), "attention")

    return formula


def _streamed(n_reads: int, flops_per_element: int) -> _Formula:
    """Tensors the size of the first one, so many read and one written; what else there is, is small."""

    def formula(call: _Call) -> OpCost:
        x = call.tensor(0)
        return OpCost(float(flops_per_element * x.numel), float((n_reads + 1) * x.n_bytes))

    return formula


def _elementwise(call: _Call) -> OpCost:
    """One FLOP an element of the result, which has the broadcast shape and the widest type."""
    tensors = call.tensors()
    shaped = [tensor for tensor in tensors if tensor.dims] or tensors
    sizes = zip(*(_padded(tensor.dims, max(len(t.dims) for t in shaped)) for tensor in shaped), strict=True)
    n = prod(max(size) for size in sizes)
    out_bytes = n * max(tensor.element_bytes for tensor in shaped)
    return OpCost(float(n), float(sum(tensor.n_bytes for tensor in tensors) + out_bytes))


def _in_place(call: _Call) -> OpCost:
    """As elementwise, written back to the first argument."""
    target = call.tensor(0)
    return OpCost(
        float(target.numel), float(sum(tensor.n_bytes for tensor in call.tensors()) + target.n_bytes)
    )


def _padded(dims: tuple[int, ...], n_dims: int) -> tuple[int, ...]:
    return (1,) * (n_dims - len(dims)) + dims


def _copy(call: _Call) -> OpCost:
    target, source = call.tensor(0), call.tensor(1)
    return OpCost(0.0, float(target.n_bytes + source.n_bytes))


def _fill(call: _Call) -> OpCost:
    return OpCost(0.0, float(call.tensor(0).n_bytes))


def _reduce(call: _Call) -> OpCost:
    """The whole tensor is read; what is written is smaller by the dimensions named in the second argument,
    all of them if it names none."""
    x = call.tensor(0)
    over = call.ints(1) if len(call.values) > 1 and call.values[1].startswith("[") else []
    kept = set(range(len(x.dims))) - {axis % len(x.dims) for axis in over} if over else ()
    return OpCost(float(x.numel), float(x.n_bytes + prod(x.dims[axis] for axis in kept) * x.element_bytes))


def _index_select(call: _Call) -> OpCost:
    source, index = call.tensor(0), call.tensor(2, 1)
    axis = int(call.values[1])
    moved = source.n_bytes // source.dims[axis] * index.numel if source.numel else 0
    return OpCost(0.0, float(2 * moved + index.n_bytes))


_POINTWISE: Final = (
    "add", "sub", "rsub", "mul", "div", "neg", "abs", "exp", "log", "sqrt", "rsqrt", "reciprocal", "pow",
    "sin", "cos", "tanh", "sigmoid", "relu", "gelu", "silu", "clamp", "clamp_min", "clamp_max", "leaky_relu",
    "hardtanh", "hardswish", "threshold_backward", "gelu_backward", "silu_backward", "sigmoid_backward",
    "tanh_backward", "addcmul", "addcdiv", "lerp", "where", "maximum", "minimum", "masked_fill",
)  # fmt: skip
_FORMULAS: Final[dict[str, _Formula]] = {
    "mm": _matmul(0),
    "bmm": _matmul(0),
    "addmm": _matmul(1, extra=0),
    "baddbmm": _matmul(1, extra=0),
    "matmul": _matmul(0),
    "_scaled_mm": _matmul(0, flops_only=True),  # the type of its result is not recorded
    "linear": _linear,
    "cudnn_convolution": _convolution(stride=3, padding=2, dilation=4),
    "miopen_convolution": _convolution(stride=4, padding=3, dilation=5),
    "_convolution": _convolution(stride=3, padding=4, dilation=5),
    "convolution": _convolution(stride=3, padding=4, dilation=5),
    "convolution_backward": _convolution_backward,
    "cudnn_convolution_backward_input": _convolution_backward_input,
    "_flash_attention_forward": _attention(0, "bshd", causal=8),
    "_flash_attention_backward": _attention(1, "bshd", causal=11, backward=True),
    "_efficient_attention_forward": _attention(0, "bshd", causal=9),
    "_efficient_attention_backward": _attention(1, "bshd", causal=14, backward=True),
    "_cudnn_attention_forward": _attention(0, "bhsd", causal=10),
    "_cudnn_attention_backward": _attention(1, "bhsd", causal=14, backward=True),
    "_scaled_dot_product_flash_attention": _attention(0, "bhsd", causal=4),
    "_scaled_dot_product_efficient_attention": _attention(0, "bhsd", causal=6),
    "_scaled_dot_product_cudnn_attention": _attention(0, "bhsd", causal=6),
    "_softmax": _streamed(1, flops_per_element=5),  # maximum, difference, exponential, sum, quotient
    "_log_softmax": _streamed(1, flops_per_element=5),
    "_softmax_backward_data": _streamed(2, flops_per_element=4),
    "_log_softmax_backward_data": _streamed(2, flops_per_element=4),
    "native_layer_norm": _streamed(1, flops_per_element=8),  # mean 1, variance 3, normalize 2, affine 2
    "_fused_rms_norm": _streamed(1, flops_per_element=4),
    "native_group_norm": _streamed(1, flops_per_element=8),
    "cudnn_batch_norm": _streamed(1, flops_per_element=8),
    "cudnn_batch_norm_backward": _streamed(2, flops_per_element=11),
    "sum": _reduce,
    "mean": _reduce,
    "amax": _reduce,
    "amin": _reduce,
    "copy_": _copy,
    "fill_": _fill,
    "zero_": _fill,
    "index_select": _index_select,
    **dict.fromkeys(_POINTWISE, _elementwise),
    **dict.fromkeys((f"{name}_" for name in _POINTWISE), _in_place),
}
