"""Small Kineto recordings, written event by event."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any


def kernel(name: str = "k", ts: Any = 10, dur: Any = 5, **args: Any) -> dict[str, Any]:
    return _event("kernel", name, ts, dur, {"device": 0, "stream": 7, **args}, pid=0, tid=7)


def copy(name: str, ts: Any, dur: Any, **args: Any) -> dict[str, Any]:
    return _event("gpu_memcpy", name, ts, dur, {"device": 0, "stream": 7, **args}, pid=0, tid=7)


def call(name: str, ts: Any, dur: Any, correlation: int, *, thread: int = 1) -> dict[str, Any]:
    return _event("cuda_runtime", name, ts, dur, {"correlation": correlation}, pid=99, tid=thread)


def annotation(name: str, ts: Any, dur: Any, *, thread: int = 1) -> dict[str, Any]:
    return _event("user_annotation", name, ts, dur, {}, pid=99, tid=thread)


def gpu_annotation(name: str, ts: Any, dur: Any, *, stream: int = 7) -> dict[str, Any]:
    return _event("gpu_user_annotation", name, ts, dur, {}, pid=0, tid=stream)


def operator(
    name: str, ts: Any, dur: Any, dims: Any, types: Any, values: Any = None, *, thread: int = 1
) -> dict[str, Any]:
    args = {"Input Dims": dims, "Input type": types}
    if values is not None:
        args["Concrete Inputs"] = values
    return _event("cpu_op", name, ts, dur, args, pid=99, tid=thread)


def sync_record(kind: str, correlation: int, **args: Any) -> dict[str, Any]:
    fields = {"cuda_sync_kind": kind, "correlation": correlation, "device": 0, "stream": -1, **args}
    return _event("cuda_sync", kind, 0, 1, fields, pid=0, tid=-1)


def _event(cat: str, name: str, ts: Any, dur: Any, args: Any, *, pid: int, tid: int) -> dict[str, Any]:
    event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur}
    return {**event, "args": args}


def write(path: Path, events: list[dict[str, Any]], **metadata: Any) -> Path:
    """Plain JSON, or gzip where the name ends in ``.gz``."""
    return write_text(path, json.dumps({**metadata, "traceEvents": events}))


def write_text(path: Path, text: str | bytes) -> Path:
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path
