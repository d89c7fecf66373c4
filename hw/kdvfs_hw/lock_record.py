"""On disk, per GPU: that its clocks may be locked by us, and that they were released again.

A guardian holds its GPU's record for as long as it lives (flock), so a second one is refused; and a
name in the kernel's abstract socket namespace, so that one with another state folder, or of another
user, is refused too. A record whose last word is "locking", and which nobody holds, is what
``kdvfs hw reset`` repairs: runner and guardian were both killed. Locks live in the driver, so a record
from before the machine's last start says nothing about the clocks of now.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kdvfs_hw.journal import Journal
from kdvfs_hw.process_state import state_of
from kdvfs_hw.timing import boot_id
from kdvfs_sim.core.errors import DeviceError
from kdvfs_sim.core.version import __version__

NOTICE: Final = (
    "the driver cannot tell which clocks were locked before: at the end they are left to the driver. "
    "If this GPU's owner had locked them (nvidia-smi -lgc, -lmc), they must lock them again."
)
ALLOW_OPTION: Final = "--allow-clock-control"
_RESET: Final = f"kdvfs hw reset {ALLOW_OPTION}"
SYSTEM_FOLDER: Final = Path("/var/lib/kdvfs")
_SUFFIX: Final = ".locks.jsonl"
_READABLE: Final = 0o644  # whoever looks at this machine may see that clocks were left locked
_NAME: Final = "\0kdvfs-guardian-"
_N_TRIES: Final = 20
_PAUSE_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """A GPU whose clocks a run may have left locked. ``guardian_pid``: the process that still sees to it.

    ``clocks``: every pair the run asked for, the last one unknown.
    """

    uuid: str
    reference: str
    since_unix_s: float
    runner_pid: int
    guardian_pid: int | None
    path: Path
    clocks: tuple[str, ...] = ()


class LockRecord:
    """The record of one GPU, held by this process until ``close``."""

    def __init__(self, folder: Path, uuid: str) -> None:
        """Raises DeviceError if another process holds it, or if it cannot be written."""
        self.uuid = uuid
        self.path = folder / f"{uuid}{_SUFFIX}"
        self._name: socket.socket | None = None
        self._noted: set[str] = set()
        make_folder(folder)
        self._journal = Journal(self.path, permissions=_READABLE)
        for _ in range(_N_TRIES):  # somebody may be looking, or a guardian just on its way out
            with suppress(BlockingIOError):
                self._journal.hold()
                self._name = _take_name(uuid)
                return
            time.sleep(_PAUSE_S)
        last = _last_armed(self._journal) or {}
        is_ours = self._is_held()
        self._journal.close()
        if is_ours:
            raise DeviceError(
                in_use(uuid, last.get("runner", 0), last.get("guardian", 0), last.get("unix_s"))
            )
        raise DeviceError(
            f"{uuid}: another run controls this GPU (guardian {_who_has(uuid)}, of another user "
            "or with another KDVFS_STATE_DIR): wait for it or stop it"
        )

    def armed(self, *, reference: str, runner: int) -> None:
        """Note who takes control."""
        self._note("armed", reference=reference, runner=runner, guardian=os.getpid(), boot=boot_id())

    def locking(self, clocks: str) -> None:
        """Note, before it happens, that clocks will be locked; each pair once, the first durably."""
        if clocks not in self._noted:
            self._note("locking", durable=not self._noted, clocks=clocks)
            self._noted.add(clocks)

    def released(self, outcome: str, *, complete: bool, why: str) -> None:
        """Note what became of the release; an incomplete one leaves the record unfinished."""
        self._note("released" if complete else "not released", outcome=outcome, why=why)
        if complete:
            self._noted.clear()

    def unfinished(self) -> bool:
        """Whether clocks may still be locked by an earlier run."""
        return bool(_open_since(self._journal))

    def clocks(self) -> tuple[str, ...]:
        """What may still be locked by an earlier run."""
        return _clocks(self._journal)

    def close(self) -> None:
        """Let go of the record."""
        if self._name is not None:
            self._name.close()
        self._journal.close()

    def _is_held(self) -> bool:
        try:
            self._journal.hold()
        except BlockingIOError:
            return True
        return False

    def _note(self, event: str, *, durable: bool = True, **fields: Any) -> None:
        record = {"event": event, "unix_s": round(time.time(), 3), "kdvfs": __version__, **fields}
        self._journal.append(record, durable=durable)


def make_folder(folder: Path) -> None:
    """Raises DeviceError, with what to do, if there is none and none can be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DeviceError(
            f"{folder}: cannot be made ({error.strerror}); set KDVFS_STATE_DIR to a folder of yours"
        ) from None


def _take_name(uuid: str) -> socket.socket | None:
    """A name that one process on this machine can have, and that ends with it; None where there is no such.

    Raises BlockingIOError if it is taken.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    mine = socket.socket(socket.AF_UNIX)
    try:
        mine.bind(_NAME + uuid)
        mine.listen()  # so that others can ask who has it
        return mine
    except OSError as error:
        mine.close()
        if error.errno == errno.EADDRINUSE:
            raise BlockingIOError from None
        return None


def _who_has(uuid: str) -> str:
    with socket.socket(socket.AF_UNIX) as ask:
        ask.setblocking(False)
        try:
            ask.connect(_NAME + uuid)
        except OSError:
            return "unknown"
        return str(struct.unpack("3i", ask.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])


def state_folder() -> Path:
    """Where records are written: KDVFS_STATE_DIR, for root /var/lib/kdvfs, else the user's state folder."""
    named = os.environ.get("KDVFS_STATE_DIR")
    if named:
        return Path(named)
    if os.geteuid() == 0:
        return SYSTEM_FOLDER
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "kdvfs"


def state_folders() -> tuple[Path, ...]:
    """Where records are looked for: also where root's are, for who is not root."""
    if os.environ.get("KDVFS_STATE_DIR"):
        return (state_folder(),)
    return tuple(dict.fromkeys((state_folder(), SYSTEM_FOLDER)))


def find_unfinished(folders: Sequence[Path]) -> tuple[tuple[Unfinished, ...], tuple[str, ...]]:
    """Every GPU whose record says that its clocks may be locked, now guarded or not; and what is wrong with
    records that cannot be read."""
    found, problems = [], []
    for path in _records(folders):
        try:
            run = _read_unfinished(path)
        except DeviceError as error:
            problems.append(str(error))
            continue
        if run is not None:
            found.append(run)
    return tuple(found), tuple(problems)


def _records(folders: Sequence[Path]) -> Iterator[Path]:
    for folder in folders:
        with suppress(OSError):  # not there, or closed to this user: then nothing of theirs is
            yield from sorted(folder.glob(f"*{_SUFFIX}"))


def unfinished_record(folders: Sequence[Path], uuid: str) -> Unfinished | None:
    """The same for one GPU. Raises DeviceError if its record may not be read."""
    for folder in folders:
        path = folder / f"{uuid}{_SUFFIX}"
        found = _read_unfinished(path) if path.exists() else None
        if found is not None:
            return found
    return None


def refuse_locked(folders: Sequence[Path], uuid: str) -> None:
    """Raises DeviceError, with what to do, if a run controls these clocks or may have left them locked."""
    run = unfinished_record(folders, uuid)
    if run is None:
        return
    if run.guardian_pid is not None:
        raise DeviceError(in_use(uuid, run.runner_pid, run.guardian_pid, run.since_unix_s))
    raise DeviceError(
        f"{uuid}: an earlier run (process {run.runner_pid}) may have left clocks locked: "
        f"first run {remedy(run)}"
    )


def in_use(uuid: str, runner: int, guardian: int, since_unix_s: float | None) -> str:
    """That a guardian holds this GPU: which of run and guardian is alive, in which state, and what to do."""
    run, guard = state_of(runner, since_unix_s=since_unix_s), state_of(guardian, since_unix_s=since_unix_s)
    if guard == "has ended":  # it holds the record, so it lives: where this process cannot see it
        run = guard = "not to be seen from here; in another container?"
    head = f"{uuid}: another run controls this GPU (process {runner}: {run}; guardian {guardian}: {guard})"
    if guard == "stopped":
        return (
            f"{head}: something has stopped the guardian; let it go on (kill -CONT {guardian}), and it "
            f"releases the clocks if the run has ended; or end it (kill -KILL {guardian}), "
            f"and then run {_RESET}"
        )
    if guard == "running" and run == "has ended":
        return f"{head}: the guardian is about to release the clocks: try again in some seconds"
    if run == "stopped":
        return f"{head}: something has stopped the run; let it go on (kill -CONT {runner}), or end it"
    return f"{head}: wait for it or stop it"


def remedy(run: Unfinished) -> str:
    """The command that releases what a run left locked."""
    return f"kdvfs hw reset --device {run.reference} {ALLOW_OPTION}"


def _read_unfinished(path: Path) -> Unfinished | None:
    journal = Journal(path, read_only=True)
    try:
        armed = _last_armed(journal)
        if armed is None or not _open_since(journal):
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
            runner_pid=int(armed["runner"]),
            guardian_pid=guardian,
            path=path,
            clocks=_clocks(journal),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DeviceError(f"{path}: is not a record of ours ({type(error).__name__}: {error})") from None
    finally:
        journal.close()


def _open_since(journal: Journal) -> list[dict[str, Any]]:
    """The notes of locking since the last release, if the machine has not been restarted since."""
    notes: list[dict[str, Any]] = []
    boot = boot_id()
    for record in journal.read(0)[0]:
        match record.get("event"):
            case "armed":
                before, boot = boot, record.get("boot", boot_id())
                if boot != before:
                    notes.clear()
            case "locking":
                notes.append(record)
            case "released":
                notes.clear()
    return notes if boot == boot_id() else []


def _clocks(journal: Journal) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(n["clocks"]) for n in _open_since(journal) if "clocks" in n))


def _last_armed(journal: Journal) -> dict[str, Any] | None:
    return next((record for record in reversed(journal.read(0)[0]) if record.get("event") == "armed"), None)
