"""A simple CSV of GPU operations, for recordings that no reader knows.

Columns, in any order, the first three required: ``name, start_ns, duration_ns, stream, device, op_class,
grid, block, pass, category, flops, bytes``. Times are whole nanoseconds on one clock, whose zero is free. An
empty cell, like a missing column, means the default: stream 0, device 0, op_class ``kernel``, the category
that the name suggests, and not known for the rest. ``grid`` and ``block`` are written ``16x8x1``.
The file may be compressed by gzip.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

from kdvfs_sim.core.csv_table import GZIP_ERRORS, open_bytes
from kdvfs_sim.core.errors import TraceFormatError
from kdvfs_sim.core.kinds import CATEGORIES, KernelKind, OpClass
from kdvfs_sim.core.units import plain
from kdvfs_sim.trace.assemble import assemble
from kdvfs_sim.trace.categories import category_of
from kdvfs_sim.trace.table import PASSES, Trace

REQUIRED: Final = ("name", "start_ns", "duration_ns")
_UNENDED: Final = "the last line taken as whole, without the line break that a file not cut would end in"
_SIZES: Final = re.compile(r"(\d{1,10})x(\d{1,10})x(\d{1,10})", re.ASCII)


class CsvReader:
    """Reads the simple CSV above. A TraceReader."""

    format_name = "csv"

    def can_read(self, path: Path, /) -> bool:
        try:
            with open_bytes(path) as file:
                header = file.readline(4096).decode("utf-8-sig", "replace")
        except GZIP_ERRORS:
            return False
        columns = [cell.strip(' "') for cell in header.rstrip("\r\n").split(",")]
        return all(column in columns for column in REQUIRED)

    def read(self, path: Path, /) -> Trace:
        kinds: dict[KernelKind, int] = {}
        ops: dict[str, list[Any]] = {
            name: [] for name in ("kind", "device", "stream", "start_ns", "duration_ns", "pass")
        }
        lines = _Lines()
        for row in _rows(path, lines):
            start_ns, duration_ns = row.get("start_ns"), row.get("duration_ns")
            ops["kind"].append(kinds.setdefault(_kind(row), len(kinds)))
            ops["start_ns"].append(start_ns)
            ops["duration_ns"].append(duration_ns)
            for column, default in (("device", 0), ("stream", 0), ("pass", -1)):
                ops[column].append(row.get(column, default))
        repairs = {} if lines.last.endswith(("\n", "\r")) else {_UNENDED: 1}
        lanes = set(zip(ops["device"], ops["stream"], strict=True))
        return assemble(
            source=str(path),
            format=self.format_name,
            kinds=tuple(kinds),
            ops=ops,
            repairs=repairs,
            cross_stream_unknown=len(lanes) > len(set(ops["device"])),
        )


@dataclass(slots=True)
class _Lines:
    """Passes lines on and keeps the last one."""

    last: str = ""

    def of(self, file: Iterable[str]) -> Iterator[str]:
        for self.last in file:
            yield self.last


def _kind(row: Mapping[str, Any]) -> KernelKind:
    op_class: OpClass = row.get("op_class", "kernel")
    category = row.get("category") or (category_of(row["name"]) if op_class == "kernel" else "copy")
    return KernelKind(
        name=row["name"],
        op_class=op_class,
        grid=row.get("grid"),
        block=row.get("block"),
        category=category,
        flops=row.get("flops"),
        bytes=row.get("bytes"),
    )


def _rows(path: Path, lines: _Lines) -> Iterator[dict[str, Any]]:
    """Rows as checked values; empty cells are left out. Raises TraceFormatError naming line and column."""
    with io.TextIOWrapper(open_bytes(path), encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(lines.of(file), strict=True)
        try:
            header = [cell.strip() for cell in next(reader, [])]
            unknown = [column for column in header if column not in _CELLS]
            if unknown or len(set(header)) < len(header):
                named = unknown or [column for i, column in enumerate(header) if column in header[:i]]
                problem = f"column {named[0][:60]!r} is {'unknown' if unknown else 'named twice'}"
                raise TraceFormatError(str(path), f"{problem}; columns: {', '.join(_CELLS)}")
            for cells in reader:
                if not cells:
                    continue
                where = f"{path}: line {reader.line_num}"
                if len(cells) != len(header):
                    raise TraceFormatError(where, f"has {len(cells)} cells; the header names {len(header)}")
                yield _checked(where, dict(zip(header, map(str.strip, cells), strict=True)))
        except UnicodeDecodeError as error:
            where = f"{path}: line {_line_not_in_utf8(path)}"
            raise TraceFormatError(where, f"is not text in UTF-8 ({error.reason})") from None
        except csv.Error as error:
            raise TraceFormatError(f"{path}: line {reader.line_num}", f"is not CSV text ({error})") from None
        except GZIP_ERRORS as error:
            where = f"{path}: line {reader.line_num}"
            raise TraceFormatError(
                where, f"the compressed data is cut off or damaged there ({error})"
            ) from None


def _line_not_in_utf8(path: Path) -> int:
    """Text is decoded a block at a time: which line it was that could not be has to be looked for."""
    with open_bytes(path) as file:
        return next((number for number, line in enumerate(file, 1) if not _is_utf8(line)), 0)


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _checked(where: str, row: Mapping[str, str]) -> dict[str, Any]:
    values = {}
    for column, text in row.items():
        if not text and column not in REQUIRED:
            continue
        read, expected = _CELLS[column]
        try:
            values[column] = read(text)
        except (ValueError, KeyError):
            raise TraceFormatError(where, f"column {column!r}: {text[:60]!r} is not {expected}") from None
    return values


def _name(text: str) -> str:
    if not text:
        raise ValueError(text)
    return text


def _whole(least: int, bits: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = int(plain(text))
        if not least <= value < 2 ** (bits - 1):
            raise ValueError(text)
        return value

    return read


def _sizes(text: str) -> tuple[int, ...]:
    match = _SIZES.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return tuple(int(size) for size in match.groups())


def _amount(text: str) -> float:
    value = float(plain(text))
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(text)
    return value


def _one_of(choices: tuple[str, ...]) -> tuple[Callable[[str], str], str]:
    return {choice: choice for choice in choices}.__getitem__, f"one of {', '.join(choices)}"


_CELLS: Final[Mapping[str, tuple[Callable[[str], Any], str]]] = {
    "name": (_name, "a name"),
    "start_ns": (_whole(-(2**63), 64), "a whole number of nanoseconds"),
    "duration_ns": (_whole(0, 64), "a whole number of nanoseconds, at least 0"),
    "stream": (_whole(-(2**63), 64), "a whole number"),
    "device": (_whole(-(2**31), 32), "a whole number"),
    "op_class": _one_of(get_args(OpClass)),
    "grid": (_sizes, "three sizes like 16x8x1"),
    "block": (_sizes, "three sizes like 128x1x1"),
    "pass": ({name: index for index, name in enumerate(PASSES)}.__getitem__, f"one of {', '.join(PASSES)}"),
    "category": _one_of(CATEGORIES),
    "flops": (_amount, "a number, at least 0"),
    "bytes": (_amount, "a number, at least 0"),
}
