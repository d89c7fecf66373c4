"""The ``kdvfs`` command. Commands live one to a file and import their rooms when they run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from kdvfs_sim.core.errors import KdvfsError

OUR_BUG = 70


def main(argv: list[str] | None = None, *, app: Callable[[], Any] | None = None) -> None:
    """Run one command and exit with its code (docs/reference/errors.md).

    ``app`` makes the commands, if not those of ``kdvfs``. Never a traceback for a user's mistake: one
    line on stderr.
    """
    from kdvfs_sim.cli.app import build

    _open_streams()
    try:
        result = (app or build)()(args=argv, prog_name="kdvfs", standalone_mode=False)
        sys.stdout.flush()
    except KdvfsError as error:
        _fail(str(error), error.exit_code)
    except BrokenPipeError:
        # the reader of our output went away (kdvfs ... | head): not an error of ours
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        # every file of ours is written and read under its own name: what is left is stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _fail(f"stdout: cannot be written ({error.strerror or error})", 3)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except Exception as error:
        _usage_or_bug(error)
    else:
        sys.exit(result if isinstance(result, int) else 0)


def _open_streams() -> None:
    """Where the caller closed stdout or stderr: to nowhere, for processes that we start too. Else the next
    file or pipe that is opened would take its place."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, "w", closefd=False))  # noqa: SIM115


def _usage_or_bug(error: Any) -> None:
    # Typer carries its own copy of click, so its exceptions are known by what they offer
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):
        command = getattr(getattr(error, "ctx", None), "command_path", "kdvfs")
        _fail(f"{error.format_message()} (see {command} --help)", 2)
    if type(error).__name__ == "Abort" or _is_interrupt(error):
        _fail("interrupted", 130)
    if os.environ.get("KDVFS_DEBUG"):
        raise error
    kind = type(error).__name__
    _fail(f"our bug, please report it: {kind}: {error} (KDVFS_DEBUG=1 shows where)", OUR_BUG)


def _is_interrupt(error: BaseException | None) -> bool:
    """Interrupted on its way into compiled code, a call raises SystemError from KeyboardInterrupt."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__
    return error is not None


def _fail(message: str, code: int) -> None:
    print("kdvfs: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(code)
