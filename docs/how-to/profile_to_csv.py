"""An Nsight Systems SQLite export, an nvprof GPU trace or a rocprofv3 kernel trace to a CSV that kdvfs reads.

python profile_to_csv.py step.sqlite step.csv
"""

import csv
import sqlite3
import sys
from decimal import Decimal
from pathlib import Path

COLUMNS = ("name", "start_ns", "duration_ns", "stream", "device", "op_class", "grid", "block")
NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
KERNELS = """
SELECT s.value, k.start, k.end - k.start, k.streamId, k.deviceId, 'kernel',
       k.gridX || 'x' || k.gridY || 'x' || k.gridZ, k.blockX || 'x' || k.blockY || 'x' || k.blockZ
FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.demangledName"""
COPIES = "SELECT '{0}', start, end - start, streamId, deviceId, '{0}', '', '' FROM CUPTI_ACTIVITY_KIND_{1}"


def from_nsys(path):
    """Kernels, copies and fills; a table without rows may be missing."""
    database = sqlite3.connect(path)
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    if "CUPTI_ACTIVITY_KIND_KERNEL" in tables:
        yield from database.execute(KERNELS)
    for op_class in ("memcpy", "memset"):
        if f"CUPTI_ACTIVITY_KIND_{op_class.upper()}" in tables:
            yield from database.execute(COPIES.format(op_class, op_class.upper()))


def from_nvprof(lines):
    """Below a preamble of == lines: a header, a line of units, and a line an operation."""
    rows = csv.DictReader(line for line in lines if not line.startswith("=="))
    units = next(rows)
    for row in rows:
        if not row["Name"]:
            continue
        start, duration = (Decimal(row[name]) * NS[units[name]] for name in ("Start", "Duration"))
        name = row["Name"]
        op_class = next((kind for kind in ("memcpy", "memset") if f"CUDA {kind}" in name), "kernel")
        sizes = ["x".join(row[f"{what} {axis}"] for axis in "XYZ") for what in ("Grid", "Block")]
        yield (
            name,
            round(start),
            round(duration),
            row["Stream"],
            0,
            op_class,
            *(sizes if op_class == "kernel" else ("", "")),
        )


def from_rocprofv3(lines):
    """One line a kernel; a queue is taken for a stream, and grids are counted in work items there."""
    streams = {}
    for row in csv.DictReader(lines):
        start, end = int(row["Start_Timestamp"]), int(row["End_Timestamp"])
        stream = streams.setdefault((row["Agent_Id"], row["Queue_Id"]), len(streams))
        block = [int(row[f"Workgroup_Size_{axis}"]) for axis in "XYZ"]
        grid = [int(row[f"Grid_Size_{axis}"]) // size for axis, size in zip("XYZ", block, strict=True)]
        yield (
            row["Kernel_Name"],
            start,
            end - start,
            stream,
            0,
            "kernel",
            *("x".join(map(str, sizes)) for sizes in (grid, block)),
        )


def operations(path):
    if path.read_bytes()[:15] == b"SQLite format 3":
        return from_nsys(path)
    lines = path.read_text().splitlines()
    return from_nvprof(lines) if lines[0].startswith("==") else from_rocprofv3(lines)


def main(source, target):
    rows = sorted(operations(Path(source)), key=lambda row: row[1])
    if not rows:
        sys.exit(f"{source}: holds no GPU operation")
    with open(target, "w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    print(f"{len(rows)} operations written to {target}")


if __name__ == "__main__":
    main(*sys.argv[1:])
