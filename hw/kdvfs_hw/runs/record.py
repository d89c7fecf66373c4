"""The record of a run: one JSON object a line, written as it happens, and a page for people at the end."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from kdvfs_hw.measure.counter import Edge
from kdvfs_hw.measure.loop import Reading
from kdvfs_hw.workloads.base import Part
from kdvfs_sim.core.device import Device
from kdvfs_sim.core.errors import InputError
from kdvfs_sim.core.files import atomic_write
from kdvfs_sim.core.version import __version__

FORMAT: Final = "kdvfs-measurement"
SCHEMA_VERSION: Final = 1
LINES, PAGE, KERNELS, COSTS = "record.jsonl", "record.md", "kernels.csv", "costs.csv"
SCOPE: Final = "scope_{}.csv"
_BESIDE: Final = (PAGE, KERNELS, COSTS, SCOPE.format("*"))


class Record:
    """Appends lines to ``record.jsonl`` in a folder, each on disk before the next reading begins.

    A line is one write: whoever ends this process leaves whole lines, and at most one cut short, which
    ``read_record`` passes over. Without a folder the lines are only kept. Without a line there is no file.
    Raises InputError for a folder that already holds a record or another file that a run writes, that another
    run writes to, or that cannot be written.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.lines: list[dict[str, Any]] = []
        self._descriptor = -1
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                self._descriptor = os.open(
                    folder / LINES, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666
                )
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                has_lines = os.fstat(self._descriptor).st_size > 0
            except BlockingIOError:
                os.close(self._descriptor)
                raise InputError(
                    f"{folder}: another run is writing its record there; name another folder"
                ) from None
            except OSError as error:
                raise InputError(f"{folder}: cannot be used for a record ({error.strerror})") from None
            there = [LINES] if has_lines else [path.name for name in _BESIDE for path in folder.glob(name)]
            if there:
                os.close(self._descriptor)
                if not has_lines:
                    os.unlink(folder / LINES)
                raise InputError(
                    f"{folder}: already holds {there[0]}; a record is never overwritten, name another folder"
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self, device: Device, what: str, **about: Any) -> None:
        """The first line: what, when, on which GPU, with which software."""
        self.add(
            "record",
            format=FORMAT,
            schema_version=SCHEMA_VERSION,
            kdvfs_version=__version__,
            run=what,
            date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            gpu=device.name,
            uuid=device.uuid,
            software={k: v.split(" at ")[0] for k, v in device.software().items()},
            **about,
        )

    def add(self, kind: str, /, **fields: Any) -> None:
        """One line, ``kind`` first. Numbers that are not finite become null.

        Raises InputError if it cannot be written whole.
        """
        line = {"kind": kind, **_finite(fields)}
        self.lines.append(line)
        if self._descriptor < 0:
            return
        assert self.folder is not None
        data = json.dumps(line, separators=(",", ":"), default=str).encode() + b"\n"
        try:
            n_written = os.write(self._descriptor, data)
            os.fsync(self._descriptor)
        except OSError as error:
            raise InputError(f"{self.folder / LINES}: cannot be written ({error.strerror})") from None
        if n_written != len(data):
            raise InputError(
                f"{self.folder / LINES}: {n_written} of {len(data)} bytes were written; is the disk full?"
            )

    def counter_updates(self, updates: Sequence[Edge]) -> None:
        """The energy counter's updates as they were seen, so that what was made of them can be made again."""
        self.add(
            "counter_updates",
            early_ns=[edge.early_ns for edge in updates],
            late_ns=[edge.late_ns for edge in updates],
            energy_mj=[edge.energy_mj for edge in updates],
        )

    def page(self, lines: Iterable[str]) -> None:
        """The Markdown page beside the lines."""
        if self.folder is not None:
            with atomic_write(self.folder / PAGE) as file:
                file.write(("\n".join(lines) + "\n").encode())

    def table(self, name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """A CSV beside the lines."""
        if self.folder is not None:
            text = io.StringIO(newline="")
            writer = csv.writer(text)
            writer.writerow(columns)
            writer.writerows(["" if v is None else v for v in row] for row in rows)
            with atomic_write(self.folder / name) as file:
                file.write(text.getvalue().encode())

    def close(self) -> None:
        if self._descriptor >= 0:
            assert self.folder is not None
            if not self.lines:  # nothing was begun: the folder can be named again
                with suppress(OSError):
                    os.unlink(self.folder / LINES)
            os.close(self._descriptor)
            self._descriptor = -1


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def read_record(path: Path) -> list[dict[str, Any]]:
    """The lines of a record, given its folder or its file. Raises InputError naming place and problem."""
    path = path / LINES if path.is_dir() else path
    lines = []
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None
    for number, line in enumerate(text.splitlines(), 1):
        try:
            lines.append(json.loads(line))
        except ValueError:
            if number == len(text.splitlines()):
                break  # cut short while it was written
            raise InputError(f"{path}: line {number} is not JSON") from None
    head = lines[0] if lines else {}
    if head.get("format") != FORMAT or head.get("schema_version") != SCHEMA_VERSION:
        raise InputError(f"{path}: is not a record of version {SCHEMA_VERSION}; kdvfs hw observe writes one")
    return lines


def part_json(part: Part) -> dict[str, Any]:
    """A kernel as a line of the record."""
    kind = part.kind
    return {
        "part": part.name,
        "n_per_step": part.n_per_step,
        "kernel": kind.name,
        "op_class": kind.op_class,
        "category": kind.category,
        "grid": kind.grid,
        "block": kind.block,
        "flops": kind.flops,
        "bytes": kind.bytes,
    }


def kernel_rows(parts: Sequence[Part], readings: Mapping[str, Sequence[Reading]]) -> Iterable[Sequence[Any]]:
    """Rows of ``kernels.csv``, for ``kdvfs_sim.gpu.operators.read_operators``. A void reading is left out."""
    for part in parts:
        good = [reading for reading in readings.get(part.name, ()) if not reading.void]
        if not good:
            continue
        time_s = _mean([reading.time_s for reading in good])
        yield (
            part.name,
            part.kind.category,
            time_s,
            _mean([reading.seen.sm_mhz for reading in good]),
            _mean([reading.power_w for reading in good]),
            part.kind.name.replace("[", "[[]"),
            part.kind.flops,
            int((_mean([reading.seen.capped for reading in good]) or 0.0) > 0.5),
            part.n_per_step,
        )


KERNEL_COLUMNS: Final = (
    "operator",
    "category",
    "time_s",
    "sm_mhz",
    "power_w",
    "kernel",
    "flops",
    "capped",
    "n_per_step",
)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
