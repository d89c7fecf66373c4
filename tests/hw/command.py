"""``kdvfs hw`` as a process, for tests that type it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from kdvfs_hw.process_state import state_of

COMMAND = (sys.executable, "-c", "from kdvfs_sim.cli import main; main()", "hw")


def kdvfs(
    *arguments: str, cwd: Path | None = None, timeout_s: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=timeout_s, check=False, cwd=cwd
    )


def heed_every_signal() -> None:
    """A test run in the background, or under nohup, hands its ignored signals down; a run would heed none."""
    for name in ("SIGHUP", "SIGINT", "SIGQUIT"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)


def start(*arguments: str, cwd: Path | None = None) -> subprocess.Popen[str]:
    """Start it, in a process group of its own."""
    return subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        start_new_session=True,
        preexec_fn=heed_every_signal,
    )


def stop(pid: int, timeout_s: float = 20) -> None:
    """Stop a process, and wait until it has: it still has to come to its turn for that."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + timeout_s
    while state_of(pid) == "running":
        assert time.monotonic() < deadline, f"process {pid} does not stop"
        time.sleep(0.005)
