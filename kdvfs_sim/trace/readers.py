"""Any readable recording to a Trace: the extension point, the readers that ship, and the way in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Final, Protocol

from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.core.errors import InputError, TraceFormatError
from kdvfs_sim.trace.csv import CsvReader
from kdvfs_sim.trace.kineto import KinetoReader
from kdvfs_sim.trace.looks_like import looks_like
from kdvfs_sim.trace.parquet import ParquetReader
from kdvfs_sim.trace.recordings import find_shipped, shipped
from kdvfs_sim.trace.table import Trace


class TraceReader(Protocol):
    """Reads recordings of one format.

    ``can_read`` returns whether the file is of that format, judged by its content, never by its name, and
    from its beginning only; ``read`` returns a Trace, times in nanoseconds. Both for every existing regular
    file; ``read`` only where ``can_read`` said yes. ``can_read`` raises nothing but OSError; ``read`` raises
    TraceFormatError, one line, for a truncated or damaged file (saying how much was readable) and for a
    recording without GPU work (saying what it holds), and never returns part of a file. Pure and repeatable;
    may be called from several processes. Does not promise that a trace is complete or free of repairs: the
    trace says so. Optional, for the checks: ``write(trace, path)``, or ``samples``, paths of recordings.
    """

    @property
    def format_name(self) -> str: ...

    def can_read(self, path: Path, /) -> bool: ...

    def read(self, path: Path, /) -> Trace: ...


HINT: Final = "docs/how-to/another-format.md says how to turn another format into a CSV"
READERS: Final[tuple[TraceReader, ...]] = (ParquetReader(), KinetoReader(), CsvReader())


def read_trace(
    path_or_name: str | Path,
    *,
    recorded_clocks: Clocks | None = None,
    readers: Sequence[TraceReader] = READERS,
) -> Trace:
    """Read a recording, given its path or the name of a shipped one (with or without ``.json.gz``).

    ``recorded_clocks`` overrides what the file says of the clocks it was recorded at. A path wins over a
    name. ``readers`` are asked in order, and the first that can read it does: ``(MyReader(), *READERS)`` adds
    one. Raises InputError, one line, for a file that is missing, empty, a folder or no recording, and
    whatever the reader raises.
    """
    path = _find(path_or_name)
    try:
        reader = next((reader for reader in readers if reader.can_read(path)), None)
        if reader is None:
            what = f"not a readable recording; it looks like {looks_like(path)}; {HINT}"
            raise TraceFormatError(str(path), what)
        trace = reader.read(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    return trace if recorded_clocks is None else replace(trace, recorded_clocks=recorded_clocks)


def _find(path_or_name: str | Path) -> Path:
    path = Path(path_or_name)
    if not str(path_or_name):
        raise InputError("an empty name is no recording")
    try:
        if path.is_file():
            if path.stat().st_size == 0:
                raise InputError(f"{path}: is empty")
            return path
        if path.is_dir():
            raise InputError(f"{path}: is a folder; name one recording in it")
        if path.exists():
            raise InputError(f"{path}: is not a regular file")
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{str(path)[:80]!r}: is not a usable path ({error})") from None
    if recording := find_shipped(str(path_or_name)):
        return recording.path
    near = get_close_matches(path.name.removesuffix(".json.gz"), shipped(), n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}?" if near else f"shipped recordings: {', '.join(shipped()) or 'none'}"
    raise InputError(f"{path}: no such file, and no shipped recording of this name; {hint}")
