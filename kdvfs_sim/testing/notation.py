"""Nouns written down shortly, and any case as such code: what a counterexample is printed in.

    problem(trace((0, 0, 1000), (1, 1007, 300)), costs(["auto", "sm=600,mem=auto"], ...), protocol="drain",
    ...)

is two launches, of kinds 0 and 1, and the prices of two clock pairs. ``as_code`` writes, ``eval`` reads.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import PurePath
from typing import Any, Final

import numpy as np
import polars as pl

from kdvfs_sim.core.clocks import AUTO_CLOCKS, Auto, Clocks
from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.core.problem import Objective, Problem
from kdvfs_sim.core.switching import FREE, PROTOCOLS, Boundary, SwitchProtocol, SwitchTable
from kdvfs_sim.testing.judge import Judge
from kdvfs_sim.trace.table import HOST_SCHEMA, OPS_SCHEMA, WAITS_SCHEMA, Trace

Table = Sequence[Sequence[float]]
_WIDTH: Final = 100


# -- short ways to write the nouns -----------------------------------------------------------------


def trace(
    *ops: tuple[int | None, ...],
    host: Iterable[tuple[Any, ...]] = (),
    waits: Iterable[tuple[int, int]] = (),
    passes: Sequence[int] | None = None,
    n_kinds: int | None = None,
) -> Trace:
    """A trace of kinds ``k0``, ``k1``, ...

    ``ops``: (kind, start_ns, duration_ns), with stream, device and the row of the host action that launched
    it where they are not 0, 0 and None. ``host``: (thread, start_ns, duration_ns, "launch" or "sync"), with
    the operation awaited where the recording says. ``waits``: (operation, the operation it waits for).
    """
    kind, start, duration, stream, device, launched = zip(
        *((*op, *(0, 0, None)[len(op) - 3 :]) for op in ops), strict=True
    )
    n = 1 + max(int(k or 0) for k in kind) if n_kinds is None else n_kinds
    columns = {
        "kind": kind,
        "device": device,
        "stream": stream,
        "start_ns": start,
        "duration_ns": duration,
        "host": launched,
        "pass": [-1] * len(ops) if passes is None else passes,
        "iteration": [-1] * len(ops),
    }
    actions = [(t, s, d, what, what, rest[0] if rest else None) for t, s, d, what, *rest in host]
    return Trace(
        ops=pl.DataFrame(columns, schema=dict(OPS_SCHEMA)),
        kinds=tuple(KernelKind(name=f"k{i}") for i in range(n)),
        host=pl.DataFrame(actions, schema=dict(HOST_SCHEMA), orient="row"),
        waits=pl.DataFrame(list(waits), schema=dict(WAITS_SCHEMA), orient="row"),
    )


def costs(
    clocks: Sequence[str],
    *,
    time: Table,
    power_w: Table,
    idle_w: Sequence[float],
    effective: Sequence[Sequence[int]] | None = None,
    recorded: int = 0,
    requestable: Sequence[bool] | None = None,
    cap_w: float | None = None,
    recorded_effective: Sequence[int] | None = None,
    kinds: Sequence[str] | None = None,
) -> CostTable:
    """A cost table: ``time`` (only ratios matter) and ``power_w`` have a row for each kind, a column for each
    of ``clocks``; every kind runs at what is asked for and every clock may be requested unless said
    otherwise."""
    n_kinds, n = len(time), len(clocks)
    rows = np.tile(np.arange(n), (n_kinds, 1)) if effective is None else np.array(effective)
    return CostTable(
        kinds=tuple(f"k{i}" for i in range(n_kinds)) if kinds is None else tuple(kinds),
        clocks=tuple(Clocks.parse(text) for text in clocks),
        duration_ns=np.array(time, dtype=np.float64).reshape(n_kinds, n),
        power_w=np.array(power_w, dtype=np.float64).reshape(n_kinds, n),
        effective=rows.astype(np.int32).reshape(n_kinds, n),
        idle_power_w=np.array(idle_w, dtype=np.float64),
        recorded=recorded,
        requestable=np.ones(n, dtype=np.bool_)
        if requestable is None
        else np.array(requestable, dtype=np.bool_),
        cap_w=cap_w,
        recorded_effective=None
        if recorded_effective is None
        else np.array(recorded_effective, dtype=np.int32),
    )


def switching(
    *,
    call_ns: Table,
    lands_ns: Table,
    stall_ns: Table | None = None,
    extra_j: Table | None = None,
) -> SwitchTable:
    """Switch costs, rows old, columns new; no stall and no extra energy unless given."""
    n = len(call_ns)
    return SwitchTable(
        host_call_ns=np.array(call_ns, dtype=np.int64).reshape(n, n),
        switching_ns=np.array(lands_ns, dtype=np.int64).reshape(n, n),
        stall_ns=np.array(stall_ns or np.zeros((n, n)), dtype=np.int64).reshape(n, n),
        extra_energy_j=np.array(extra_j or np.zeros((n, n)), dtype=np.float64).reshape(n, n),
    )


def problem(
    recording: Trace,
    table: CostTable,
    switches: SwitchTable | None = None,
    *,
    protocol: SwitchProtocol | str = FREE,
    boundary: Boundary = "periodic",
    start: int | None = None,
    stream: tuple[int, int] | None = None,
    minimize: Any = "energy",
    max_time_s: float | None = None,
    max_energy_j: float | None = None,
    granularity: Any = "launch",
) -> Problem:
    """The problem of one stream of a trace; its judge is the replay (the fast evaluator where that applies).

    ``start``: row of the clocks in force at the beginning, one-shot only; AUTO unless given.
    """
    rules = PROTOCOLS[protocol] if isinstance(protocol, str) else protocol
    changes = SwitchTable.zero(table.n_clocks) if switches is None else switches
    first = table.auto if start is None else start
    judge = Judge(recording, table, changes, rules, boundary, table.clocks[first])
    return Problem(
        chain=judge.program.chain(table, stream=stream, start=table.clocks[first]),
        costs=table,
        switching=changes,
        protocol=rules,
        boundary=boundary,
        objective=Objective(minimize=minimize, max_time_s=max_time_s, max_energy_j=max_energy_j),
        evaluate=judge,
        granularity=granularity,
        start=first if boundary == "one-shot" else None,
    )


# -- any value as code -------------------------------------------------------------------------------


def as_code(value: Any) -> tuple[str, list[str], str]:
    """A name for the value, the imports, and an expression that makes it again."""
    writer = _Writer()
    text = writer.write(value)
    name = type(value).__name__.lower() if dataclasses.is_dataclass(value) else "case"
    name = f"{name}_" if name in writer.names else name
    return name, writer.imports(), text


class _Writer:
    def __init__(self) -> None:
        self.names: set[str] = set()
        self.modules: dict[str, set[str]] = {}

    def imports(self) -> list[str]:
        lines = [
            f"import {name} as {short}"
            for name, short in (("numpy", "np"), ("polars", "pl"))
            if short in self.names
        ]
        return [
            *lines,
            *(f"from {m} import {', '.join(sorted(names))}" for m, names in sorted(self.modules.items())),
        ]

    def use(self, module: str, name: str) -> str:
        self.names.add(name)
        self.modules.setdefault(module, set()).add(name)
        return name

    def write(self, value: Any) -> str:
        for cls, method in _NOTATIONS.items():
            if isinstance(value, cls):
                short = method(self, value)
                if short is not None:
                    return short
        if isinstance(value, Auto):
            return self.use("kdvfs_sim.core.clocks", "AUTO")
        if isinstance(value, Clocks):
            name = self.use("kdvfs_sim.core.clocks", "Clocks")
            return f"{name}({self.write(value.sm_mhz)}, {self.write(value.mem_mhz)})"
        if isinstance(value, np.ndarray):
            self.names.add("np")
            return f"np.array({self.write(value.tolist())}, dtype=np.{value.dtype})"
        if isinstance(value, pl.DataFrame):
            self.names.add("pl")
            schema = ", ".join(f'"{name}": pl.{kind}' for name, kind in value.schema.items())
            return f'pl.DataFrame({self.write(value.rows())}, schema={{{schema}}}, orient="row")'
        if isinstance(value, float) and not math.isfinite(value):
            name = self.use("math", "nan" if math.isnan(value) else "inf")
            return name if value > 0 or math.isnan(value) else f"-{name}"
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self.dataclass(value)
        if isinstance(value, tuple):
            inner = [self.write(item) for item in value]
            return f"({', '.join(inner)}{',' if len(inner) == 1 else ''})"
        if isinstance(value, list):
            return f"[{', '.join(self.write(item) for item in value)}]"
        if isinstance(value, Mapping):
            return f"{{{', '.join(f'{self.write(k)}: {self.write(v)}' for k, v in value.items())}}}"
        if isinstance(value, Enum):
            return f"{self.use(type(value).__module__, type(value).__name__)}.{value.name}"
        if isinstance(value, PurePath):
            return f"{self.use('pathlib', 'Path')}({str(value)!r})"
        return repr(value)

    def dataclass(self, value: Any) -> str:
        parts: dict[str, Any] = {}
        for field in dataclasses.fields(value):
            item = getattr(value, field.name)
            default = field.default
            if field.default_factory is not dataclasses.MISSING:
                default = field.default_factory()
            if field.init and not same(item, default):
                parts[field.name] = item
        return self.call(type(value).__module__, type(value).__name__, (), parts)

    def call(self, module: str, name: str, args: Sequence[Any], options: Mapping[str, Any]) -> str:
        used = self.use(module, name)
        parts = [self.write(arg) for arg in args]
        parts += [f"{key}={self.write(item)}" for key, item in options.items()]
        line = f"{used}({', '.join(parts)})"
        if len(line) <= _WIDTH and "\n" not in line:
            return line
        inner = ",\n".join(parts).replace("\n", "\n    ")
        return f"{used}(\n    {inner},\n)"

    # -- the short notations

    def trace(self, value: Trace) -> str | None:
        again = self.short_trace(value)
        if again is None or not same(trace(*again[0], **again[1]), value):
            return None
        return self.call(__name__, "trace", *again)

    def short_trace(self, value: Trace) -> tuple[list[tuple[Any, ...]], dict[str, Any]] | None:
        if any(kind != KernelKind(name=f"k{i}") for i, kind in enumerate(value.kinds)):
            return None
        columns = ("kind", "start_ns", "duration_ns", "stream", "device", "host")
        ops = [_without_tail(row, (0, 0, None)) for row in value.ops.select(columns).rows()]
        options: dict[str, Any] = {}
        host = value.host.select("thread", "start_ns", "duration_ns", "action", "awaits").rows()
        if host:
            options["host"] = [_without_tail(row, (None,)) for row in host]
        if not value.waits.is_empty():
            options["waits"] = value.waits.rows()
        if (value.ops["pass"] != -1).any():
            options["passes"] = value.ops["pass"].to_list()
        if len(value.kinds) != 1 + max(op[0] for op in ops):
            options["n_kinds"] = len(value.kinds)
        return ops, options

    def costs(self, value: CostTable) -> str | None:
        if value.assumed or value.source:
            return None
        names = tuple(f"k{i}" for i in range(value.n_kinds))
        options: dict[str, Any] = {
            "time": value.duration_ns.tolist(),
            "power_w": value.power_w.tolist(),
            "idle_w": value.idle_power_w.tolist(),
        }
        if (value.effective != np.arange(value.n_clocks)).any():
            options["effective"] = value.effective.tolist()
        if value.recorded:
            options["recorded"] = value.recorded
        if not value.requestable.all():
            options["requestable"] = value.requestable.tolist()
        if value.cap_w is not None:
            options["cap_w"] = value.cap_w
        if value.recorded_effective is not None:
            options["recorded_effective"] = value.recorded_effective.tolist()
        if value.kinds != names:
            options["kinds"] = value.kinds
        clocks = ["auto" if pair == AUTO_CLOCKS else str(pair) for pair in value.clocks]
        return self.call(__name__, "costs", [clocks], options)

    def switching(self, value: SwitchTable) -> str | None:
        if value.assumed:
            return None
        options = {"call_ns": value.host_call_ns.tolist(), "lands_ns": value.switching_ns.tolist()}
        if value.stall_ns.any():
            options["stall_ns"] = value.stall_ns.tolist()
        if value.extra_energy_j.any():
            options["extra_j"] = value.extra_energy_j.tolist()
        return self.call(__name__, "switching", (), options)

    def protocol(self, value: SwitchProtocol) -> str | None:
        plain = PROTOCOLS.get(value.name)
        if (
            plain is None
            or plain.with_timing(trigger_ns=value.trigger_ns, relaunch_ns=value.relaunch_ns) != value
        ):
            return None
        name = self.use("kdvfs_sim.core.switching", value.name.upper())
        times = [
            f"{key}={getattr(value, key)}" for key in ("trigger_ns", "relaunch_ns") if getattr(value, key)
        ]
        return f"{name}.with_timing({', '.join(times)})" if times else name

    def problem(self, value: Problem) -> str | None:
        judge = value.evaluate
        if not isinstance(judge, Judge) or value.aggregation != "global":
            return None
        args: list[Any] = [judge.trace, value.costs]
        if any(
            getattr(value.switching, name).any()
            for name in ("host_call_ns", "switching_ns", "extra_energy_j")
        ):
            args.append(value.switching)
        options: dict[str, Any] = {}
        if value.protocol != FREE:
            options["protocol"] = value.protocol
        if value.boundary != "periodic":
            options["boundary"] = value.boundary
        if value.start is not None and value.start != value.costs.auto:
            options["start"] = value.start
        if len(judge.program.streams) > 1:
            options["stream"] = (value.chain.device, value.chain.stream)
        if value.objective.minimize != "energy":
            options["minimize"] = value.objective.minimize
        for name in ("max_time_s", "max_energy_j"):
            if getattr(value.objective, name) is not None:
                options[name] = getattr(value.objective, name)
        if value.granularity != "launch":
            options["granularity"] = value.granularity
        return self.call(__name__, "problem", args, options)


_NOTATIONS: Final[dict[type, Callable[[_Writer, Any], str | None]]] = {
    Problem: _Writer.problem,
    Trace: _Writer.trace,
    CostTable: _Writer.costs,
    SwitchTable: _Writer.switching,
    SwitchProtocol: _Writer.protocol,
}


def _without_tail(row: tuple[Any, ...], defaults: tuple[Any, ...]) -> tuple[Any, ...]:
    """The row without trailing values that are the defaults."""
    n = len(row)
    while defaults and row[n - 1] == defaults[-1]:
        n, defaults = n - 1, defaults[:-1]
    return row[:n]


def same(a: Any, b: Any) -> bool:
    """Equality that looks into arrays, tables and values without one of their own."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return (
            type(a) is type(b) and a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        )
    if isinstance(a, pl.DataFrame) or isinstance(b, pl.DataFrame):
        return type(a) is type(b) and a.schema == b.schema and a.equals(b)
    if dataclasses.is_dataclass(a) and type(a) is type(b) and not isinstance(a, type):
        fields = [field.name for field in dataclasses.fields(a) if field.init]
        return all(same(getattr(a, name), getattr(b, name)) for name in fields)
    if isinstance(a, tuple | list) and type(a) is type(b):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    return bool(a == b)
