"""Writing files so that nobody ever sees half of one, and nobody loses a file of another kind."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from kdvfs_sim.core.errors import InputError

_HEAD: Final = 200
_FORMAT: Final = re.compile(rb'"format"\s*:\s*"([^"\\]*)"')


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """A binary file that appears at ``path`` complete or not at all.

    Written beside its target and renamed over it when the block ends without an exception; a symbolic link
    is followed. Raises InputError, one line, if the folder or the target cannot be written, and for a target
    that is no regular file: renaming over ``/dev/null`` would replace the device.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: cannot be written (it is not a regular file)")
    try:
        # mkstemp makes 0600 files; a result should be as readable as any file its owner creates
        umask = os.umask(0)
        os.umask(umask)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(name)
        if isinstance(error, OSError):
            raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None
        raise


def says_format(path: Path, name: str) -> bool:
    """Whether a JSON file names this ``format``, before any other, near its beginning: the rest may be long.

    A version does not tell kinds of files apart: all of ours have one.
    """
    try:
        with path.open("rb") as file:
            found = _FORMAT.search(file.read(_HEAD))
    except OSError:
        return False
    return found is not None and found.group(1) == name.encode()


def refuse_foreign(path: Path, is_ours: Callable[[Path], bool], what: str) -> None:
    """Raise InputError if ``path`` exists and is not the kind of file we would write there."""
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name a file for {what}")
    if path.exists() and path.stat().st_size > 0 and not is_ours(path):
        raise InputError(f"{path}: exists and is not {what}; choose another name or remove it first")


def remove_stale(paths: Iterable[Path]) -> list[Path]:
    """Remove what an earlier run left and this one does not write; returns what was there. Raises InputError.

    Beside this run's files they would be taken for part of it. The kinds were checked (``refuse_foreign``).
    """
    removed = []
    for path in paths:
        try:
            path.unlink()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise InputError(f"{path}: cannot be removed ({error.strerror or error})") from None
        removed.append(path)
    return removed
