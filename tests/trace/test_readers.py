"""The way in: names, paths, and one clear line for everything that is not a recording."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import sqlite3
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from kineto_files import kernel, write

from kdvfs_sim.core.clocks import AUTO_CLOCKS, Clocks
from kdvfs_sim.core.errors import InputError, KdvfsError
from kdvfs_sim.trace.readers import READERS, read_trace
from kdvfs_sim.trace.recordings import find_shipped, shipped
from kdvfs_sim.trace.table import Trace

NAMES = {
    "h200_decode_tiny_kernels",
    "h200_gpt3xl_full_train",
    "h200_gpt3xl_layer_infer_cudagraph",
    "h200_gpt3xl_layer_train",
    "h200_gpt3xl_layer_train_100steps_gpuonly",
    "h200_gpt3xl_layer_train_two_streams_copies",
}


def test_six_recordings_ship_unchanged() -> None:
    assert set(shipped()) == NAMES
    for recording in shipped().values():
        assert hashlib.sha256(recording.path.read_bytes()).hexdigest() == recording.sha256
        assert recording.gpu == "NVIDIA H200"
        assert recording.description
        assert Clocks.parse(recording.clocks) == AUTO_CLOCKS
    folder = next(iter(shipped().values())).path.parent
    assert {path.name for path in folder.iterdir()} == {
        *(f"{name}.json.gz" for name in NAMES),
        "README.md",
        "manifest.toml",
    }


@pytest.mark.parametrize("suffix", ["", ".json.gz"])
def test_shipped_recordings_load_by_name(suffix: str) -> None:
    trace = read_trace(f"h200_gpt3xl_layer_train{suffix}")
    assert trace.n_ops == 192
    assert trace.device_name == "NVIDIA H200"
    assert trace.recorded_clocks == AUTO_CLOCKS
    assert find_shipped("h200") is None


def test_recorded_clocks_may_be_given() -> None:
    clocks = Clocks(1410, 3201)
    assert read_trace("h200_decode_tiny_kernels", recorded_clocks=clocks).recorded_clocks == clocks


def test_a_path_wins_over_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "h200_decode_tiny_kernels", [kernel()])
    assert read_trace("h200_decode_tiny_kernels").n_ops == 1


def refusal(path: str | Path) -> str:
    with pytest.raises(InputError) as caught:
        read_trace(path)
    assert caught.value.exit_code == 3
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_missing() -> None:
    assert "did you mean h200_gpt3xl_layer_train?" in refusal("h200_gpt3xl_layer_trian.json.gz")
    assert "no such file" in refusal("/nowhere/at/all")
    assert "h200_gpt3xl_full_train" in refusal("xyz")
    assert "is not a usable path" in refusal("x" * 5000)
    refusal("a\0b")


def test_not_a_file(tmp_path: Path) -> None:
    assert "is a folder" in refusal(tmp_path)
    assert "an empty name" in refusal("")
    (tmp_path / "empty").touch()
    assert "is empty" in refusal(tmp_path / "empty")
    os.mkfifo(tmp_path / "pipe")
    assert "is not a regular file" in refusal(tmp_path / "pipe")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", [kernel()])
    path.chmod(0)
    assert "cannot be read (Permission denied)" in refusal(path)


def archive(kind: str) -> bytes:
    data, content = io.BytesIO(), json.dumps([kernel()]).encode()
    if kind == "zip":
        with zipfile.ZipFile(data, "w") as zipped:
            zipped.writestr("a.json", content)
    else:
        with tarfile.open(fileobj=data, mode=kind) as tar:
            info = tarfile.TarInfo("a.json")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return data.getvalue()


@pytest.mark.parametrize(
    ("content", "looks_like"),
    [
        (b"hello", "text that is neither JSON nor CSV"),
        (b"   \n", "nothing but white space"),
        (b"{}", "a JSON object without trace events"),
        (b'{"schema": "1.1.1-chakra", "nodes": []}', "a PyTorch execution trace"),
        (b'{"rocprofiler-sdk-tool": []}', "rocprofv3 JSON"),
        (b'{"a": [{"ph": "X"}]}', "trace events without the key traceEvents"),
        (
            b'{"schemaVersion": 1, "deviceProperties": [{"id": 0',
            "JSON that is cut off before any trace event",
        ),
        (
            gzip.compress(b'{"a": [' + b"1, " * 9999, mtime=0)[:-20],
            "JSON that is cut off before any trace event",
        ),
        (b"[", "JSON that is cut off before any trace event"),
        (b"[]", "a JSON list of something other than trace events"),
        (b'[{"count": 5}, {"name": "conv", "timeMs": 1.5}]', "a JSON list of something other"),
        (b"[[1, 2], [3, 4]]", "such as a PyTorch memory timeline"),
        (
            b"Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,Registers (B),Name\n1,2,3,4,5,6,7,8,a\n",
            "with other columns: Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX and 2 more; needed",
        ),
        (
            b"Kind,Agent_Id,Kernel_Name\n1,2,3\n",
            "a CSV with other columns: Kind,Agent_Id,Kernel_Name; needed",
        ),
        (
            b"name;start_ns;duration_ns\na;0;412000\n",
            "a CSV with ';' between the cells; write",
        ),
        (
            b"name\tstart_ns\tduration_ns\na\t0\t1,5\n",
            "a CSV with tabs between the cells; write",
        ),
        (b"import csv, gzip\nprint(csv)\n", "text that is neither JSON nor CSV"),
        (b'"""Makes a, b and c."""\n\nimport csv\n', "text that is neither JSON nor CSV"),
        (b"==123== NVPROF is profiling\nStart,Duration\n", "nvprof preamble"),
        (b"\x00\x01\x02", "binary data"),
        (b"\x28\xb5\x2f\xfd1234", "zstd"),
        (archive("zip"), "zip archive"),
        (archive("w"), "a tar archive; unpack it"),
        (archive("w:gz"), "a tar archive; unpack it"),
        (gzip.compress(b"hello", mtime=0), "text that is neither JSON nor CSV"),
        (gzip.compress(b"hello", mtime=0)[:5], "gzip data that is cut off or damaged"),
        (b"\x1f\x8bgarbage garbage", "gzip data that is cut off or damaged"),
    ],
    ids=lambda value: value[:25] if isinstance(value, str) else "",  # an archive holds the time of day
)
def test_what_is_no_recording_is_named(tmp_path: Path, content: bytes, looks_like: str) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(content)
    assert looks_like in refusal(path)


def test_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("create table t (x)")
    connection.close()
    assert "an SQLite database, such as an Nsight Systems export" in refusal(path)


def test_readers_agree_on_whose_file_it_is(tmp_path: Path) -> None:
    from kdvfs_sim.trace.parquet import write_parquet

    trace = read_trace("h200_decode_tiny_kernels")
    write_parquet(trace, tmp_path / "t.parquet")
    (tmp_path / "t.csv").write_text("name,start_ns,duration_ns\na,1,2\n")
    files = {"kdvfs": tmp_path / "t.parquet", "csv": tmp_path / "t.csv", "kineto": Path(trace.source)}
    for format_name, path in files.items():
        assert [reader.format_name for reader in READERS if reader.can_read(path)] == [format_name]


class OneLine:
    """A file that holds ``one``: another reader than those that ship."""

    format_name = "one"

    def can_read(self, path: Path, /) -> bool:
        return path.read_text() == "one"

    def read(self, path: Path, /) -> Trace:
        return replace(read_trace("h200_decode_tiny_kernels"), source=str(path), format="one")


def test_a_reader_of_ones_own_reads_what_no_other_does(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("one")
    with pytest.raises(InputError, match="not a readable recording"):
        read_trace(tmp_path / "mine")
    clocks = Clocks(1410, 2619)
    found = read_trace(tmp_path / "mine", readers=(OneLine(), *READERS), recorded_clocks=clocks)
    assert (found.format, found.recorded_clocks) == ("one", clocks)


def test_other_formats_beside_the_checkout_are_refused_in_one_line(shared: Path) -> None:
    paths = sorted((shared / "traces").iterdir())
    for kind in ("magus__*", "pipit__*", "rocprofv3__*", "param__*", "*.pb"):
        found = [path for path in paths if path.match(kind)]
        assert found, f"no file {kind}"
        for path in found:
            refusal(path)


def test_exit_codes_are_those_of_the_architecture() -> None:
    assert InputError.exit_code == 3
    assert issubclass(InputError, KdvfsError)
