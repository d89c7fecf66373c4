"""An append-only file of records, shared by processes that may be killed at any instant.

One JSON object a line. A record is written by one ``write`` on a descriptor opened with O_APPEND,
which the kernel does not interleave with others. It starts and ends with a line break, so that the
remains of a write cut short (a full disk, a power loss) stay a line of their own; a line that is
not a whole JSON object is passed over. There are no locks: a stopped process blocks nobody.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kdvfs_sim.core.documents import json_of
from kdvfs_sim.core.errors import DeviceError


class Journal:
    """Appends records to ``path`` and reads those of all processes, each once."""

    def __init__(self, path: Path, *, read_only: bool = False, permissions: int = 0o600) -> None:
        self.path = path
        mode = os.O_RDONLY if read_only else os.O_RDWR | os.O_APPEND | os.O_CREAT
        try:
            self._descriptor = os.open(path, mode | os.O_CLOEXEC, permissions)
        except OSError as error:
            raise DeviceError(f"{path}: cannot be opened ({error.strerror})") from None

    def append(self, record: dict[str, Any], *, durable: bool = False) -> None:
        """Add one record, ``durable`` across a power loss. Raises DeviceError if it is not written whole."""
        line = b"\n" + json.dumps(record, separators=(",", ":")).encode() + b"\n"
        try:
            n_written = os.write(self._descriptor, line)
            if durable:
                os.fsync(self._descriptor)
        except OSError as error:
            raise DeviceError(f"{self.path}: cannot be written ({error.strerror})") from None
        if n_written != len(line):
            raise DeviceError(
                f"{self.path}: only {n_written} of {len(line)} bytes were written; is the disk full?"
            )

    def read(self, offset: int) -> tuple[list[dict[str, Any]], int]:
        """Whole records from ``offset`` on, and the offset to go on from."""
        size = os.fstat(self._descriptor).st_size
        if size <= offset:
            return [], offset
        data = os.pread(self._descriptor, size - offset, offset)
        end = data.rfind(b"\n") + 1
        return list(_records(data[:end])), offset + end

    def size(self) -> int:
        """Of the file as this process has it open, bytes."""
        return os.fstat(self._descriptor).st_size

    def set_aside(self, before: Path) -> Journal:
        """Rename the file to ``before``, unless somebody has, and go on in a new one: this one is closed."""
        try:
            self.hold()
            if os.path.samestat(os.fstat(self._descriptor), os.stat(self.path)):
                os.replace(self.path, before)
        except (BlockingIOError, FileNotFoundError):
            pass  # another process is at it
        fresh = Journal(self.path)
        self.close()
        return fresh

    def hold(self) -> None:
        """Keep other processes from holding this file until it is closed, or this process ends.

        Raises BlockingIOError if another one does. Appending and reading are not affected.
        """
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _records(data: bytes) -> Iterator[dict[str, Any]]:
    for line in data.split(b"\n"):
        if line.startswith(b"{"):
            try:
                record = json_of(line)
            except ValueError:
                continue  # cut short by a killed writer: never acknowledged to anybody
            yield record
