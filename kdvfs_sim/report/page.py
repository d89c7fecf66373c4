"""Where pages are printed."""

from __future__ import annotations

from typing import Final

from rich.console import Console

# What results are flagged with, for people; JSON has the flags themselves.
FLAGS_IN_WORDS: Final[dict[str, str]] = {
    "cross_stream_unknown": "several streams and no synchronization records: what waits for what between "
    "streams is not known. At slower clocks times are too short, and savings too large, where one "
    "stream waits for another; PyTorch's profiler records it with enable_cuda_sync_events",
    "incomplete_trace": "kernels are known to be missing from the recording: totals are lower bounds",
    "overlap_energy_is_a_bound": "kernels overlap: they share the power in a way that the recording does not "
    "say, and the energy is a bound, not an estimate",
    "periodic_not_settled": "iterations do not repeat exactly, one carries over into the next: this is one",
    "requests_dropped": "some clock requests were overtaken by later ones and never took effect",
}


def in_words(flag: str) -> str:
    """A flag as a person reads it."""
    return FLAGS_IN_WORDS.get(flag, flag)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """The reader went away: for the command to decide, which ends quietly."""
        raise BrokenPipeError


def wide_console() -> Console:
    """Stdout; a pipe gets lines as long as they need to be instead of 80 columns."""
    console = _Console(highlight=False, markup=False)
    return console if console.is_terminal else _Console(width=240, highlight=False, markup=False)
