"""The guardian: a small process that releases one GPU's clocks, whatever becomes of the run.

Started by ``kdvfs_hw.guardian`` as ``python -m kdvfs_hw.guardian_process FD``, in a session of its own
and deaf to the signals that end a run. It speaks JSON lines over the socket FD. The run's end shows
as the end of that socket, or as a change of this process's parent should a fork of the run still
hold it; silence longer than the lease counts as a hang.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Final

from kdvfs_hw.devices import open_device
from kdvfs_hw.guardian_line import Line
from kdvfs_hw.lock_record import LockRecord
from kdvfs_hw.nvml_control import Release, release_clocks
from kdvfs_hw.nvml_read import NvmlDevice
from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.core.errors import DeviceError, KdvfsError

_IGNORED: Final = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGPIPE")
_PARENT_POLL_S: Final = 0.25
_PAUSES_S: Final = (0.5, 2.0, 8.0)  # between attempts once nobody waits for the answer


class Guardian:
    """Watches one runner over ``line``, and releases the clocks of ``device`` when it has to."""

    def __init__(self, line: Line, device: NvmlDevice, record: LockRecord, *, lease_s: float) -> None:
        self.line = line
        self.device = device
        self.record = record
        self.lease_s = lease_s
        self.parent = os.getppid()
        self.believed: tuple[Clocks, ...] = ()  # what may be locked: the last change, and one in the making
        self.dirty = False
        self.revoked: str | None = None
        self.deadline_s = time.monotonic() + lease_s

    def watch(self) -> None:
        """Until the run has ended and the clocks are released, or cannot be."""
        while True:
            message = self.line.receive(min(_PARENT_POLL_S, self.lease_s / 4))
            if message is not None and not self._answer(message):
                return None
            if message is None and (self.line.ended or os.getppid() != self.parent):
                return self.give_up()
            if self.dirty and not self.revoked and time.monotonic() > self.deadline_s:
                self._revoke()

    def _answer(self, message: dict[str, Any]) -> bool:
        """Answer one message of the runner; whether there is more to come."""
        self.deadline_s = time.monotonic() + self.lease_s
        if message["do"] == "release":
            release = self._release("the run asked for it") if self.dirty else None
            complete = release is None or release.complete
            outcome = None if release is None else str(release)
            self.line.send({"seq": message["seq"], "release": outcome, "complete": complete})
            return not complete  # then the end of the run is another occasion
        if message["do"] == "before":
            self._expect(Clocks.parse(message["clocks"]))
        elif message["clocks"] is None:
            self._nothing_held()
        else:
            self.believed = (Clocks.parse(message["clocks"]),)
            if self.revoked:  # it may have locked them after we had released them
                self._release(self.revoked)
        self.line.send({"seq": message["seq"], "revoked": self.revoked})
        return True

    def _expect(self, clocks: Clocks) -> None:
        # without the first note nothing may be locked; a later one only says more exactly what
        with suppress(DeviceError) if self.dirty else nullcontext():
            self.record.locking(str(clocks))
        self.dirty = True
        self.believed = (*self.believed, clocks)

    def _nothing_held(self) -> None:
        if self.dirty:
            self.record.released("nothing was locked", complete=True, why="the driver refused")
        self.dirty, self.believed = False, ()

    def _revoke(self) -> None:
        self.revoked = f"no sign of life from the run for {self.lease_s:g} s"
        self._release(self.revoked)

    def give_up(self) -> None:
        """Release for a run that can no longer ask, a few times if the driver refuses."""
        if not self.dirty:
            return
        for pause_s in (*_PAUSES_S, None):
            if self._release("the run has ended without releasing").complete or pause_s is None:
                return
            time.sleep(pause_s)

    def _release(self, why: str) -> Release:
        release = release_clocks(self.device, self.believed)
        with suppress(DeviceError):  # a full disk must not end the attempts to release
            self.record.released(str(release), complete=release.complete, why=why)
        return release


def main(argv: list[str]) -> None:
    """Guard the run at the other end of the socket numbered ``argv[1]`` until its clocks are released."""
    for name in _IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    with suppress(OSError):  # only root may: the kernel should look elsewhere when memory runs out
        Path("/proc/self/oom_score_adj").write_text("-900")
    line = Line(socket.socket(fileno=int(argv[1])))
    order = line.receive(10.0)
    if order is None:
        return
    try:
        with open_device(order["reference"]) as opened:
            record = LockRecord(Path(order["folder"]), opened.device.uuid)
            if record.unfinished():
                raise DeviceError(
                    "an earlier run may have left the clocks of this GPU locked: first run "
                    f"kdvfs hw reset --device {opened.reference} --allow-clock-control"
                )
            record.armed(reference=opened.reference, runner=order["runner"])
            guardian = Guardian(line, opened.device, record, lease_s=order["lease_s"])
            line.send({"armed": os.getpid()})
            try:
                guardian.watch()
            except BaseException:
                guardian.give_up()
                raise
    except KdvfsError as error:
        line.send({"refused": str(error)})


if __name__ == "__main__":
    main(sys.argv)
