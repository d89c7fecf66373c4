"""Where pages are printed."""

from __future__ import annotations

from rich.console import Console


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """The reader went away: for the command to decide, which ends quietly."""
        raise BrokenPipeError


def wide_console() -> Console:
    """Stdout; a pipe gets lines as long as they need to be instead of 80 columns."""
    console = _Console(highlight=False, markup=False)
    return console if console.is_terminal else _Console(width=240, highlight=False, markup=False)
