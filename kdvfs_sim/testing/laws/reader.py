"""What has to hold of a TraceReader (trace.readers).

To have files to read, the laws need either ``reader.write(trace, path)``, which writes a Trace in the
reader's format, or ``reader.samples``, paths of recordings. With ``write`` a case is the trace written, else
a path.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

import polars as pl
from hypothesis import strategies as st

from kdvfs_sim.core.errors import InputError
from kdvfs_sim.testing.law import Raised, ask, assume, law, require
from kdvfs_sim.testing.notation import same
from kdvfs_sim.testing.strategies.traces import traces
from kdvfs_sim.trace.parquet import read_parquet, write_parquet
from kdvfs_sim.trace.readers import TraceReader
from kdvfs_sim.trace.table import Trace

Source: TypeAlias = "Trace | Path"
FOREIGN: Final = (
    b"",
    b"\n",
    b"hello\n",
    b"{}",
    b"[1, 2, 3]",
    b'{"nodes": []}',
    b"a,b,c\n1,2,3\n",
    b"PK\x03\x04 a zip archive",
    b"\x1f\x8b gzip, or not",
    b"\x89PNG\r\n\x1a\n",
    b"SQLite format 3\x00",
    b"\xff\xfe\x00\x00",
)


def sources(reader: Any) -> st.SearchStrategy[Source]:
    """What there is to read: traces to be written, else the samples; no case without either."""
    if hasattr(reader, "write"):
        return traces(max_ops=4, host=False, overlaps=False)
    samples = [Path(path) for path in getattr(reader, "samples", ())]
    return st.sampled_from(samples) if samples else st.nothing()


@contextmanager
def file_of(reader: Any, source: Source, name: str = "recording") -> Iterator[Path]:
    """A copy of the source as a file, in a folder of its own; named once written, as a writer may mind."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recording"
        if isinstance(source, Path):
            path.write_bytes(source.read_bytes())
        else:
            reader.write(source, path)
        yield path.rename(path.with_name(name))  # a writer may refuse a name; a reader may not


def read(reader: TraceReader, path: Path) -> Trace:
    trace = ask(reader.read, path)
    assert isinstance(trace, Trace)
    return trace


def require_same(before: Trace, after: Trace, when: str) -> None:
    """Equal but for where it was read from."""
    for name in Trace.__dataclass_fields__:
        if name not in ("source", "format"):
            a, b = getattr(before, name), getattr(after, name)
            require(same(a, b), f"{name} is {b} instead of {a} {when}")


@law("reader", sources, total=True)
def it_reads_its_own_files(reader: TraceReader, source: Source) -> None:
    """``can_read`` says yes to a file of its format, and ``read`` gives a Trace."""
    with file_of(reader, source) as path:
        says = ask(reader.can_read, path)
        require(says is True, f"can_read returned {says!r}; True is right")
        trace = ask(reader.read, path)
        require(isinstance(trace, Trace), f"read returned {trace!r}, not a Trace")


@law("reader", lambda _: st.sampled_from(FOREIGN))
def it_leaves_other_files_alone(reader: TraceReader, content: bytes) -> None:
    """``can_read`` says no to a file of another kind, and raises nothing."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recording"
        path.write_bytes(content)
        try:
            says = ask(reader.can_read, path)
        except Raised as raised:
            require(False, f"{content!r}: {raised}")
        require(not says, f"{content!r}: can_read returned {says!r}; False is right")


@law(
    "reader",
    lambda reader: st.tuples(sources(reader), st.sampled_from(["x.txt", "x.json", "x.parquet", "x.gz"])),
)
def a_file_is_known_by_its_content(reader: TraceReader, case: tuple[Source, str]) -> None:
    """The name of a file makes no difference, neither to ``can_read`` nor to what is read."""
    source, name = case
    with file_of(reader, source) as plain, file_of(reader, source, name) as named:
        says = ask(reader.can_read, named)
        require(bool(says), f"can_read returned {says!r} for the same file named {name}")
        require_same(read(reader, plain), read(reader, named), f"for the same file named {name}")


@law("reader", sources)
def times_and_kernels_are_as_recorded(reader: TraceReader, source: Source) -> None:
    """Every operation has the name, start, duration, device and stream that were written, to the
    nanosecond."""
    assume(isinstance(source, Trace))
    with file_of(reader, source) as path:
        found = read(reader, path)
    assert isinstance(source, Trace)
    before, after = _operations(source), _operations(found)
    require(before == after, f"(start, duration, device, stream, name) are {after}; written were {before}")


def _operations(trace: Trace) -> list[tuple[Any, ...]]:
    names = pl.Series([kind.name for kind in trace.kinds])
    columns = trace.ops.select(
        "start_ns", "duration_ns", "device", "stream", name=names.gather(trace.ops["kind"])
    )
    return sorted(columns.rows())


@law("reader", sources)
def the_same_file_is_the_same_trace(reader: TraceReader, source: Source) -> None:
    """A file read twice gives the same trace twice."""
    with file_of(reader, source) as path:
        require_same(read(reader, path), read(reader, path), "the second time")


@law("reader", sources)
def the_file_is_left_alone(reader: TraceReader, source: Source) -> None:
    """Reading changes nothing of the file and leaves nothing beside it."""
    with file_of(reader, source) as path:
        before = path.read_bytes()
        read(reader, path)
        require(path.read_bytes() == before, "the file has changed")
        beside = sorted(other.name for other in path.parent.iterdir() if other != path)
        require(not beside, f"beside the file there is now {beside}")


@law("reader", lambda reader: st.tuples(sources(reader), st.floats(0, 1)))
def a_cut_file_is_refused(reader: TraceReader, case: tuple[Source, float]) -> None:
    """Of a file that ends too early nothing is returned: InputError, one line, unless nothing is missing."""
    source, share = case
    with file_of(reader, source) as path:
        whole, content = read(reader, path), path.read_bytes()
        n = min(int(len(content) * share), len(content) - 1)
        path.write_bytes(content[:n])
        found = _read_damaged(reader, path)
        if found is not None:
            before, after = _operations(whole), _operations(found)
            require(
                before == after,
                f"of {len(content)} bytes the first {n} were read as {after}; all are {before}",
            )


@law("reader", lambda reader: st.tuples(sources(reader), st.floats(0, 1), st.integers(0, 255)))
def a_damaged_file_is_refused_in_one_line(reader: TraceReader, case: tuple[Source, float, int]) -> None:
    """Whatever one byte is replaced by: a trace, or InputError in one line; never another error."""
    source, share, byte = case
    with file_of(reader, source) as path:
        content = bytearray(path.read_bytes())
        content[min(int(len(content) * share), len(content) - 1)] = byte
        path.write_bytes(bytes(content))
        _read_damaged(reader, path)


def _read_damaged(reader: TraceReader, path: Path) -> Trace | None:
    """None if it was refused as it should be."""
    try:
        if not ask(reader.can_read, path):
            return None
        return read(reader, path)
    except Raised as raised:
        require(isinstance(raised.error, InputError), f"{raised}; InputError is right")
        require("\n" not in str(raised.error), f"the message has several lines: {str(raised.error)!r}")
        return None


@law("reader", sources)
def the_trace_survives_our_own_format(reader: TraceReader, source: Source) -> None:
    """Written as Parquet and read again it is the same trace."""
    with file_of(reader, source) as path:
        trace = read(reader, path)
        copy = path.with_name("copy.parquet")
        try:
            write_parquet(trace, copy)
            again = read_parquet(copy)
        except Exception as error:
            require(False, f"our own format cannot hold it: {type(error).__name__}: {error}")
        require_same(trace, again, "after a round trip through Parquet")
