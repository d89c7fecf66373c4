"""Our own format: exact round trip, provenance, and what is refused."""

from __future__ import annotations

import json
import random
from dataclasses import fields
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from polars.testing import assert_frame_equal

from kdvfs_sim.core.errors import InputError, TraceFormatError
from kdvfs_sim.core.parquet import read_foreign, write_sealed
from kdvfs_sim.core.version import __version__
from kdvfs_sim.testing.strategies import recordings
from kdvfs_sim.trace.parquet import SCHEMA_VERSION, check_target, read_parquet, write_parquet
from kdvfs_sim.trace.readers import read_trace
from kdvfs_sim.trace.recordings import shipped
from kdvfs_sim.trace.table import Trace


def assert_same(found: Trace, expected: Trace) -> None:
    for field in fields(Trace):
        a, b = getattr(found, field.name), getattr(expected, field.name)
        if isinstance(b, pl.DataFrame):
            assert_frame_equal(a, b)
        else:
            assert a == b, field.name


@given(recordings())
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, trace: Trace) -> None:
    path = tmp_path_factory.getbasetemp() / "round-trip.parquet"
    write_parquet(trace, path)
    assert_same(read_parquet(path), trace)


@pytest.mark.parametrize("name", shipped())
def test_round_trip_of_shipped_recordings(tmp_path: Path, name: str) -> None:
    trace = read_trace(name)
    path = tmp_path / "no-suffix"
    write_parquet(trace, path)
    assert_same(read_trace(path), trace)
    write_parquet(trace, path)  # over one of ours


def test_any_parquet_tool_sees_everything_and_who_wrote_it(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    trace = read_trace("h200_gpt3xl_layer_train")
    write_parquet(trace, path)
    rows = dict(pl.read_parquet(path)["table"].value_counts().iter_rows())
    assert rows == {"ops": 192, "kinds": len(trace.kinds), "host": 194, "ranges": trace.ranges.height}
    header = json.loads(pl.read_parquet_metadata(path)["kdvfs"])
    assert (header["schema"], header["version"]) == (SCHEMA_VERSION, __version__)
    assert (header["format"], header["source"]) == ("kineto", trace.source)


def rewritten(path: Path, **changes: Any) -> Path:
    header = {**json.loads(pl.read_parquet_metadata(path)["kdvfs"]), **changes}
    sealed(pl.read_parquet(path), path, json.dumps(header))
    return path


def sealed(table: pl.DataFrame, path: Path, header: str) -> None:
    with path.open("wb") as file:
        write_sealed(table, file, {"kdvfs": header})


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "t.parquet"
    write_parquet(read_trace("h200_decode_tiny_kernels"), path)
    return path


@pytest.mark.parametrize("version", [0, SCHEMA_VERSION + 1, None, "1"])
def test_other_schema_versions_are_refused(written: Path, version: Any) -> None:
    with pytest.raises(
        TraceFormatError, match=f"trace schema {version!r} of kdvfs .*reads schema {SCHEMA_VERSION}"
    ):
        read_trace(rewritten(written, schema=version))


@pytest.mark.parametrize(
    "changes",
    [
        {"device_names": 5},
        {"recorded_clocks": "fast"},
        {"recorded_clocks": 1},
        {"surprise": 1},
        {"complete": 1},
        {"origin_unix_ns": 1.5},
    ],
)
def test_a_damaged_header_is_one_line(written: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        read_trace(rewritten(written, **changes))
    assert "\n" not in str(caught.value)


def test_missing_columns_are_one_line(written: Path) -> None:
    header = pl.read_parquet_metadata(written)["kdvfs"]
    sealed(pl.read_parquet(written).drop("stream"), written, header)
    with pytest.raises(TraceFormatError, match="damaged trace file"):
        read_trace(written)


def test_foreign_parquet_is_refused_and_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "other.parquet"
    pl.DataFrame({"a": [1]}).write_parquet(path)
    before = path.read_bytes()
    with pytest.raises(TraceFormatError, match="not a trace written by kdvfs"):
        read_trace(path)
    for target in (path, tmp_path):
        with pytest.raises(InputError, match="kdvfs trace"):
            write_parquet(read_trace("h200_decode_tiny_kernels"), target)
    assert path.read_bytes() == before


def test_targets(tmp_path: Path, written: Path) -> None:
    check_target(written)
    check_target(tmp_path / "new.parquet")
    text = tmp_path / "notes.txt"
    text.write_text("mine")
    with pytest.raises(InputError, match=r"notes.txt: exists and is not a kdvfs trace"):
        check_target(text)
    with pytest.raises(InputError, match="cannot be written"):
        write_parquet(
            read_trace("h200_decode_tiny_kernels"), tmp_path / "no" / "such" / "folder" / "t.parquet"
        )
    with pytest.raises(InputError, match="not a regular file"):
        write_parquet(read_trace("h200_decode_tiny_kernels"), Path("/dev/null"))


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = written.read_bytes()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    trace = read_trace(written)
    monkeypatch.setattr(pl.DataFrame, "write_parquet", full)
    with pytest.raises(InputError, match=r"cannot be written .No space left on device"):
        write_parquet(trace, written)
    assert written.read_bytes() == before
    assert [path.name for path in written.parent.iterdir()] == [written.name]


def test_whatever_is_cut_or_changed_is_refused_before_it_is_decoded(written: Path) -> None:
    data = written.read_bytes()
    for length in range(1, len(data), max(1, len(data) // 60)):
        written.write_bytes(data[:length])
        with pytest.raises(TraceFormatError):
            read_trace(written)
    choice = random.Random(3)
    for _ in range(150):
        damaged = bytearray(data)
        damaged[choice.randrange(4, len(damaged))] ^= 1 << choice.randrange(8)
        written.write_bytes(damaged)
        with pytest.raises(TraceFormatError, match=r"damaged|not a trace written by kdvfs"):
            read_trace(written)


@pytest.mark.parametrize("at", [39, 157])
def test_a_foreign_file_that_ends_its_decoder_is_refused_in_one_line(tmp_path: Path, at: int) -> None:
    """At these bytes polars 2.1 asks for exabytes and aborts."""
    path = tmp_path / "sweep.parquet"
    pl.DataFrame({"kernel": ["a", None] * 20, "n": [1, None] * 20}).write_parquet(path)
    damaged = bytearray(path.read_bytes())
    damaged[at] = 0x7F
    path.write_bytes(damaged)
    with pytest.raises(InputError, match=r"sweep\.parquet: ") as caught:
        read_foreign(path)
    assert "\n" not in str(caught.value)


def test_a_foreign_file_is_read_as_it_is(tmp_path: Path) -> None:
    table = pl.DataFrame({"kernel": ["a", None] * 20, "n": [1, None] * 20})
    table.write_parquet(tmp_path / "sweep.parquet")
    assert_frame_equal(read_foreign(tmp_path / "sweep.parquet"), table)
    with pytest.raises(InputError, match="No such file"):
        read_foreign(tmp_path / "none.parquet")
    (tmp_path / "text.parquet").write_text("kernel,n\n")
    with pytest.raises(InputError, match="cannot be read as parquet"):
        read_foreign(tmp_path / "text.parquet")
