"""What a file is instead of a recording, for the message that refuses it."""

from __future__ import annotations

import csv
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from kdvfs_sim.trace.chrome import SYNTAX_ERRORS, read_text

_TAR_MAGIC: Final = slice(257, 262)
_MOST_BYTES: Final = 1 << 26  # what is worth reading only to word a message
_MOST_HEADER: Final = 60
_MOST_LINE: Final = 1 << 16
_SEPARATORS: Final = {",": "commas", ";": "';'", "\t": "tabs"}
_BEGINS: Final = (
    (b"SQLite format 3\0", "an SQLite database, such as an Nsight Systems export"),
    (b"PK", "a zip archive; unpack it and name one recording in it"),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed data; decompress it first"),
    (b"BZh", "bzip2-compressed data; decompress it first"),
    (b"\xfd7zXZ", "xz-compressed data; decompress it first"),
    (b"==", "text with an nvprof preamble; export it as a simple CSV"),
)
_JSON_HOLDS: Final = (
    (b'"rocprofiler-sdk-tool"', "rocprofv3 JSON, which is not read yet"),
    (b'"nodes"', "a PyTorch execution trace: it has operators and no times; record with torch.profiler"),
    (b'"ph"', "trace events without the key traceEvents around them"),
)


def looks_like(path: Path) -> str:
    """A phrase that completes "it looks like ...", from the first bytes of the file."""
    try:
        text = next(read_text(path), b"")
    except (EOFError, zlib.error):
        return "gzip data that is cut off or damaged at its beginning"
    for magic, name in _BEGINS:
        if text.startswith(magic):
            return name
    if text[_TAR_MAGIC] == b"ustar":
        return "a tar archive; unpack it and name one recording in it"
    if b"\0" in text[:4096]:
        return "binary data of no known kind"
    stripped = text.removeprefix(b"\xef\xbb\xbf").lstrip()
    if stripped.startswith((b"[", b"{")) and _is_cut_off(path):
        return "JSON that is cut off before any trace event"
    if stripped.startswith(b"["):
        if stripped[1:].lstrip().startswith(b"["):
            return "a JSON list of lists, such as a PyTorch memory timeline: it has no kernels"
        return "a JSON list of something other than trace events"
    if stripped.startswith(b"{"):
        return next(
            (name for key, name in _JSON_HOLDS if key in stripped), "a JSON object without trace events"
        )
    if not stripped:
        return "nothing but white space"
    lines = [line[:_MOST_LINE] for line in stripped.decode(errors="replace").splitlines()[:2]]
    for separator, name in _SEPARATORS.items():
        header, *rows = (next(csv.reader([line], delimiter=separator)) for line in lines)
        # prose and programs have commas too, but not as many in one line as in the next
        if len(header) > 1 and all(len(row) == len(header) for row in rows):
            if separator != ",":
                return f"a CSV with {name} between the cells; write it with commas"
            return f"a CSV with other columns: {_columns(header)}; needed: name, start_ns, duration_ns"
    return "text that is neither JSON nor CSV"


def _columns(header: Sequence[str]) -> str:
    """The first columns of a CSV, none of them cut, as many as a message has room for."""
    names = [" ".join(name.split()) for name in header]
    n = 1
    while n < len(names) and len(",".join(names[: n + 1])) <= _MOST_HEADER:
        n += 1
    more = f" and {len(names) - n} more" if n < len(names) else ""
    return f"{','.join(names[:n])[:_MOST_HEADER]}{more}"


def _is_cut_off(path: Path) -> bool:
    text = b""
    try:
        for block in read_text(path):
            text += block
            if len(text) > _MOST_BYTES:
                return False
        msgspec.json.decode(text, type=msgspec.Raw)
    except EOFError:
        return True
    except (*SYNTAX_ERRORS, RecursionError, zlib.error) as error:
        return "truncated" in str(error)
    return False
