"""The few functions of the CUDA driver that PyTorch does not give: graph nodes, and kernels from PTX.

Through ``ctypes`` on libcuda, so that no compiler and no further package is needed. Signatures and
structs: cuda.h (13.0). Nothing here allocates more than a sample buffer or changes a setting.
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from kdvfs_sim.core.errors import DeviceError

KERNEL, MEMCPY, MEMSET = 0, 1, 2  # CUgraphNodeType
_NON_BLOCKING: Final = 1
_MULTIPROCESSORS: Final = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
_MEMCPY_BYTES: Final = 256  # no less than sizeof(CUDA_MEMCPY3D)


class KernelParams(c.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2"""

    _fields_ = (
        ("func", c.c_void_p),
        ("grid", c.c_uint * 3),
        ("block", c.c_uint * 3),
        ("shared_bytes", c.c_uint),
        ("params", c.c_void_p),
        ("extra", c.c_void_p),
        ("kern", c.c_void_p),
        ("ctx", c.c_void_p),
    )


class MemsetParams(c.Structure):
    """CUDA_MEMSET_NODE_PARAMS_v1"""

    _fields_ = (
        ("dst", c.c_uint64),
        ("pitch", c.c_size_t),
        ("value", c.c_uint),
        ("element_bytes", c.c_uint),
        ("width", c.c_size_t),
        ("height", c.c_size_t),
    )


@cache
def _library() -> Any:
    try:
        return c.CDLL("libcuda.so.1")
    except OSError:
        raise DeviceError(
            "no CUDA driver library (libcuda.so.1) here: run this where the GPU is, or use an emulated one"
        ) from None


def call(name: str, *args: Any) -> None:
    """Call a driver function. Raises DeviceError with the driver's own words."""
    library = _library()
    function = getattr(library, name, None)
    if function is None:
        raise DeviceError(f"this CUDA driver has no {name}: update the driver")
    code = function(*args)
    if code:
        words = c.c_char_p()
        library.cuGetErrorString(code, c.byref(words))
        raise DeviceError(f"{name}: {(words.value or b'unknown error').decode()} (code {code})")


def attach(uuid: str) -> int:
    """Make the GPU's primary context (PyTorch's too) current in this thread; its multiprocessors.

    Raises DeviceError where CUDA does not show this GPU to the process.
    """
    call("cuInit", 0)
    n_devices = c.c_int()
    call("cuDeviceGetCount", c.byref(n_devices))
    for ordinal in range(n_devices.value):
        device, raw = c.c_int(), (c.c_ubyte * 16)()
        call("cuDeviceGet", c.byref(device), ordinal)
        call("cuDeviceGetUuid_v2", raw, device)
        if bytes(raw).hex() == uuid.removeprefix("GPU-").replace("-", ""):
            context, n_sm = c.c_void_p(), c.c_int()
            call("cuDevicePrimaryCtxRetain", c.byref(context), device)
            call("cuCtxSetCurrent", context)
            call("cuDeviceGetAttribute", c.byref(n_sm), _MULTIPROCESSORS, device)
            return n_sm.value
    raise DeviceError(f"{uuid}: CUDA does not show this GPU to the process; see CUDA_VISIBLE_DEVICES")


class Module:
    """Kernels from PTX text, compiled by the driver itself."""

    def __init__(self, ptx: str) -> None:
        self._module = c.c_void_p()
        call("cuModuleLoadData", c.byref(self._module), ptx.encode() + b"\0")

    def function(self, name: str) -> c.c_void_p:
        found = c.c_void_p()
        call("cuModuleGetFunction", c.byref(found), self._module, name.encode())
        return found

    def close(self) -> None:
        call("cuModuleUnload", self._module)


class Stream:
    """A stream that waits for no other."""

    def __init__(self) -> None:
        self._stream = c.c_void_p()
        call("cuStreamCreate", c.byref(self._stream), _NON_BLOCKING)

    def launch(self, function: c.c_void_p, grid: int, block: int, *args: Any) -> None:
        """``args`` are ctypes values, one for each kernel parameter."""
        pointers = (c.c_void_p * len(args))(*(c.cast(c.byref(arg), c.c_void_p) for arg in args))
        call("cuLaunchKernel", function, grid, 1, 1, block, 1, 1, 0, self._stream, pointers, None)

    def wait(self) -> None:
        call("cuStreamSynchronize", self._stream)

    def close(self) -> None:
        call("cuStreamDestroy_v2", self._stream)


class Buffer:
    """Plain device memory, as 64-bit words."""

    def __init__(self, n_words: int) -> None:
        self.n_words = n_words
        self.address = c.c_uint64()
        call("cuMemAlloc_v2", c.byref(self.address), c.c_size_t(8 * n_words))

    def read(self) -> Sequence[int]:
        words = (c.c_uint64 * self.n_words)()
        call("cuMemcpyDtoH_v2", words, self.address, c.c_size_t(8 * self.n_words))
        return list(words)

    def close(self) -> None:
        call("cuMemFree_v2", self.address)


class Node:
    """One node of a graph that somebody else recorded and keeps alive."""

    def __init__(self, handle: int) -> None:
        self.handle = c.c_void_p(handle)
        kind = c.c_int()
        call("cuGraphNodeGetType", self.handle, c.byref(kind))
        self.type = kind.value
        self.name, self.grid, self.block = "", (0, 0, 0), (0, 0, 0)
        if self.type == KERNEL:
            self._params: Any = KernelParams()
            call("cuGraphKernelNodeGetParams_v2", self.handle, c.byref(self._params))
            self.grid = tuple(self._params.grid)
            self.block = tuple(self._params.block)
            self.name = _function_name(self._params)
        elif self.type == MEMSET:
            self._params = MemsetParams()
            call("cuGraphMemsetNodeGetParams", self.handle, c.byref(self._params))
            self.name = "memset"
        elif self.type == MEMCPY:
            self._params = (c.c_ubyte * _MEMCPY_BYTES)()
            call("cuGraphMemcpyNodeGetParams", self.handle, self._params)
            self.name = "memcpy"

    @property
    def repeatable(self) -> bool:
        return self.type in (KERNEL, MEMCPY, MEMSET)

    def add_to(self, graph: c.c_void_p, after: c.c_void_p | None) -> c.c_void_p:
        """Copy this node into ``graph``, to run after a node of it."""
        node, context = c.c_void_p(), c.c_void_p()
        before = None if after is None else c.byref(after)
        place = (c.byref(node), graph, before, c.c_size_t(after is not None), c.byref(self._params))
        if self.type == KERNEL:
            call("cuGraphAddKernelNode_v2", *place)
            call("cuGraphKernelNodeCopyAttributes", node, self.handle)
            return node
        call("cuCtxGetCurrent", c.byref(context))
        call("cuGraphAddMemsetNode" if self.type == MEMSET else "cuGraphAddMemcpyNode", *place, context)
        return node


def _function_name(params: KernelParams) -> str:
    name = c.c_char_p()
    if params.func:
        call("cuFuncGetName", c.byref(name), c.c_void_p(params.func))
    else:
        call("cuKernelGetName", c.byref(name), c.c_void_p(params.kern))
    return _demangled(name.value or b"")


def _demangled(name: bytes) -> str:
    """The name as people and profilers write it, where the C++ runtime is there to say."""
    try:
        runtime = c.CDLL("libstdc++.so.6")
        demangle, free = runtime.__cxa_demangle, c.CDLL(None).free
    except (OSError, AttributeError):
        return name.decode(errors="replace")
    demangle.restype, free.argtypes = c.c_void_p, [c.c_void_p]
    address = demangle(name, None, None, None)
    if not address:
        return name.decode(errors="replace")
    text = c.string_at(address).decode(errors="replace")
    free(address)
    return text


def graph_nodes(graph: int) -> tuple[Node, ...]:
    """The nodes of a graph in the order in which they were recorded."""
    n_nodes = c.c_size_t()
    call("cuGraphGetNodes", c.c_void_p(graph), None, c.byref(n_nodes))
    handles = (c.c_void_p * n_nodes.value)()
    call("cuGraphGetNodes", c.c_void_p(graph), handles, c.byref(n_nodes))
    return tuple(Node(handle or 0) for handle in handles)


class Chain:
    """A graph of ``n`` copies of some nodes, one after another; to be launched on any stream."""

    def __init__(self, nodes: Sequence[Node], n: int) -> None:
        self.n = n
        self._graph, self._exec = c.c_void_p(), c.c_void_p()
        call("cuGraphCreate", c.byref(self._graph), 0)
        last: c.c_void_p | None = None
        for _ in range(n):
            for node in nodes:
                last = node.add_to(self._graph, last)
        call("cuGraphInstantiateWithFlags", c.byref(self._exec), self._graph, c.c_uint64(0))

    def launch(self, stream: int) -> None:
        call("cuGraphLaunch", self._exec, c.c_void_p(stream))

    def close(self) -> None:
        call("cuGraphExecDestroy", self._exec)
        call("cuGraphDestroy", self._graph)
