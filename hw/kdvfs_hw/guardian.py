"""The only way to a ClockControl: arm a guardian process first, so that clocks never stay locked.

    with open_device("GPU-...") as opened, guarded_clocks(opened, allowed=True) as control:
        control.request_clocks(Clocks(1410, AUTO))

Whatever ends the block, or the process, the guardian releases both locks and reads back.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

from kdvfs_hw.devices import OpenDevice
from kdvfs_hw.guardian_line import Line
from kdvfs_hw.lock_record import ALLOW_OPTION, NOTICE, LockRecord, make_folder, refuse_locked
from kdvfs_hw.process_state import state_of
from kdvfs_hw.timing import WallTime
from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.core.device import ClockControl, Feature
from kdvfs_sim.core.errors import (
    DeviceError,
    DevicePermissionError,
    DeviceUnsupportedError,
    InvariantError,
    UsageError,
)

DEFAULT_LEASE_S: Final = 30.0
_ARM_TIMEOUT_S: Final = 15.0
_ANSWER_TIMEOUT_S: Final = 5.0
_RELEASE_TIMEOUT_S: Final = 30.0
_SILENT_TIMEOUT_S: Final = 0.2
_UNWAITED: Final[list[subprocess.Popen[bytes]]] = []


@contextlib.contextmanager
def guarded_clocks(
    opened: OpenDevice,
    *,
    allowed: bool,
    lease_s: float = DEFAULT_LEASE_S,
    folder: Path | None = None,
    say: Callable[[str], None] | None = None,
) -> Iterator[ClockControl]:
    """Control over one GPU's clocks while the block runs; afterwards they are the driver's again.

    ``allowed``: the user's explicit consent. ``lease_s``: without a request or ``beat`` for this long the
    run counts as hung and the guardian releases the clocks. ``folder``: where the lock record lives.
    ``say`` takes what the user should know before the start (default: a line on stderr).

    Raises UsageError without consent; DevicePermissionError, DeviceUnsupportedError or DeviceError
    if the GPU is not fit to be controlled; DeviceError if the clocks could not be released.
    """
    if not allowed:
        raise UsageError(f"changing clocks needs {ALLOW_OPTION}: the option says that you may, and want to")
    folder = folder or opened.record_folder
    preflight(opened, folder)
    (say or _say)(f"{opened.device.uuid}: {NOTICE}")

    from kdvfs_hw.nvml_control import GuardedClockControl

    guardian = ArmedGuardian(opened, folder, lease_s)
    try:
        yield GuardedClockControl(opened.device, guardian)
    except BaseException as error:
        try:
            guardian.release()
        except DeviceError as unreleased:  # the first error stays the first
            error.add_note(str(unreleased))
            (say or _say)(str(unreleased))
        raise
    guardian.release()


def preflight(opened: OpenDevice, folder: Path) -> None:
    """Raises DeviceError, with what to do, unless this GPU is fit to be controlled now."""
    device = opened.device
    capabilities = device.capabilities()
    locks = [capabilities[Feature.LOCK_SM], capabilities[Feature.LOCK_MEM]]
    if all(lock.support == "no" for lock in locks):
        raise DeviceUnsupportedError(device.uuid, "lock clocks", 3, locks[0].words, locks[0].remedy)
    lacking = next((lock for lock in locks if lock.support == "needs rights"), None)
    if lacking is not None:
        raise DevicePermissionError(device.uuid, "lock clocks", 4, lacking.words, lacking.remedy)
    if not isinstance(device.time, WallTime):
        raise DeviceError(
            f"{device.uuid}: a guardian needs wall time; virtual time is for unit tests without one"
        )
    refuse_locked((folder, *opened.record_folders), device.uuid)
    others = device.foreign_processes() if capabilities[Feature.PROCESSES].support == "yes" else ()
    if others:
        pids = ", ".join(str(other.pid) for other in others)
        unseen = not all(Path(f"/proc/{other.pid}").exists() for other in others)
        raise DeviceError(
            f"{device.uuid}: in use by other processes ({pids}), whose work would change speed: "
            "wait for them or stop them"
            + (" (in a container one may be our own: start it with --pid=host)" if unseen else "")
        )


class ArmedGuardian:
    """A running guardian process, seen from the run: the ``Guard`` of a GuardedClockControl.

    Each call waits for the guardian's answer, so it knows of a lock before the lock exists. May be
    called from several threads. In a forked child it is of no use, and says so.
    """

    def __init__(self, opened: OpenDevice, folder: Path, lease_s: float) -> None:
        self._opened = opened
        self._folder = folder
        self._believed: set[Clocks] = set()  # what may be locked: the last change, and one in the making
        self._turn = threading.Lock()
        self._owner = os.getpid()
        self._n_sent = 0
        self._released = False
        self._silent = False
        make_folder(folder)
        ours, theirs = socket.socketpair()
        with theirs:
            # -P: nothing in the current folder may stand in for a module of the guardian
            command = [sys.executable, "-P", "-m", "kdvfs_hw.guardian_process", str(theirs.fileno())]
            try:
                with open(_log(folder), "ab") as log:
                    n_logged = log.tell()
                    self._process = subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        pass_fds=[theirs.fileno()],
                        start_new_session=True,
                    )
            except OSError as error:
                ours.close()
                raise DeviceError(
                    f"{opened.device.uuid}: no guardian, so no control of clocks: {_log(folder)}: "
                    f"{error.strerror}; set KDVFS_STATE_DIR to a folder of yours"
                ) from None
        self._line = Line(ours)
        self._line.send(
            {
                "reference": opened.reference,
                "folder": str(folder),
                "runner": self._owner,
                "lease_s": lease_s,
            }
        )
        answer = self._line.receive(_ARM_TIMEOUT_S)
        if answer is None or "refused" in answer:
            reason = self._why_not_started(_log(folder), n_logged) if answer is None else answer["refused"]
            if answer is None:  # nothing was locked: whatever holds it up, it is not needed any more
                self._process.kill()
            self._part(_ANSWER_TIMEOUT_S)
            raise DeviceError(f"{opened.device.uuid}: no guardian, so no control of clocks: {reason}")
        self.pid: int = answer["armed"]

    def before(self, clocks: Clocks, /) -> None:
        """Tell the guardian that ``clocks`` are about to be requested."""
        self._believed = {*self._believed, clocks}
        self._told("before", clocks)

    def after(self, held: Clocks | None, /) -> None:
        """Tell it what may be locked now, or that the run is alive."""
        self._told("after", held)
        self._believed = set() if held is None else {held}

    def release(self) -> None:
        """Have the clocks released; by this process if the guardian does not answer.

        Raises DeviceError if they may still be locked.
        """
        if self._released:
            return
        silent = self._silent or state_of(self._process.pid) == "stopped"
        answer = self._ask({"do": "release"}, _SILENT_TIMEOUT_S if silent else _RELEASE_TIMEOUT_S)
        self._released = True
        device = self._opened.device
        if answer is None or "release" not in answer:
            from kdvfs_hw.nvml_control import release_clocks

            release = release_clocks(device, self._believed)
            complete, outcome = release.complete, str(release)
            if complete:
                self._end_silent(outcome)
        else:
            complete, outcome = answer["complete"], answer["release"]
        # an incomplete release is tried again by the guardian alone, also when this process has ended
        self._part(_ANSWER_TIMEOUT_S if complete else 0.0)
        if not complete:
            raise DeviceError(
                f"{device.uuid}: clocks may still be locked: {outcome}; run "
                f"kdvfs hw reset --device {self._opened.reference} {ALLOW_OPTION}"
            )

    def _part(self, wait_s: float) -> None:
        self._line.close()
        try:
            self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            _UNWAITED.append(self._process)

    def _state(self) -> str:
        code = self._process.poll()
        if code is None:
            state = state_of(self._process.pid)
            return "stopped by something else" if state == "stopped" else state
        return f"killed by signal {-code}" if code < 0 else f"ended with code {code}"

    def _end_silent(self, outcome: str) -> None:
        """The clocks are released without it: a guardian that sleeps on would only hold the GPU."""
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_ANSWER_TIMEOUT_S)
        with suppress(DeviceError), closing(LockRecord(self._folder, self._opened.device.uuid)) as record:
            if record.unfinished():
                record.released(outcome, complete=True, why="the guardian did not answer")

    def _why_not_started(self, log: Path, n_logged: int) -> str:
        """What is known of a guardian that said nothing: its last word in the log, else its state."""
        with suppress(subprocess.TimeoutExpired):  # its line ends a little before it does
            self._process.wait(_SILENT_TIMEOUT_S)
        state, words = self._state(), ""
        with suppress(OSError), open(log, "rb") as file:
            file.seek(n_logged)
            words = file.read().decode(errors="replace").strip()
        if words:
            return f"it did not start ({state}): {words.splitlines()[-1].strip()} ({log})"
        hint = "is this machine too busy?" if state == "running" else "something outside must have done that:"
        return (
            f"it did not answer within {_ARM_TIMEOUT_S:g} s, and wrote nothing in {log} "
            f"(process {self._process.pid}: {state}); {hint} Try again"
        )

    def _told(self, what: str, clocks: Clocks | None) -> None:
        if self._released or os.getpid() != self._owner:
            raise InvariantError("clock control outlived its guardian, or went through a fork; arm a new one")
        answer = self._ask({"do": what, "clocks": clocks and str(clocks)}, _ANSWER_TIMEOUT_S)
        device = self._opened.device
        if answer is None:
            self._silent = True
            raise DeviceError(
                f"{device.uuid}: the guardian (process {self.pid}: {self._state()}) does not answer; "
                "the run has released the clocks by itself and ends"
            )
        trouble = answer.get("revoked") or answer.get("refused")
        if trouble:
            raise DeviceError(f"{device.uuid}: the guardian has released the clocks: {trouble}")

    def _ask(self, message: dict[str, Any], timeout_s: float) -> dict[str, Any] | None:
        with self._turn:
            self._n_sent += 1
            self._line.send({**message, "seq": self._n_sent})
            while True:
                answer = self._line.receive(timeout_s)
                # an answer to a question whose asker was interrupted is passed over
                if answer is None or answer.get("seq", self._n_sent) == self._n_sent:
                    return answer


def _log(folder: Path) -> Path:
    return folder / "guardian.log"


def _say(text: str) -> None:
    print(f"kdvfs: {text}", file=sys.stderr, flush=True)
