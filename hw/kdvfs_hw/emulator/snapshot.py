"""The state of an emulated GPU at a place in its journal, so that who comes later need not read it all.

It can always be made again from the journal: a missing, damaged or foreign one is passed over.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from kdvfs_hw.emulator.behaviour import Operating
from kdvfs_hw.emulator.faults import Fault
from kdvfs_hw.emulator.history import History
from kdvfs_hw.emulator.state import Landing, State, Work
from kdvfs_sim.core.clocks import AUTO, ClockMhz
from kdvfs_sim.core.documents import json_of

NAME: Final = "state.bin"
_PLAIN: Final = ("t_ns", "energy_j", "capped", "goal_sm_mhz", "temperature_c", "moves", "ended")


def save(folder: Path, state: State, offset: int, start_ns: int) -> None:
    """Write it whole; where that cannot be done, not at all."""
    head = {
        "offset": offset,
        "start_ns": start_ns,
        **{name: getattr(state, name) for name in _PLAIN},
        "in_force": {domain: _number(mhz) for domain, mhz in state.in_force.items()},
        "accepted": {domain: _number(mhz) for domain, mhz in state.accepted.items()},
        "pending": [{**asdict(each), "value": _number(each.value)} for each in state.pending],
        "queue": [[each.token, each.kind, each.n_left, each.pid] for each in state.queue],
        "faults": [asdict(each) for each in state.faults],
        "operating": asdict(state.operating),
    }
    draft = folder / f".{NAME}.{os.getpid()}"
    try:
        draft.write_bytes(json.dumps(head).encode() + b"\n" + state.history.to_bytes())
        os.replace(draft, folder / NAME)
    except OSError:
        with suppress(OSError):
            draft.unlink()


def load_newer(folder: Path, fresh: State, offset: int, size: int, start_ns: int) -> tuple[State, int] | None:
    """The state kept there and its place in the journal, if later than ``offset`` and within ``size``.

    ``fresh`` is a state of the same GPU, whose behaviour it takes.
    """
    try:
        with (folder / NAME).open("rb") as file:
            document = json_of(file.readline())
            if document["start_ns"] != start_ns or not offset < document["offset"] <= size:
                return None
            return _restored(fresh.fork(), document, file.read()), document["offset"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _restored(state: State, document: dict[str, Any], history: bytes) -> State:
    for name in _PLAIN:
        setattr(state, name, document[name])
    state.moves = [(t_ns, sm_mhz) for t_ns, sm_mhz in document["moves"]]
    state.in_force = {"sm": _clock(document["in_force"]["sm"]), "mem": _clock(document["in_force"]["mem"])}
    state.accepted = {"sm": _clock(document["accepted"]["sm"]), "mem": _clock(document["accepted"]["mem"])}
    state.pending = [Landing(**{**each, "value": _clock(each["value"])}) for each in document["pending"]]
    state.queue = [Work(*each) for each in document["queue"]]
    state.faults = [Fault(**each) for each in document["faults"]]
    state.operating = Operating(**document["operating"])
    state.history = History.from_bytes(history)
    return state


def _number(mhz: ClockMhz) -> int | None:
    return mhz if isinstance(mhz, int) else None


def _clock(mhz: int | None) -> ClockMhz:
    return AUTO if mhz is None else mhz
