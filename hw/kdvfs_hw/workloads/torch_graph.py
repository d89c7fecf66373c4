"""A PyTorch step recorded once as a CUDA graph, whose kernels can then be launched one by one.

The graph's nodes are the very kernels of the step with their arguments, so nothing has to be rebuilt:
a part is a small graph of copies of one node. While the step is recorded, a dispatch mode notes which
operator made which node, its FLOPs, and keeps every tensor alive, so that a kernel launched alone
still reads the data it read in the step (power depends on data).
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from kdvfs_hw.workloads.base import Part, Ticket
from kdvfs_hw.workloads.cuda_driver import KERNEL, MEMCPY, MEMSET, Chain, Node, call, graph_nodes
from kdvfs_sim.core.errors import DeviceError, UsageError
from kdvfs_sim.core.kinds import KernelKind, OpClass
from kdvfs_sim.trace.categories import category_of

_CHAIN_NS: Final = 4_000_000  # one launch of a chain: long against what a launch costs
_MAX_CHAIN: Final = 400
_N_TRIAL: Final = 20
_WARM_STEPS: Final = 3
_PRODUCTS: Final = ("gemm", "attention")


@dataclass(frozen=True, slots=True)
class _Operator:
    name: str
    n_nodes: int  # in the graph once it had run
    flops: float | None


@dataclass(frozen=True, slots=True)
class _Unit:
    operator: _Operator
    nodes: tuple[Node, ...]


class _Recorder(TorchDispatchMode):
    """Notes the operators of a step while it is captured, and keeps their tensors if asked to."""

    def __init__(self, *, keep: bool) -> None:
        super().__init__()
        self.operators: list[_Operator] = []
        self.kept: list[object] = []
        self._keep = keep

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        count = flop_registry.get(func.overloadpacket)
        flops = None if count is None else float(count(*args, **(kwargs or {}), out_val=out))
        self.operators.append(_Operator(str(func.overloadpacket), _n_captured(), flops))
        if self._keep:  # storages, not tensors: autograd takes a gradient over only if nobody else has it
            self.kept += [t.untyped_storage() for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        return out


def _n_captured() -> int:
    status, ident, graph, n_nodes = c.c_int(), c.c_uint64(), c.c_void_p(), c.c_size_t()
    stream = c.c_void_p(torch.cuda.current_stream().cuda_stream)
    call("cuStreamGetCaptureInfo_v2", stream, *map(c.byref, (status, ident, graph)), None, None)
    if not graph:
        return 0
    call("cuGraphGetNodes", graph, None, c.byref(n_nodes))
    return n_nodes.value


class TorchGraphWorkload:
    """``step`` as a graph, whose parts are its kernels, or, if ``merge``, its operators, equal ones once.

    A kernel is safe to repeat alone if it writes nothing that it reads; an operator with several
    kernels (a sort, say) is not safe in pieces. ``state``: tensors that outlive a step; they are put
    back, and a step is run, before another part is. Times are CUDA events'. Raises DeviceError where
    the step cannot be captured.
    """

    def __init__(
        self,
        step: Callable[[], object],
        *,
        name: str,
        state: Callable[[], Sequence[Any]] | None = None,
        sizes: Mapping[str, object] | None = None,
        merge: bool = False,
        keep: bool = True,
    ) -> None:
        self.name = name
        self._sizes = dict(sizes or {})
        self._merge = merge
        self._running: str | None = None
        self._nodes: dict[str, tuple[Node, ...]] = {}
        self._sequence: list[str] = []
        self._stream = torch.cuda.Stream()
        with torch.cuda.stream(self._stream):
            for _ in range(_WARM_STEPS):
                step()
            self._stream.synchronize()
            recorder = _Recorder(keep=keep)
            self._graph = torch.cuda.CUDAGraph(keep_graph=True)
            try:
                with torch.cuda.graph(self._graph, stream=self._stream), recorder:
                    step()
                self._graph.instantiate()
            except RuntimeError as error:
                raise DeviceError(
                    f"workload {name}: the step cannot be captured ({str(error).splitlines()[0]})"
                ) from None
            self._kept = recorder.kept
            nodes = graph_nodes(self._graph.raw_cuda_graph())
            self._saved = [(tensor, tensor.clone()) for tensor in (state() if state else ())]
            self._graph.replay()
            self._stream.synchronize()
        self.n_kernels = sum(node.type == KERNEL for node in nodes)
        self.parts = self._take_apart(_units(nodes, recorder.operators, whole=merge))
        self._chains: dict[str, tuple[Chain, Chain]] = {}
        self._zero: Any = None
        self._zero_ns = 0
        self._unused: list[Any] = []

    def _take_apart(self, units: Iterable[_Unit]) -> tuple[Part, ...]:
        parts: dict[object, Part] = {}
        for i, unit in enumerate(units):
            kind = _kind(unit)
            shape = tuple((node.name, node.grid, node.block) for node in unit.nodes)
            key = (unit.operator.name, shape, kind.flops) if self._merge else i
            if key in parts:
                old = parts[key]
                parts[key] = Part(name=old.name, kind=kind, n_per_step=old.n_per_step + 1)
            else:
                name = f"{i:03d} {unit.operator.name.removeprefix('aten.')}"
                parts[key] = Part(name=name, kind=kind)
                self._nodes[name] = unit.nodes
            self._sequence.append(parts[key].name)
        return tuple(parts.values())

    def _refresh(self, part: str | None) -> None:
        """Before something else runs: a kernel that was repeated has left its own results behind."""
        if part != self._running:
            for tensor, saved in self._saved:
                tensor.copy_(saved)
            self._graph.replay()
            self._running = part

    @property
    def n_ops(self) -> int:
        return len(self._sequence)

    def segment(self, first: int, stop: int, /) -> Ticket:
        for name in self._sequence[first:stop]:
            self._chain(name)[1].launch(self._stream.cuda_stream)
        return self.launch(None, 0)

    def launch(self, part: str | None, n: int, /) -> Ticket:
        with torch.cuda.stream(self._stream):
            if n:
                self._refresh(part)
            if n and part is None:
                for _ in range(n):
                    self._graph.replay()
            elif n and part is not None:
                many, _ = self._chain(part)
                n_times = -(-n // many.n)  # whole chains: a launch costs more than a short kernel
                for _ in range(n_times):
                    many.launch(self._stream.cuda_stream)
                n = n_times * many.n
            event = self._unused.pop() if self._unused else torch.cuda.Event(enable_timing=True)
            event.record()
        return Ticket(event, n)

    def wait(self, ticket: Ticket, /) -> int:
        event: Any = ticket.mark
        event.synchronize()
        if self._zero is None:
            self._zero = event
            return 0
        since_ns: int = round(self._zero.elapsed_time(event) * 1e6)
        if since_ns > 1_000_000_000:  # elapsed times are 32-bit floats: start again from here
            self._zero_ns += since_ns
            self._unused.append(self._zero)
            self._zero = event
            return self._zero_ns
        self._unused.append(event)
        return self._zero_ns + since_ns

    def _chain(self, part: str) -> tuple[Chain, Chain]:
        if part not in self._chains:
            nodes = self._nodes.get(part)
            if nodes is None:
                raise UsageError(f"workload {self.name}: no part {part!r}")
            one = Chain(nodes, 1)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record(self._stream)
            for _ in range(_N_TRIAL):
                one.launch(self._stream.cuda_stream)
            end.record(self._stream)
            end.synchronize()
            each_ns = max(1.0, begin.elapsed_time(end) * 1e6 / _N_TRIAL)
            self._chains[part] = (Chain(nodes, max(1, min(_MAX_CHAIN, int(_CHAIN_NS / each_ns)))), one)
        return self._chains[part]

    def describe(self) -> Mapping[str, object]:
        return {
            "workload": self.name,
            **self._sizes,
            "n_kernels": self.n_kernels,
            "n_nodes": len(self._nodes),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }


def _units(nodes: Sequence[Node], operators: Sequence[_Operator], *, whole: bool) -> Iterator[_Unit]:
    """The nodes by operator; unless ``whole``, kernel by kernel, with the memory sets before each.

    Many products count their tiles in memory that must be zero, and end at once where it is not.
    """
    groups: dict[int, list[Node]] = {}
    i_operator = 0
    for i, node in enumerate(nodes):
        while i_operator < len(operators) and operators[i_operator].n_nodes <= i:
            i_operator += 1
        if node.repeatable:
            groups.setdefault(i_operator, []).append(node)
    for i, group in groups.items():
        operator = operators[i] if i < len(operators) else _Operator("?", 0, None)
        rest = [node for node in group if node.type != MEMSET]
        if whole or not rest:
            yield _Unit(operator, tuple(group))
            continue
        n_products = sum(category_of(node.name) in _PRODUCTS for node in rest)
        for node in rest:
            before = tuple(n for n in group[: group.index(node)] if n.type == MEMSET)
            shared = replace(operator, flops=None) if n_products > 1 else operator
            yield _Unit(shared, (*before, node))


def _kind(unit: _Unit) -> KernelKind:
    products = [node for node in unit.nodes if category_of(node.name) in _PRODUCTS]
    main = (products or [node for node in unit.nodes if node.type == KERNEL] or list(unit.nodes))[-1]
    is_kernel = main.type == KERNEL
    op_class: OpClass = "kernel" if is_kernel else "memcpy" if main.type == MEMCPY else "memset"
    return KernelKind(
        name=main.name,
        op_class=op_class,
        grid=main.grid if is_kernel else None,
        block=main.block if is_kernel else None,
        category=category_of(main.name) if is_kernel else "copy",
        flops=unit.operator.flops if products else None,
    )
