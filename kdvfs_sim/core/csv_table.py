"""CSV files as tables that know their lines: an error can name the line that an editor shows."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, cast

import polars as pl

from kdvfs_sim.core.errors import InputError

UNENDED = (
    "the last line does not end in a line break: if the file was cut there, its last number is not whole"
)
# what reading compressed text raises where it is cut off or damaged
GZIP_ERRORS: Final = (EOFError, zlib.error, gzip.BadGzipFile)
_GZIP: Final = b"\x1f\x8b"


def open_bytes(path: Path) -> IO[bytes]:
    """The file, decompressed if its first bytes say gzip, whatever its name."""
    with path.open("rb") as file:
        is_gzip = file.read(2) == _GZIP
    return cast(IO[bytes], gzip.open(path)) if is_gzip else path.open("rb")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lines:
    """``of_row``: the line on which each row of a table begins, from 1; None where rows have no lines.

    ``ended``: the last line ends in a line break.
    """

    of_row: tuple[int, ...] | None = None
    ended: bool = True

    def at(self, row: int) -> str:
        """Where a row is, in words. Rows without lines count from 0."""
        return f"row {row}" if self.of_row is None else f"line {self.of_row[row]}"


def read_csv_table(path: Path) -> tuple[pl.DataFrame, Lines]:
    """The table below the header, and its lines. Lines that begin with # and empty ones are passed over.

    Raises InputError, one line: for a file that cannot be read, a header that names a column twice, and a row
    with more or fewer cells than the header.
    """
    try:
        with io.TextIOWrapper(open_bytes(path), encoding="utf-8-sig") as file:
            text = file.read()
    except GZIP_ERRORS as error:
        raise InputError(f"{path}: is cut off or damaged ({error})") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not text in UTF-8 (byte {error.start})") from None
    numbers: list[int] = []  # of the lines taken
    taken: list[str] = []

    def lines() -> Iterator[str]:
        for number, line in enumerate(io.StringIO(text), 1):
            if line.strip() and not line.startswith("#"):
                numbers.append(number)
                taken.append(line)
                yield line

    reader = csv.reader(lines(), strict=True)
    of_row: list[int] = []
    n_cells = 0
    first = 0  # line of those taken on which the row begins
    try:
        for cells in reader:
            number = numbers[first]
            first = len(numbers)
            if not of_row:
                n_cells = len(cells)
                twice = next((name for name in cells if cells.count(name) > 1), None)
                if twice is not None:
                    raise InputError(f"{path}: line {number} names the column {twice!r} twice")
            if len(cells) != n_cells:
                raise InputError(
                    f"{path}: line {number} has {len(cells)} cells; the header names {n_cells} "
                    "(cut short? a comma in a name?)"
                )
            of_row.append(number)
    except csv.Error as error:
        raise InputError(f"{path}: line {numbers[-1] if numbers else 1} is not CSV text ({error})") from None
    if not of_row:
        raise InputError(f"{path}: is empty")
    try:
        table = pl.read_csv("".join(taken).encode(), infer_schema_length=None)
    except pl.exceptions.PolarsError as error:
        first_line = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"{path}: cannot be read as csv ({first_line})") from None
    known = tuple(of_row[1:]) if len(of_row) == table.height + 1 else None
    return table, Lines(of_row=known, ended=text.endswith("\n"))
