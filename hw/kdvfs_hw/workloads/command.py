"""Any command as a workload: it runs once, and the GPU is watched from its start to its end."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kdvfs_hw.measure.loop import Reading
from kdvfs_hw.measure.observer import Observer
from kdvfs_sim.core.clocks import AUTO_CLOCKS
from kdvfs_sim.core.errors import UsageError

_POLL_S: Final = 0.05
_SOON_S: Final = 0.3
_END_S: Final = 5.0
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)


def run_command(
    command: Sequence[str],
    observer: Observer,
    *,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[Reading, int]:
    """Run ``command`` to its end; time and energy of all of it, and its exit code.

    Its output is its own. Energy is that of the whole counter periods inside, as power times time.
    Raises UsageError if it cannot be started; an interruption here, SIGTERM or SIGHUP end it first. ``say``
    takes what somebody who waits for that should know.
    """
    time_source = observer.device.time
    begun_ns = time_source.now_ns()
    try:
        process = subprocess.Popen(list(command))
    except OSError as error:
        raise UsageError(f"{command[0]}: cannot be started ({error.strerror or error})") from None
    with _ended_orderly():
        try:
            while process.poll() is None:
                observer.own_pids.update(_family(process.pid))
                observer.pause(_POLL_S)
        except BaseException:
            _end(process, say)
            raise
    ended_ns = time_source.now_ns()
    observer.pause(0.02)
    reading = Reading(
        part=None,
        clocks=AUTO_CLOCKS,
        n_launches=1,
        time_s=(ended_ns - begun_ns) * 1e-9,
        seen=observer.between(begun_ns, ended_ns),
    )
    return reading, process.returncode


@contextmanager
def _ended_orderly() -> Iterator[None]:
    """A signal that ends us ends the command too, and does not leave it running unwatched."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    # one that is ignored (nohup) stays ignored
    ours = [number for number in _ENDING if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _end(process: subprocess.Popen[bytes], say: Callable[[str], None]) -> None:
    process.terminate()
    try:
        process.wait(_SOON_S)
    except subprocess.TimeoutExpired:
        say(f"process {process.pid} has {_END_S:g} s to end; a second interruption kills it at once")
        try:
            process.wait(_END_S)
        except BaseException as error:  # in time or not, it does not outlive us
            process.kill()
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise


def _family(pid: int) -> set[int]:
    """A process and its descendants, as far as the system tells."""
    found, todo = {pid}, [pid]
    while todo:
        each = todo.pop()
        for task in _tasks(each):
            try:
                children = Path(f"/proc/{each}/task/{task}/children").read_text().split()
            except OSError:
                continue
            new = {int(child) for child in children} - found
            found |= new
            todo += new
    return found


def _tasks(pid: int) -> list[str]:
    try:
        return [path.name for path in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return []
