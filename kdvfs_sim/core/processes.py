"""Processes that we start, and that nobody should have to clean up after."""

from __future__ import annotations


def usable_cores() -> int:
    """Cores that this process may run on; where the system does not say (macOS, Windows), all there are."""
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def end_with_parent() -> None:
    """In a process started by multiprocessing: leave interrupts to the parent, and end when it has ended,
    however it did."""
    import os
    import signal
    import threading
    from multiprocessing import parent_process

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def let_interrupts_in() -> None:
    """Before a wait that may be long: polars, once used, has system calls go on after an interrupt, so that a
    wait for a lock or a pipe would not see Ctrl-C before it is over."""
    import signal
    import threading

    if threading.current_thread() is threading.main_thread() and hasattr(signal, "siginterrupt"):
        signal.siginterrupt(signal.SIGINT, True)
