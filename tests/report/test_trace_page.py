"""A recording on one screen: its counts say what they count."""

from __future__ import annotations

from pathlib import Path

from kdvfs_sim.report.trace_page import summary_lines
from kdvfs_sim.trace.readers import read_trace


def test_streams_of_kernels_and_of_copies_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "name,start_ns,duration_ns,stream,op_class\n"
        "gemm,0,50,7,kernel\n"
        "gemm,60,50,7,kernel\n"
        "Memcpy HtoD,0,10,8,memcpy\n"
    )
    lines = list(summary_lines(read_trace(path)))
    assert lines[1] == "2 kernels of 1 name on 1 stream, 1 copy, 0 memory sets"
    assert lines[2] == "with copies and memory sets: 3 operations of 2 kinds on 2 streams"
    assert any(line.startswith("2 streams and no synchronization records") for line in lines)
