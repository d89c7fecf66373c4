"""``kdvfs hw reset``: leave clocks to the driver again, after a run whose guardian was killed too."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass

from kdvfs_hw.devices import OpenDevice, open_device
from kdvfs_hw.lock_record import ALLOW_OPTION, LockRecord, find_unfinished, state_folder
from kdvfs_hw.nvml_control import Release, release_clocks
from kdvfs_sim.core.errors import DeviceError, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetOutcome:
    """One GPU: what became of its locks, or why nothing could be done."""

    uuid: str
    release: Release | None = None
    error: str | None = None

    @property
    def complete(self) -> bool:
        return self.release is not None and self.release.complete


def reset(text: str | None, *, allowed: bool) -> tuple[ResetOutcome, ...]:
    """Release the clocks of the GPU that ``text`` names; None: of every GPU with an unfinished run.

    A GPU whose guardian is alive is refused. Raises UsageError without ``allowed``, and as
    ``open_device`` does for a named GPU.
    """
    if not allowed:
        raise UsageError(f"changing clocks needs {ALLOW_OPTION}: kdvfs hw reset {ALLOW_OPTION}")
    if text is not None:
        with open_device(text) as opened:
            return (ResetOutcome(uuid=opened.device.uuid, release=_reset(opened)),)
    outcomes = []
    for run in find_unfinished(state_folder()):
        try:
            with open_device(run.reference) as opened:
                outcomes.append(ResetOutcome(uuid=run.uuid, release=_reset(opened)))
        except DeviceError as error:
            outcomes.append(ResetOutcome(uuid=run.uuid, error=str(error)))
    return tuple(outcomes)


def _reset(opened: OpenDevice) -> Release:
    with closing(LockRecord(opened.record_folder, opened.device.uuid)) as record:
        record.armed(reference=opened.reference, runner=os.getpid())
        release = release_clocks(opened.device, ())
        record.released(str(release), complete=release.complete, why="kdvfs hw reset")
    return release
