"""A replayed timeline as Chrome trace JSON, which Perfetto (ui.perfetto.dev) opens.

Operations lie on one track per stream; SM clock, memory clock and power are counter tracks, clock
requests a track of their own. Times are microseconds with three decimals, written from whole
nanoseconds, so nothing is rounded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from kdvfs_sim.core.files import atomic_write, refuse_foreign, says_format
from kdvfs_sim.core.version import __version__
from kdvfs_sim.replay.timeline import Timeline

FORMAT: Final = "kdvfs-timeline"
REQUESTS_TRACK = -1


def is_timeline_file(path: Path) -> bool:
    """Was this file written by ``write_perfetto``?"""
    return says_format(path, FORMAT)


def write_perfetto(timeline: Timeline, path: str | Path, *, title: str = "") -> None:
    """Write atomically. Raises InputError if ``path`` cannot be written or holds something else."""
    path = Path(path)
    refuse_foreign(path, is_timeline_file, "a timeline")
    with atomic_write(path) as file:
        head = json.dumps({"format": FORMAT, "kdvfs_version": __version__, "title": title})
        file.write(f'{{"otherData": {head}, "displayTimeUnit": "ns", "traceEvents": [\n'.encode())
        separator = b""
        for event in _events(timeline):
            file.write(separator + event.encode())
            separator = b",\n"
        file.write(b"\n]}\n")


def _events(timeline: Timeline) -> Iterator[str]:
    program = timeline.program
    for device in program.devices:
        yield _meta("process_name", device, None, f"GPU {device}")
        yield _meta("thread_name", device, REQUESTS_TRACK, "clock requests")
    for device, stream in program.streams:
        yield _meta("thread_name", device, stream, f"stream {stream}")
    for row in timeline.launches.iter_rows(named=True):
        kind = program.kinds[row["kind"]]
        yield _slice(
            row["device"],
            row["stream"],
            row["start_ns"],
            row["end_ns"],
            kind.name,
            {"launch": row["launch"], "category": kind.category, "energy_above_idle_j": row["energy_j"]},
        )
    for row in timeline.switches.iter_rows(named=True):
        end_ns = row["landed_ns"] if row["landed_ns"] is not None else timeline.time_ns
        yield _slice(
            row["device"],
            REQUESTS_TRACK,
            row["requested_ns"],
            max(end_ns, row["requested_ns"]),
            f"sm={_clock(row['new_sm_mhz'])},mem={_clock(row['new_mem_mhz'])}",
            {"landed": row["landed_ns"] is not None, "host_call_ns": row["host_call_ns"]},
        )
    yield from _counters(timeline)


def _counters(timeline: Timeline) -> Iterator[str]:
    columns = {
        "SM clock (MHz)": "effective_sm_mhz",
        "memory clock (MHz)": "effective_mem_mhz",
        "power (W)": "power_w",
    }
    last: dict[tuple[int, str], Any] = {}
    for row in timeline.intervals.iter_rows(named=True):
        for name, column in columns.items():
            value = row[column]
            # a clock left to the driver has no number to draw: the track holds its last one
            if value is not None and last.get((row["device"], name)) != value:
                last[row["device"], name] = value
                yield _counter(row["device"], row["start_ns"], name, value)
    for (device, name), value in last.items():
        yield _counter(device, timeline.time_ns, name, value)


def _slice(pid: int, tid: int, start_ns: int, end_ns: int, name: str, args: dict[str, Any]) -> str:
    return (
        f'{{"ph": "X", "pid": {pid}, "tid": {tid}, "ts": {_us(start_ns)}, "dur": {_us(end_ns - start_ns)}, '
        f'"name": {json.dumps(name)}, "args": {json.dumps(args)}}}'
    )


def _counter(pid: int, time_ns: int, name: str, value: float) -> str:
    return (
        f'{{"ph": "C", "pid": {pid}, "ts": {_us(time_ns)}, "name": {json.dumps(name)}, '
        f'"args": {{"value": {value}}}}}'
    )


def _meta(what: str, pid: int, tid: int | None, name: str) -> str:
    track = "" if tid is None else f'"tid": {tid}, '
    return f'{{"ph": "M", "pid": {pid}, {track}"name": "{what}", "args": {{"name": {json.dumps(name)}}}}}'


def _us(time_ns: int) -> str:
    sign = "-" if time_ns < 0 else ""
    return f"{sign}{abs(time_ns) // 1000}.{abs(time_ns) % 1000:03d}"


def _clock(mhz: int | None) -> str:
    return "auto" if mhz is None else str(mhz)
