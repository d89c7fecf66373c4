"""The plug-ins that come with the library, each as its laws want it: what the kit is held to, and the soak
runs."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from kdvfs_sim.core.clocks import Clocks, ClockTable
from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.core.problem import Metrics
from kdvfs_sim.core.protocols import SwitchingModel
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.core.switching import SwitchCost
from kdvfs_sim.gpu.catalogue import gpu_names, load_gpu
from kdvfs_sim.gpu.model import analytic_model
from kdvfs_sim.gpu.switching import switching_model
from kdvfs_sim.optimize.search import LocalSearch, SearchOptimizer
from kdvfs_sim.optimize.solve import ExactOptimizer
from kdvfs_sim.replay.fast import FastEvaluator
from kdvfs_sim.replay.simulate import replay
from kdvfs_sim.testing.fake_device import FakeDevice
from kdvfs_sim.testing.law import Kind
from kdvfs_sim.trace.csv import CsvReader
from kdvfs_sim.trace.kineto import KinetoReader
from kdvfs_sim.trace.parquet import ParquetReader, write_parquet
from kdvfs_sim.trace.table import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A plug-in under a name, and the laws that it is known to break, with the reason."""

    name: str
    kind: Kind
    make: Callable[[], Any]
    known: Mapping[str, str] = field(default_factory=dict)


class _Parquet(ParquetReader):
    def write(self, trace: Trace, path: Path) -> None:
        write_parquet(trace, path)


class _Csv(CsvReader):
    def write(self, trace: Trace, path: Path) -> None:
        columns = ("start_ns", "duration_ns", "device", "stream")
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("name", *columns))
            for kind, *rest in trace.ops.select("kind", *columns).rows():
                writer.writerow((trace.kinds[kind].name, *rest))


class _Kineto(KinetoReader):
    def write(self, trace: Trace, path: Path) -> None:
        import json

        events = [
            {
                "ph": "X",
                "cat": "kernel",
                "name": trace.kinds[kind].name,
                "pid": device,
                "tid": stream,
                "ts": start / 1000 + 1.0,  # the profiler writes 0 where it could not time an operation
                "dur": duration / 1000,
                "args": {"device": device, "stream": stream},
            }
            for kind, device, stream, start, duration in trace.ops.select(
                "kind", "device", "stream", "start_ns", "duration_ns"
            ).rows()
        ]
        path.write_text(json.dumps({"traceEvents": events}))


class _Replay:
    """The SimPy replay as an Evaluator."""

    def __init__(self, program: Any, **arguments: Any) -> None:
        self._replay = partial(replay, program, **arguments)

    def evaluate(self, schedule: Schedule) -> Metrics:
        return self._replay(schedule=schedule).metrics


KINDS: Final = (
    KernelKind(name="gemm", category="gemm", flops=2e9, bytes=3e6, grid=(64, 2, 1), block=(128, 1, 1)),
    KernelKind(name="softmax", category="reduction", bytes=1e7),
    KernelKind(name="copy", category="copy"),
    KernelKind(name="Memcpy HtoD", op_class="memcpy", category="copy"),
    KernelKind(name="add", category="elementwise", bytes=1e6),
)


def _model(gpu: str) -> Any:
    return analytic_model(load_gpu(gpu), KINDS, [400_000, 90_000, 50_000, 10_000, 3_000])


@dataclass(frozen=True)
class _Listed:
    """A switching model that says for which clocks it is."""

    model: SwitchingModel
    clock_table: ClockTable

    def switch(self, old: Clocks, new: Clocks, /) -> SwitchCost:
        return self.model.switch(old, new)


def _switching(gpu: str) -> _Listed:
    facts = load_gpu(gpu)
    return _Listed(switching_model(facts), facts.clock_table())


def subjects() -> Iterator[Subject]:
    """Everything of this library that has a Protocol, the emulated GPU aside: that is ``kdvfs_hw``'s."""
    yield Subject(name="exact", kind="optimizer", make=ExactOptimizer)
    yield Subject(name="local-search", kind="optimizer", make=partial(SearchOptimizer, n_evaluations=30))
    yield Subject(name="LocalSearch", kind="search", make=lambda: LocalSearch)
    for gpu in sorted(gpu_names()):
        facts = load_gpu(gpu)
        yield Subject(name=f"latency {gpu}", kind="latency", make=partial(_model, gpu))
        if facts.get("power.idle_w") is not None:
            yield Subject(name=f"power {gpu}", kind="power", make=partial(_model, gpu))
        yield Subject(name=f"switching {gpu}", kind="switching", make=partial(_switching, gpu))
    yield Subject(name="FastEvaluator", kind="evaluator", make=lambda: FastEvaluator)
    yield Subject(name="replay", kind="evaluator", make=lambda: _Replay)
    yield Subject(name="parquet", kind="reader", make=_Parquet)
    yield Subject(
        name="csv",
        kind="reader",
        make=_Csv,
        known={
            "a_cut_file_is_refused": "CSV has no end mark: a file cut at the end of a cell is a shorter CSV"
        },
    )
    yield Subject(name="kineto", kind="reader", make=_Kineto)
    yield Subject(name="FakeDevice", kind="device", make=FakeDevice)
