"""The simple CSV: every column, defaults, and errors that name line and column."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from kdvfs_sim.core.errors import TraceFormatError
from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.trace.readers import read_trace

FULL = """name,start_ns,duration_ns,stream,device,op_class,grid,block,pass,category,flops,bytes
ampere_sgemm,1000,50,7,1,kernel,16x8x1,128x1x1,forward,gemm,1.5e9,200
"a, b",900,0,8,1,kernel,,,backward,,,
Memcpy HtoD,2000,10,,,memcpy,,,,,,64
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_all_columns(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, FULL))
    assert trace.ops.select("start_ns", "duration_ns", "device", "stream", "pass").rows() == [
        (0, 0, 1, 8, 1),
        (100, 50, 1, 7, 0),
        (1100, 10, 0, 0, -1),
    ]
    assert [trace.kinds[kind] for kind in trace.ops["kind"]] == [
        KernelKind(name="a, b"),
        KernelKind(
            name="ampere_sgemm", grid=(16, 8, 1), block=(128, 1, 1), category="gemm", flops=1.5e9, bytes=200.0
        ),
        KernelKind(name="Memcpy HtoD", op_class="memcpy", category="copy", bytes=64.0),
    ]
    assert trace.format == "csv"
    assert trace.cross_stream_unknown
    assert trace.host.is_empty()


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_three_columns_in_any_order_are_enough(tmp_path: Path, mark: str) -> None:
    trace = read_trace(
        write(tmp_path, f"{mark}duration_ns, name ,start_ns\n5,adam_kernel, -3\n\n6,adam_kernel,4\n")
    )
    assert trace.ops["start_ns"].to_list() == [0, 7]
    assert trace.kinds == (KernelKind(name="adam_kernel", category="optimizer"),)
    assert not trace.cross_stream_unknown


def test_a_compressed_file_is_read_as_what_it_holds(tmp_path: Path) -> None:
    plain = read_trace(write(tmp_path, FULL))
    path = tmp_path / "t.csv.gz"
    for text in (FULL, FULL.rstrip("\n")):
        path.write_bytes(gzip.compress(text.encode()))
        found = read_trace(path)
        assert (found.ops.rows(), found.kinds) == (plain.ops.rows(), plain.kinds)
        assert bool(found.repairs) == (text != FULL)


def test_a_compressed_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    whole = gzip.compress((FULL + FULL[FULL.index("ampere") :] * 999).encode(), mtime=0)
    wrong = whole[:-8] + bytes(4) + whole[-4:]
    for data in (whole[: len(whole) // 2], whole[:-3], wrong):
        path.write_bytes(data)
        with pytest.raises(
            TraceFormatError, match=r"line \d+: the compressed data is cut off or damaged there"
        ):
            read_trace(path)


HEAD = "name,start_ns,duration_ns,stream,grid,pass,op_class,flops\n"


@pytest.mark.parametrize(
    ("row", "column", "value"),
    [
        ("a,1.5,3,,,,,", "start_ns", "1.5"),
        ("a,1e3,3,,,,,", "start_ns", "1e3"),
        ("a,,3,,,,,", "start_ns", ""),
        ("a,9223372036854775808,3,,,,,", "start_ns", "9223372036854775808"),
        ("a,1_000,3,,,,,", "start_ns", "1_000"),
        ("a,\uff11,3,,,,,", "start_ns", "\uff11"),  # what only Python reads as a number
        ("a,1,3,,16x\uff11x1,,,", "grid", "16x\uff11x1"),
        ("a,1,3,,,,,1_0", "flops", "1_0"),
        ("a,1,-3,,,,,", "duration_ns", "-3"),
        ("a,1,nan,,,,,", "duration_ns", "nan"),
        (",1,3,,,,,", "name", ""),
        ("a,1,3,seven,,,,", "stream", "seven"),
        ("a,1,3,,16x8,,,", "grid", "16x8"),
        ("a,1,3,,,sideways,,", "pass", "sideways"),
        ("a,1,3,,,,thing,", "op_class", "thing"),
        ("a,1,3,,,,,inf", "flops", "inf"),
        ("a,1,3,,,,,-1", "flops", "-1"),
    ],
)
def test_a_bad_cell_is_named(tmp_path: Path, row: str, column: str, value: str) -> None:
    with pytest.raises(TraceFormatError) as caught:
        read_trace(write(tmp_path, f"{HEAD}ok,0,1,,,,,\n{row}\n"))
    assert f"t.csv: line 3: column {column!r}: {value!r} is not " in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name,start_ns,duration_ns,strem\na,1,2,3\n", "column 'strem' is unknown; columns: name, start_ns"),
        ("name,start_ns,duration_ns,name\na,1,2,3\n", "column 'name' is named twice"),
        ("name,start_ns,duration_ns\na,1\n", "line 2: has 2 cells; the header names 3"),
        ('name,start_ns,duration_ns\n"a,1,2\n', "is not CSV text"),
        ("name,start_ns,duration_ns\n", "holds no GPU operation"),
        (
            "name,start_ns,duration_ns\na,0,9223372036854775807\n",
            "spans 9.22e+09 s; at most 1e+08 s is right",
        ),
        ("name,start_ns,duration_ns\na,-9e18,1\nb,9,1\n".replace("9e18", "9" + "0" * 18), "spans 9e+09 s"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(TraceFormatError) as caught:
        read_trace(write(tmp_path, text))
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_not_text(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    whole = b"name,start_ns,duration_ns\n" + b"a,1,2\n" * 5000
    for data, number in ((whole + b"a\xff,1,2\n", 5002), (whole[:26] + b"\xff,1,2\n" + whole[26:], 2)):
        path.write_bytes(data)
        with pytest.raises(TraceFormatError, match=rf"t\.csv: line {number}: is not text in UTF-8 "):
            read_trace(path)


def test_a_file_that_may_be_cut_in_its_last_number_says_so(tmp_path: Path) -> None:
    whole = "name,start_ns,duration_ns\na,1,2\nb,10,345\n"
    assert read_trace(write(tmp_path, whole)).repairs == {}
    cut = read_trace(write(tmp_path, whole[:-2]))
    assert cut.ops["duration_ns"].to_list() == [2, 34]
    assert sum(cut.repairs.values()) == 1
    assert "without the line break" in next(iter(cut.repairs))
