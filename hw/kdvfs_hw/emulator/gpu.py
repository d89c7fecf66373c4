"""One emulated GPU as a folder: any process that opens it sees the same device at the same time.

``device.json`` says what it is, ``requests.jsonl`` holds everything that was ever asked of it,
``calls.jsonl`` the driver calls that were made, for tests that look at who called what: the last of them,
where there were many. ``state.bin`` only saves time.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterable, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any, Final

from kdvfs_hw.emulator.behaviour import Domain
from kdvfs_hw.emulator.faults import check_value, parse_fault, parse_faults
from kdvfs_hw.emulator.snapshot import NAME as SNAPSHOT
from kdvfs_hw.emulator.snapshot import load_newer, save
from kdvfs_hw.emulator.spec import DeviceSpec, Loaded, load, save_new
from kdvfs_hw.emulator.state import State
from kdvfs_hw.journal import Journal
from kdvfs_hw.timing import WallTime, boot_id
from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.core.device import TimeSource
from kdvfs_sim.core.errors import DeviceError, InputError

_BY_THE_WAY: Final = ("requests.jsonl", "calls.jsonl", "calls.before.jsonl", SNAPSHOT)
_LONGEST_NAP_NS: Final = 5_000_000  # clocks may change meanwhile, and with them the end
_MAX_CALLS: Final = 4 << 20  # bytes, twice
_SHORTEST_NAP_NS: Final = 20_000
_FAR_BEHIND: Final = 65536  # bytes of the journal: then somebody may have kept a state of later
_SAVED_EVERY: Final = 100_000  # events, of which a busy core goes through as many in a second


class EmulatedGpu:
    """The device behind the emulated driver, and what an emulated workload talks to.

    Kernels are launched into one queue and run in order, as on a CUDA stream; how long they take
    follows the clocks while they run. What a process had queued goes when
    another opens the GPU and it has ended.
    """

    def __init__(self, folder: Path, *, time: TimeSource | None = None) -> None:
        self.folder = folder.resolve()
        self.time: TimeSource = time or WallTime()
        self.loaded: Loaded = load(folder / "device.json")
        if self.loaded.boot_id not in (boot_id(), "virtual"):
            raise DeviceError(f"{folder}: the machine has restarted since this emulated GPU was made")
        self.spec = self.loaded.spec
        self._requests = Journal(folder / "requests.jsonl")
        self._calls = Journal(folder / "calls.jsonl")
        self._tokens = count()
        self._numbers = {kind: i for i, kind in enumerate(self.spec.behaviour.kinds)}
        self._guard = threading.Lock()
        self._fold: State = self.spec.state(self.loaded.start_ns)
        self._ahead = self._fold  # the same, through what has happened by itself since the last record
        self._offset = 0
        self._n_saved = 0
        for pid in {work.pid for work in self.view().queue if not _is_alive(work.pid)}:
            self._record("drop", pid=pid)

    @classmethod
    def create(
        cls, folder: Path, spec: DeviceSpec, *, time: TimeSource | None = None, faults: Iterable[str] = ()
    ) -> EmulatedGpu:
        """Make the folder a GPU of this kind, or open the one that is there since this machine's start.

        ``faults``: as in ``parse_fault``, in force from the beginning.
        """
        time = time or WallTime()
        scripted = parse_faults(faults)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "device.json"
        if path.exists() and load(path).boot_id != boot_id():
            for stale in (path, *(folder / name for name in _BY_THE_WAY)):
                stale.unlink(missing_ok=True)
        loaded = Loaded(
            spec=spec,
            uuid=f"GPU-{uuid.uuid5(uuid.NAMESPACE_URL, folder.resolve().as_uri())}",
            start_ns=time.now_ns(),
            boot_id="virtual" if not isinstance(time, WallTime) else boot_id(),
        )
        is_new = not path.exists() and save_new(path, loaded)
        gpu = cls(folder, time=time)
        if is_new:
            for name, value in scripted.items():
                gpu._script(name, value)
        return gpu

    @property
    def uuid(self) -> str:
        return self.loaded.uuid

    def close(self) -> None:
        self._requests.close()
        self._calls.close()

    def view(self) -> State:
        """The device now, after every request that any process has made. A copy: do with it what you like."""
        now_ns = self.time.now_ns()
        with self._guard:
            self._catch_up()
            ahead = self._ahead.fork()
            ahead.advance_events(now_ns)
            self._ahead = ahead
            view = ahead.fork()
        view.advance(max(now_ns, view.t_ns))
        return view

    def _catch_up(self) -> None:
        """Take the records that have come since. Whatever interrupts this leaves the state before it."""
        size = self._requests.size()
        if size - self._offset > _FAR_BEHIND:
            found = load_newer(self.folder, self._fold, self._offset, size, self.loaded.start_ns)
            if found is not None:
                self._fold, self._offset = found
                self._ahead, self._n_saved = self._fold, self._fold.n_events
        records, offset = self._requests.read(self._offset)
        if not records:
            return
        # what was gone through already counts, unless somebody's record is of before it
        fold = (self._ahead if int(records[0]["t"]) >= self._ahead.t_ns else self._fold).fork()
        for record in records:
            fold.apply(record)
        self._fold = self._ahead = fold
        self._offset = offset
        if fold.n_events - self._n_saved > _SAVED_EVERY:
            self._n_saved = fold.n_events
            save(self.folder, fold, offset, self.loaded.start_ns)

    def locks(self) -> Clocks:
        """What is locked, which the driver never tells: AUTO in both parts if nothing is."""
        return self.view().locks

    def request(self, domain: Domain, mhz: int | None) -> None:
        """Lock a domain at a clock, or release it (None), as the driver's setters do."""
        if mhz is None:
            self._record("reset", domain=domain)
        else:
            self._record("set", domain=domain, mhz=mhz)

    def script(
        self, name: str, value: float | None = None, *, after_s: float = 0.0, for_s: float | None = None
    ) -> None:
        """Put a fault of ``FAULTS`` in force, from ``after_s`` on, for ``for_s`` or for good."""
        name, default = parse_fault(name)
        self._script(name, default if value is None else check_value(name, value), after_s, for_s)

    def _script(self, name: str, value: float, after_s: float = 0.0, for_s: float | None = None) -> None:
        self._record("fault", name=name, value=value, after_s=after_s, for_s=for_s)

    def heal(self, name: str) -> None:
        """End a fault, scripted or in force."""
        self._record("heal", name=parse_fault(name)[0])

    def launch(self, kind: str, n: float = 1) -> str:
        """Queue ``n`` launches of a kernel kind and return at once; with 0 it is an event to wait for.

        Returns the token of this work. Raises InputError for a kind that the GPU does not know.
        """
        return self.launch_all([(kind, n)])

    def launch_all(self, works: Sequence[tuple[str, float]], times: int = 1) -> str:
        """Queue several kinds, ``times`` over, in one record. Returns the token of the last of them.

        A step of a thousand kernels is one line to write and to read: else a busy machine would be too
        slow for the GPU that it emulates. Raises as ``launch``, also for no work at all.
        """
        for kind, n in works:
            self.spec.behaviour.load(kind)
            if not 0 <= n < float("inf"):
                raise InputError(f"emulated GPU: {n} launches; a finite number of at least 0 is right")
        if not works or times < 1:
            raise InputError("emulated GPU: nothing to launch; a launch of 0 is an event to wait for")
        token = f"{os.getpid()}.{self.time.now_ns()}.{next(self._tokens)}"
        numbered = [(self._numbers[kind], n) for kind, n in works]
        self._record("launch", token=token, works=numbered, times=times, pid=os.getpid())
        return token

    def wait(self, token: str) -> int:
        """Sleep until the work is done; when it ended, ns on this device's TimeSource.

        Raises DeviceError for work that is not queued and not among the last few thousand that ended.
        """
        while True:
            view = self.view()
            if token in view.ended:
                return view.ended[token]
            left_ns = view.time_left_ns(token)
            if left_ns is None:
                raise DeviceError(f"emulated GPU {self.uuid}: no work {token!r} is known")
            self.time.sleep_ns(round(min(max(left_ns, _SHORTEST_NAP_NS), _LONGEST_NAP_NS)))

    def log_call(self, name: str, args: Iterable[int] = ()) -> None:
        """Note a driver call. For ``calls``."""
        if self._calls.size() > _MAX_CALLS:
            self._calls = self._calls.set_aside(self.folder / "calls.before.jsonl")
        self._calls.append({"pid": os.getpid(), "call": name, "args": list(args)})

    def calls(self) -> list[dict[str, Any]]:
        """The driver calls so far, by all processes: pid, call, args. Of very many, the last."""
        before = self.folder / "calls.before.jsonl"
        found: list[dict[str, Any]] = []
        for path in (before, self.folder / "calls.jsonl"):
            if path.exists():
                with closing(Journal(path, read_only=True)) as journal:
                    found += journal.read(0)[0]
        return found

    def _record(self, what: str, **fields: Any) -> None:
        self._requests.append({"t": self.time.now_ns(), "do": what, **fields})


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
