"""Where pages are printed."""

from __future__ import annotations

from rich.console import Console


def wide_console() -> Console:
    """Stdout; a pipe gets lines as long as they need to be instead of 80 columns."""
    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(width=240, highlight=False, markup=False)
