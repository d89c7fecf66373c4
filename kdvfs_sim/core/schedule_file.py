"""Schedules as JSON that a person can read and diff: one request a line, in order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, get_args

from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.core.documents import json_of
from kdvfs_sim.core.errors import InputError, ScheduleError
from kdvfs_sim.core.files import atomic_write, refuse_foreign, says_format
from kdvfs_sim.core.schedule import ClockRequest, Schedule
from kdvfs_sim.core.switching import PROTOCOLS, Boundary
from kdvfs_sim.core.version import __version__

FORMAT: Final = "kdvfs-schedule"
SCHEMA_VERSION: Final = 1
# what a request has in the file, and what it means where it is left out; a launch may not be
_REQUEST: Final = {"device": None, "stream": None, "launch": None, "offset_ns": 0, "clocks": None}


def is_schedule_file(path: Path) -> bool:
    """Was this file written by ``write_schedule``? Decides whether it may be replaced."""
    return says_format(path, FORMAT)


def write_schedule(schedule: Schedule, path: str | Path, *, about: dict[str, Any] | None = None) -> None:
    """Write atomically. ``about`` (GPU, trace, predicted metrics) is for people and later checks.

    Raises InputError for a protocol of no known name, which could not be read back, and if ``path`` cannot
    be written or is an existing file of another kind.
    """
    path = Path(path)
    if schedule.protocol not in PROTOCOLS:
        raise InputError(
            f"{path}: protocol {schedule.protocol!r} could not be read back; known: {', '.join(PROTOCOLS)}"
        )
    refuse_foreign(path, is_schedule_file, "a schedule")
    head = {
        "format": FORMAT,
        "schema_version": SCHEMA_VERSION,
        "kdvfs_version": __version__,
        "protocol": schedule.protocol,
        "boundary": schedule.boundary,
        "about": about or {},
    }
    lines = [
        json.dumps(
            {
                "device": r.device,
                "stream": r.stream,
                "launch": r.launch,
                "offset_ns": r.offset_ns,
                "clocks": str(r.clocks),
            }
        )
        for r in schedule.requests
    ]
    text = json.dumps(head, indent=1).removesuffix("\n}")
    body = ",\n  ".join(lines)
    with atomic_write(path) as file:
        file.write(f'{text},\n "requests": [\n  {body}\n ]\n}}\n'.encode())


def read_schedule(path: str | Path) -> Schedule:
    """Read what ``write_schedule`` wrote. Raises ScheduleError naming the place and what is right."""
    path = Path(path)
    where = str(path)
    try:
        document = json_of(path.read_bytes())
    except OSError as error:
        raise ScheduleError(where, error.strerror or str(error)) from None
    except ValueError as error:
        raise ScheduleError(
            where, f"is not JSON ({error}); write one with kdvfs optimize --out-dir"
        ) from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ScheduleError(where, "is not a schedule; write one with kdvfs optimize --out-dir")
    if document.get("schema_version") != SCHEMA_VERSION:
        raise ScheduleError(
            where,
            f"schema version {document.get('schema_version')!r}; this kdvfs reads version {SCHEMA_VERSION}",
        )
    protocol, boundary = document.get("protocol"), document.get("boundary")
    if protocol not in PROTOCOLS:
        raise ScheduleError(where, f"protocol {protocol!r}; known: {', '.join(PROTOCOLS)}")
    if boundary is None or boundary not in get_args(Boundary):
        raise ScheduleError(where, f"boundary {boundary!r}; known: {', '.join(get_args(Boundary))}")
    entries = document.get("requests")
    if not isinstance(entries, list):
        raise ScheduleError(where, "has no list 'requests'")
    requests = tuple(_request(entry, f"{where}: request {i}") for i, entry in enumerate(entries))
    return Schedule(requests=requests, protocol=protocol, boundary=boundary)


def read_about(path: str | Path) -> dict[str, Any]:
    """What the writer noted beside the requests: trace, GPU, policy; {} if nothing usable is there."""
    path = Path(path)
    about = json_of(path.read_bytes()).get("about")
    return about if isinstance(about, dict) else {}


def _request(entry: Any, where: str) -> ClockRequest:
    if not isinstance(entry, dict):
        raise ScheduleError(where, f"{entry!r} is not an object with launch and clocks")
    unknown = next((key for key in entry if key not in _REQUEST), None)
    if unknown is not None:
        raise ScheduleError(where, f"{unknown!r} says nothing here; a request has {', '.join(_REQUEST)}")
    numbers: dict[str, Any] = {
        key: entry.get(key, default) for key, default in _REQUEST.items() if key != "clocks"
    }
    for key, value in numbers.items():
        left_out = value is None and key in ("device", "stream")  # of a trace that has only one
        if not left_out and (isinstance(value, bool) or not isinstance(value, int)):
            raise ScheduleError(where, f"{key} is {value!r}; a whole number is right")
    clocks = entry.get("clocks")
    if not isinstance(clocks, str):
        raise ScheduleError(where, f"clocks is {clocks!r}; write for example sm=1410,mem=3201")
    try:
        return ClockRequest(clocks=Clocks.parse(clocks), **numbers)
    except InputError as error:
        raise ScheduleError(where, str(error)) from None
