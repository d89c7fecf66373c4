"""Parquet files that say when they are damaged.

A decoder believes what a file says of itself: one changed byte can make it ask for exabytes, and polars then
ends the process instead of raising. So a file that we write carries a seal, a digest over all its bytes, and
a broken seal is refused before anything is decoded. Files of others have none: they are decoded in a process
of their own first.
"""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Final

import polars as pl

from kdvfs_sim.core.errors import InputError

_MARK: Final = b"kdvfs-blake2b:"
_N_DIGITS: Final = 32
_BLANK: Final = b"0" * _N_DIGITS
_DECODE: Final = "import sys, polars as pl; pl.read_parquet(sys.argv[1])"
# PanicException is polars' own way of saying that it did not expect this
_UNREADABLE: Final = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError)


def write_sealed(table: pl.DataFrame, file: BinaryIO, metadata: Mapping[str, str]) -> None:
    """Write a table with its metadata and a seal; any Parquet tool reads it."""
    buffer = io.BytesIO()
    table.write_parquet(buffer, metadata={**metadata, "seal": (_MARK + _BLANK).decode()})
    content = buffer.getvalue()
    at = content.rindex(_MARK) + len(_MARK)
    file.write(content[:at] + _digest(content) + content[at + _N_DIGITS :])


def read_sealed(path: Path) -> tuple[dict[str, str], bytes] | None:
    """Metadata and content of a file written by ``write_sealed``; None for any other file.

    The content can be given to polars. Raises InputError, one line, if it was cut or changed since, or cannot
    be read.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    at = content.rfind(_MARK) + len(_MARK)
    if at < len(_MARK):
        return None
    seal = content[at : at + _N_DIGITS]
    if seal != _digest(content[:at] + _BLANK + content[at + _N_DIGITS :]):
        raise InputError(f"{path}: damaged: its bytes are not those that were written")
    return pl.read_parquet_metadata(io.BytesIO(content)), content


def read_foreign(path: Path) -> pl.DataFrame:
    """The table of any Parquet file. Raises InputError, one line, if there is none to be had."""
    try:
        sealed = read_sealed(path)
        if sealed is not None:
            return pl.read_parquet(io.BytesIO(sealed[1]))
        trial = subprocess.run([sys.executable, "-c", _DECODE, path], capture_output=True, check=False)
        if trial.returncode < 0:
            raise InputError(f"{path}: damaged: decoding it ends the process (signal {-trial.returncode})")
        return pl.read_parquet(path)
    except InputError:
        raise
    except _UNREADABLE as error:
        text = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise InputError(f"{path}: cannot be read as parquet ({text.splitlines()[0][:200]})") from None


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_N_DIGITS // 2).hexdigest().encode()
