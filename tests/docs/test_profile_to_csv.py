"""docs/how-to/profile_to_csv.py: other profilers' files become recordings with the right totals."""

from __future__ import annotations

import runpy
import sqlite3
from pathlib import Path

import pytest

from kdvfs_sim.core.errors import InputError
from kdvfs_sim.trace.readers import read_trace
from kdvfs_sim.trace.table import Trace

SCRIPT = Path(__file__).resolve().parents[2] / "docs/how-to/profile_to_csv.py"


def converted(source: Path, tmp_path: Path) -> Trace:
    target = tmp_path / "trace.csv"
    runpy.run_path(str(SCRIPT))["main"](source, target)
    return read_trace(target)


def n_kernels(trace: Trace) -> int:
    return int(sum(trace.kinds[kind].op_class == "kernel" for kind in trace.ops["kind"]))


def test_a_database_of_nsight_systems(tmp_path: Path) -> None:
    path = tmp_path / "step.sqlite"
    with sqlite3.connect(path) as database:
        sizes = "gridX, gridY, gridZ, blockX, blockY, blockZ"
        columns = f"start, end, streamId, deviceId, demangledName, {sizes}"
        database.execute("CREATE TABLE StringIds (id, value)")
        database.execute("INSERT INTO StringIds VALUES (7, 'gemm<float, 2>')")
        database.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({columns})")
        database.executemany(
            f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({', '.join('?' * 11)})",
            [(5_000, 9_000, 13, 0, 7, 4, 2, 1, 128, 1, 1), (1_000, 4_000, 13, 0, 7, 4, 2, 1, 128, 1, 1)],
        )
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start, end, streamId, deviceId)")
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (0, 900, 13, 0)")
    with pytest.raises(InputError, match=r"Nsight Systems export; docs/how-to/another-format.md"):
        read_trace(path)
    trace = converted(path, tmp_path)
    assert trace.ops["duration_ns"].to_list() == [900, 3_000, 4_000]
    assert [(kind.name, kind.op_class) for kind in trace.kinds] == [
        ("memcpy", "memcpy"), ("gemm<float, 2>", "kernel")
    ]  # fmt: skip
    assert trace.kinds[1].grid == (4, 2, 1)


def test_a_trace_of_nvprof(tmp_path: Path) -> None:
    path = tmp_path / "step.txt"
    path.write_text(
        "==1== NVPROF is profiling process 1\n==1== Profiling result:\n"
        '"Start","Duration","Grid X","Grid Y","Grid Z","Block X","Block Y","Block Z","Stream","Name"\n'
        "ms,us,,,,,,,,\n"
        '1.5,2.125,,,,,,,"7","[CUDA memcpy HtoD]"\n'
        '2.000001,10.5,4,2,1,128,1,1,"7","gemm(float*, int) [55]"\n'
    )
    with pytest.raises(InputError, match=r"nvprof preamble.*docs/how-to/another-format.md"):
        read_trace(path)
    trace = converted(path, tmp_path)
    assert trace.ops["duration_ns"].to_list() == [2_125, 10_500]
    assert (trace.ops["start_ns"][1] - trace.ops["start_ns"][0]) == 500_001
    assert [kind.op_class for kind in trace.kinds] == ["memcpy", "kernel"]


NSYS_STATS = (
    "Start ({unit}),Duration ({unit}),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),"
    "Bytes (MB),Throughput (MBps),SrcMemKd,DstMemKd,Device,Ctx,Strm,Name\n"
    "{0},{1},131,,,,,,,,,,0.004,2.1,Pageable,Device,NVIDIA A100-SXM4-40GB (1),1,7,[CUDA memcpy HtoD]\n"
    '{2},{3},137,4,2,1,128,1,1,32,0.000,0.000,,,,,NVIDIA A100-SXM4-40GB (1),1,13,"gemm<float, 2>(float *)"\n'
)


@pytest.mark.parametrize(
    ("unit", "times"), [("ns", (1500000, 2125, 2000001, 10500)), ("us", (1500, 2.125, 2000.001, 10.5))]
)
@pytest.mark.parametrize(
    "preamble", ["", "Generating SQLite file step.sqlite\n\nProcessing [step.sqlite] with [x]...\n"]
)
def test_a_table_of_nsys_stats(unit: str, times: tuple[float, ...], preamble: str, tmp_path: Path) -> None:
    path = tmp_path / "nsight.csv"
    path.write_text(preamble + NSYS_STATS.format(*times, unit=unit))
    with pytest.raises(InputError, match=r"docs/how-to/another-format.md"):
        read_trace(path)
    trace = converted(path, tmp_path)
    assert trace.ops.select("start_ns", "duration_ns", "stream", "device").rows() == [
        (0, 2_125, 7, 1),
        (500_001, 10_500, 13, 1),
    ]
    kernel = trace.kinds[1]
    assert (kernel.name, kernel.grid, kernel.block) == ("gemm<float, 2>(float *)", (4, 2, 1), (128, 1, 1))
    assert trace.kinds[0].op_class == "memcpy"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "==1== NVPROF is profiling process 1\n",
        "Time(%),Total Time (ns),Instances,Name\n50,1,1,a\n",
        "Kind,Direction,Source_Agent_Id,Start_Timestamp,End_Timestamp\nMEMORY_COPY,H2D,0,1,2\n",
    ],
)
def test_an_unknown_table_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text(text)
    with pytest.raises(
        SystemExit, match=r"other.csv: begins with .*nsys stats --report cuda_gpu_trace"
    ) as end:
        converted(path, tmp_path)
    assert "\n" not in str(end.value)
    assert not (tmp_path / "trace.csv").exists()


@pytest.mark.parametrize(
    ("name", "kernels", "others"),
    [
        ("pipit__cloverleaf_a100_nsys2024.5.sqlite", 1312, 279),
        ("pipit__saxpy_mpi_a100_nsys2022.2.sqlite", 5, 15),
        ("magus__nvprof_conjugateGradient_ms_ms.csv", 75, 24),
        ("magus__nvprof_concurrentKernels_ms_ms.csv", 9, 1),
    ],
)
def test_files_that_others_recorded(
    name: str, kernels: int, others: int, shared: Path, tmp_path: Path
) -> None:
    trace = converted(shared / "traces" / name, tmp_path)
    assert (n_kernels(trace), trace.n_ops - n_kernels(trace)) == (kernels, others)


@pytest.mark.parametrize(
    "name", ["rocprofv3__kernel_trace_2024-07.csv", "rocprofv3__kernel_trace_2024-08.csv"]
)
def test_kernel_traces_of_rocprofv3(name: str, shared: Path, tmp_path: Path) -> None:
    path = shared / "traces" / name
    trace = converted(path, tmp_path)
    assert n_kernels(trace) == trace.n_ops == len(path.read_text().strip().splitlines()) - 1
