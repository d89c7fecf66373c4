"""On disk, per GPU: that its clocks may be locked by us, and that they were released again.

A guardian holds its GPU's record for as long as it lives (flock), so a second one is refused. A
record whose last word is "locking", and which nobody holds, is what ``kdvfs hw reset`` repairs: both
runner and guardian were killed, or the machine lost power.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kdvfs_hw.journal import Journal
from kdvfs_sim.core.errors import DeviceError
from kdvfs_sim.core.version import __version__

NOTICE: Final = (
    "the driver cannot tell which clocks were locked before: at the end they are left to the driver. "
    "If this GPU's owner had locked them (nvidia-smi -lgc, -lmc), they must lock them again."
)
ALLOW_OPTION: Final = "--allow-clock-control"
_SUFFIX: Final = ".locks.jsonl"
_N_TRIES: Final = 20
_PAUSE_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """A GPU whose clocks a run may have left locked. ``guardian``: the process that still sees to it."""

    uuid: str
    reference: str
    since_unix_s: float
    runner: int
    guardian: int | None
    path: Path


class LockRecord:
    """The record of one GPU, held by this process until ``close``."""

    def __init__(self, folder: Path, uuid: str) -> None:
        """Raises DeviceError if another process holds it, or if it cannot be written."""
        self.uuid = uuid
        self.path = folder / f"{uuid}{_SUFFIX}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DeviceError(
                f"{folder}: cannot be made ({error.strerror}); set KDVFS_STATE_DIR to a folder of yours"
            ) from None
        self._journal = Journal(self.path)
        for _ in range(_N_TRIES):  # somebody may be looking, or a guardian just on its way out
            try:
                return self._journal.hold()
            except BlockingIOError:
                time.sleep(_PAUSE_S)
        last = _last(self._journal, "armed") or {}
        self._journal.close()
        raise DeviceError(
            f"{uuid}: another run controls this GPU (process {last.get('runner')}, guardian "
            f"{last.get('guardian')}): wait for it or stop it"
        )

    def armed(self, *, reference: str, runner: int) -> None:
        """Note who takes control."""
        self._note("armed", reference=reference, runner=runner, guardian=os.getpid())

    def locking(self) -> None:
        """Note, durably and before it happens, that clocks will be locked."""
        self._note("locking")

    def released(self, outcome: str, *, complete: bool, why: str) -> None:
        """Note what became of the release; an incomplete one leaves the record unfinished."""
        self._note("released" if complete else "not released", outcome=outcome, why=why)

    def unfinished(self) -> bool:
        """Whether clocks may still be locked by an earlier run."""
        return _is_open(self._journal)

    def close(self) -> None:
        """Let go of the record."""
        self._journal.close()

    def _note(self, event: str, **fields: Any) -> None:
        record = {"event": event, "unix_s": round(time.time(), 3), "kdvfs": __version__, **fields}
        self._journal.append(record, durable=True)


def state_folder() -> Path:
    """Where records live: KDVFS_STATE_DIR, for root /var/lib/kdvfs, else the user's state folder."""
    named = os.environ.get("KDVFS_STATE_DIR")
    if named:
        return Path(named)
    if os.geteuid() == 0:
        return Path("/var/lib/kdvfs")
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "kdvfs"


def find_unfinished(folder: Path) -> tuple[Unfinished, ...]:
    """Every GPU whose record in ``folder`` says that its clocks may be locked, now guarded or not."""
    return tuple(
        found for path in sorted(folder.glob(f"*{_SUFFIX}")) if (found := _read_unfinished(path)) is not None
    )


def unfinished_record(folder: Path, uuid: str) -> Unfinished | None:
    """The same for one GPU. Raises DeviceError if its record may not be read."""
    path = folder / f"{uuid}{_SUFFIX}"
    return _read_unfinished(path) if path.exists() else None


def _read_unfinished(path: Path) -> Unfinished | None:
    journal = Journal(path, read_only=True)
    try:
        armed = _last(journal, "armed")
        if armed is None or not _is_open(journal):
            return None
        try:
            journal.hold()
            guardian = None
        except BlockingIOError:
            guardian = int(armed["guardian"])
        return Unfinished(
            uuid=path.name.removesuffix(_SUFFIX),
            reference=armed["reference"],
            since_unix_s=armed["unix_s"],
            runner=int(armed["runner"]),
            guardian=guardian,
            path=path,
        )
    finally:
        journal.close()


def _is_open(journal: Journal) -> bool:
    events = [record["event"] for record in journal.read(0)[0]]
    relevant = [event for event in events if event in ("locking", "released")]
    return bool(relevant) and relevant[-1] == "locking"


def _last(journal: Journal, event: str) -> dict[str, Any] | None:
    return next((record for record in reversed(journal.read(0)[0]) if record["event"] == event), None)
