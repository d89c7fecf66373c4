"""An Nsight Systems export or table, an nvprof GPU trace or a rocprofv3 kernel trace to a CSV for kdvfs.

python profile_to_csv.py step.sqlite step.csv
"""

import csv
import re
import sqlite3
import sys
from decimal import Decimal
from pathlib import Path

COLUMNS = ("name", "start_ns", "duration_ns", "stream", "device", "op_class", "grid", "block")
FORMATS = (
    "a table of nsys stats --report cuda_gpu_trace, nvprof --print-gpu-trace or rocprofv3 --kernel-trace"
)
NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
KERNELS = """
SELECT s.value, k.start, k.end - k.start, k.streamId, k.deviceId, 'kernel',
       k.gridX || 'x' || k.gridY || 'x' || k.gridZ, k.blockX || 'x' || k.blockY || 'x' || k.blockZ
FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.demangledName"""
COPIES = "SELECT '{0}', start, end - start, streamId, deviceId, '{0}', '', '' FROM CUPTI_ACTIVITY_KIND_{1}"
MOST_PREAMBLE = 20


def op_class_of(name):
    return next((kind for kind in ("memcpy", "memset") if f"CUDA {kind}" in name), "kernel")


def from_nsys(path):
    """Kernels, copies and fills; a table without rows may be missing."""
    database = sqlite3.connect(path)
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    if "CUPTI_ACTIVITY_KIND_KERNEL" in tables:
        yield from database.execute(KERNELS)
    for op_class in ("memcpy", "memset"):
        if f"CUPTI_ACTIVITY_KIND_{op_class.upper()}" in tables:
            yield from database.execute(COPIES.format(op_class, op_class.upper()))


def from_nsys_stats(lines):
    """The report cuda_gpu_trace: units of time in the header; sizes are of kernels only."""
    rows = csv.DictReader(lines)
    found = {name.split(" (")[0]: name for name in rows.fieldnames}
    start_in, duration_in = found["Start"], found["Duration"]
    start_unit, duration_unit = (re.search(r"\((\w+)\)", name)[1] for name in (start_in, duration_in))
    for row in rows:
        sizes = ["x".join(row[f"{what}{axis}"] for axis in "XYZ") for what in ("Grd", "Blk")]
        device = re.search(r"\((\d+)\)$", row["Device"])
        yield (
            row["Name"],
            round(Decimal(row[start_in]) * NS[start_unit]),
            round(Decimal(row[duration_in]) * NS[duration_unit]),
            row["Strm"],
            device[1] if device else 0,
            op_class_of(row["Name"]),
            *(sizes if row["GrdX"] else ("", "")),
        )


def from_nvprof(lines):
    """A header, a line of units, and a line an operation."""
    rows = csv.DictReader(lines)
    units = next(rows)
    for row in rows:
        if not row["Name"]:
            continue
        start, duration = (Decimal(row[name]) * NS[units[name]] for name in ("Start", "Duration"))
        op_class = op_class_of(row["Name"])
        sizes = ["x".join(row[f"{what} {axis}"] for axis in "XYZ") for what in ("Grid", "Block")]
        yield (
            row["Name"],
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


READERS = (  # columns by which a table is known
    ({"Start", "Duration", "CorrId", "GrdX", "Device", "Strm", "Name"}, from_nsys_stats),
    ({"Start", "Duration", "Grid X", "Block X", "Stream", "Name"}, from_nvprof),
    (
        {"Start_Timestamp", "End_Timestamp", "Agent_Id", "Queue_Id", "Kernel_Name", "Grid_Size_X"},
        from_rocprofv3,
    ),
)


def operations(path):
    if path.read_bytes()[:15] == b"SQLite format 3":
        return from_nsys(path)
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("==")]
    # nsys stats says what it does before the table
    for i, line in enumerate(lines[:MOST_PREAMBLE]):
        names = {re.sub(r" \(.*", "", name) for name in next(csv.reader([line]))}
        for columns, reader in READERS:
            if columns <= names:
                return reader(lines[i:])
    sys.exit(f"{path}: begins with {lines[0][:60] if lines else ''!r}; {FORMATS} is right")


def main(source, target):
    rows = sorted(operations(Path(source)), key=lambda row: row[1])
    if not rows:
        sys.exit(f"{source}: holds no GPU operation")
    with open(target, "w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    print(f"{len(rows)} operations written to {target}")


if __name__ == "__main__":
    main(*sys.argv[1:])
