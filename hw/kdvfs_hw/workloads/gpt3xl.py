"""GPT-3 XL in PyTorch: one layer's training step, the whole model's, and decoding token by token.

Sizes are options; the defaults are the shipped recordings' (d 2048, 16 heads, 2048 tokens, bf16).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional

from kdvfs_hw.workloads.torch_graph import TorchGraphWorkload
from kdvfs_sim.core.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Numbers of the model and of one step. ``context``: tokens already decoded."""

    width: int = 2048
    heads: int = 16
    batch: int = 8
    tokens: int = 2048
    layers: int = 24
    vocabulary: int = 50304
    context: int = 512


class Layer(nn.Module):
    """Pre-norm attention and a four times wider perceptron, with biases."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes.width
        self.heads = sizes.heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any, cache: Any = None) -> Any:
        batch, tokens, width = x.shape
        query, key, value = (
            part.view(batch, tokens, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(width, dim=2)
        )
        if cache is not None:  # a token is attended to all that came before it
            key, value = cache
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=cache is None)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.narrow(functional.gelu(self.wide(self.norm2(x))))


class Model(nn.Module):
    """Embeddings, layers, a last norm, and logits."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.word = nn.Embedding(sizes.vocabulary, sizes.width)
        self.place = nn.Embedding(sizes.tokens, sizes.width)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)

    def forward(self, words: Any) -> Any:
        x = self.word(words) + self.place(torch.arange(words.shape[1], device=words.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def _put(module: nn.Module) -> Any:
    torch.manual_seed(0)
    return module.to(device="cuda", dtype=torch.bfloat16)


def _optimizer(module: nn.Module) -> Any:
    return torch.optim.AdamW(module.parameters(), lr=1e-5, fused=True, capturable=True)


@dataclass(frozen=True, slots=True)
class Step:
    """What to repeat, and the tensors that outlive it."""

    run: Callable[[], None]
    state: Callable[[], list[Any]]


def _trained(module: nn.Module, optimizer: Any) -> list[Any]:
    moments = [value for state in optimizer.state.values() for value in state.values()]
    return [*(parameter.data for parameter in module.parameters()), *moments]


def layer_step(sizes: Sizes) -> Step:
    """Forward, backward and optimizer of one layer on random input."""
    layer = _put(Layer(sizes))
    optimizer = _optimizer(layer)
    shape = (sizes.batch, sizes.tokens, sizes.width)
    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    def step() -> None:
        x.grad = None
        optimizer.zero_grad(set_to_none=True)
        layer(x).float().pow(2).mean().backward()
        optimizer.step()

    return Step(step, lambda: _trained(layer, optimizer))


def model_step(sizes: Sizes) -> Step:
    """Forward, loss, backward and optimizer of the whole model on random words."""
    model = _put(Model(sizes))
    optimizer = _optimizer(model)
    words = torch.randint(sizes.vocabulary, (sizes.batch, sizes.tokens + 1), device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        logits = model(words[:, :-1])
        functional.cross_entropy(logits.float().flatten(0, 1), words[:, 1:].flatten()).backward()
        optimizer.step()

    return Step(step, lambda: _trained(model, optimizer))


def decode_step(sizes: Sizes) -> Step:
    """One token through all layers, attending to ``context`` earlier ones."""
    layers = [_put(Layer(sizes)) for _ in range(sizes.layers)]
    shape = (sizes.batch, sizes.heads, sizes.context, sizes.width // sizes.heads)
    caches = [
        tuple(torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2)) for _ in layers
    ]
    token = torch.randn((sizes.batch, 1, sizes.width), device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        with torch.no_grad():
            x = token
            for layer, cache in zip(layers, caches, strict=True):
                x = layer(x, cache)

    return Step(step, list)


# name: (step, sizes, whether parts are operators, equal ones once, whether all tensors stay)
STEPS: Final[dict[str, tuple[Callable[[Sizes], Step], Sizes, bool, bool]]] = {
    "gpt3xl-layer": (layer_step, Sizes(layers=1), False, True),
    "gpt3xl-model": (model_step, Sizes(batch=4), True, False),
    "gpt3xl-decode": (decode_step, Sizes(batch=1, layers=8), True, True),
}


def gpt3xl(name: str, options: Mapping[str, str]) -> TorchGraphWorkload:
    """A workload of ``STEPS`` with sizes given as text. Raises UsageError for one that is no size."""
    make, sizes, merge, keep = STEPS[name]
    known = {each.name for each in fields(Sizes)}
    values = asdict(sizes)
    for key, text in options.items():
        if key not in known or not text.isascii() or not text.isdigit() or int(text) < 1:
            raise UsageError(
                f"workload {name}: {key}={text!r}; write one of {', '.join(sorted(known))} = a whole number"
            )
        values[key] = int(text)
    sizes = Sizes(**values)
    if sizes.width % sizes.heads:
        raise UsageError(f"workload {name}: width {sizes.width} is no multiple of heads {sizes.heads}")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    step = make(sizes)
    return TorchGraphWorkload(
        step.run, name=name, state=step.state, sizes=asdict(sizes), merge=merge, keep=keep
    )
