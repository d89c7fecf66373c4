"""``kdvfs hw reset``: leave clocks to the driver again, after a run whose guardian was killed too."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from kdvfs_hw.devices import EMULATED, OpenDevice, of_same_name, open_device, unfinished_runs
from kdvfs_hw.lock_record import ALLOW_OPTION, LockRecord, Unfinished
from kdvfs_hw.nvml_control import Release, release_clocks
from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.core.errors import DeviceError, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetOutcome:
    """One GPU: what became of its locks, or why nothing could be done."""

    uuid: str
    release: Release | None = None
    error: str | None = None

    @property
    def is_unmoved(self) -> bool:
        """The driver accepted without effect, or the GPU idles at the very clock it was locked at."""
        return self.release is not None and "unmoved" in (self.release.sm, self.release.mem)

    @property
    def complete(self) -> bool:
        return self.release is not None and self.release.complete


def reset(text: str | None, *, allowed: bool) -> tuple[ResetOutcome, ...]:
    """Release the clocks of the GPU that ``text`` names; None: of every GPU with an unfinished run.

    The name of an emulated GPU stands for every one of that name that a run did not finish with. A GPU
    whose guardian is alive is refused. Raises UsageError without ``allowed``, and as ``open_device`` does
    for a named GPU.
    """
    if not allowed:
        raise UsageError(f"changing clocks needs {ALLOW_OPTION}: kdvfs hw reset {ALLOW_OPTION}")
    runs, _ = unfinished_runs()
    if text is None:
        return tuple(_repaired(run) for run in runs)
    with open_device(text) as opened:
        uuid = opened.device.uuid
        folder = next((run.path.parent for run in runs if run.uuid == uuid), opened.record_folder)
        named = ResetOutcome(uuid=uuid, release=_reset(opened, folder))
    twins = [run for run in runs if run.uuid != uuid] if text.startswith(EMULATED) else []
    return (named, *(_repaired(run) for run in twins if of_same_name(text, run)))


def _repaired(run: Unfinished) -> ResetOutcome:
    try:
        with open_device(run.reference) as opened:
            return ResetOutcome(uuid=run.uuid, release=_reset(opened, run.path.parent))
    except DeviceError as error:
        return ResetOutcome(uuid=run.uuid, error=str(error))


def _reset(opened: OpenDevice, folder: Path) -> Release:
    with closing(LockRecord(folder, opened.device.uuid)) as record:
        believed = [Clocks.parse(clocks) for clocks in record.clocks()]
        record.armed(reference=opened.reference, runner=os.getpid())
        release = release_clocks(opened.device, believed)
        record.released(str(release), complete=release.complete, why="kdvfs hw reset")
    return release
