"""Changing clocks through NVML. The only file that names a function of the driver that changes anything.

Observe mode never imports it. A ``GuardedClockControl`` needs a guard that is told before and after
every change; the only one in this package is an armed guardian process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

from kdvfs_hw.driver_errors import TRANSIENT_CODES
from kdvfs_hw.nvml_read import NvmlDevice
from kdvfs_hw.readback import NEAR_MHZ
from kdvfs_sim.core.clocks import AUTO, AUTO_CLOCKS, ClockMhz, Clocks
from kdvfs_sim.core.device import AcceptedRequest, Feature
from kdvfs_sim.core.errors import DeviceError, DevicePermissionError, DeviceUnsupportedError, DriverError

Domain: TypeAlias = Literal["sm", "mem"]
Outcome: TypeAlias = Literal["moved", "highest", "accepted", "not supported", "unmoved", "refused"]
_DOMAINS: Final[tuple[Domain, ...]] = ("sm", "mem")
_SET: Final[dict[Domain, str]] = {
    "sm": "nvmlDeviceSetGpuLockedClocks",
    "mem": "nvmlDeviceSetMemoryLockedClocks",
}
_RESET: Final[dict[Domain, str]] = {
    "sm": "nvmlDeviceResetGpuLockedClocks",
    "mem": "nvmlDeviceResetMemoryLockedClocks",
}
_CHANGES: Final = frozenset((*_SET.values(), *_RESET.values()))
_FEATURE: Final[dict[Domain, Feature]] = {"sm": Feature.LOCK_SM, "mem": Feature.LOCK_MEM}
_N_TRIES: Final = 5
_FIRST_PAUSE_NS: Final = 50_000_000
_VERIFY_NS: Final = 2_000_000_000
_POLL_NS: Final = 20_000_000


class Guard(Protocol):
    """Who sees to it that clocks are released; told what is about to be asked, then what may be locked.

    ``held`` is None as long as the driver has accepted nothing. Both raise DeviceError once the
    guard no longer does its work.
    """

    def before(self, clocks: Clocks, /) -> None: ...

    def after(self, held: Clocks | None, /) -> None: ...


class GuardedClockControl:
    """The ``ClockControl`` Protocol: a lock has minimum = maximum, AUTO is a released lock."""

    def __init__(self, device: NvmlDevice, guard: Guard) -> None:
        self.device = device
        self._guard = guard
        self._table = device.clock_table()
        self._requested: Clocks | None = None
        self._held: Clocks | None = None
        self._target: dict[Domain, ClockMhz | None] = {}
        self._forget()

    @property
    def requested(self) -> Clocks | None:
        """What was asked for last; None before the first request."""
        return self._requested

    @property
    def target(self) -> Clocks | None:
        """What the driver has accepted; None while a part of it is not known."""
        sm, mem = self._target["sm"], self._target["mem"]
        return None if sm is None or mem is None else Clocks(sm, mem)

    def request_clocks(self, clocks: Clocks, /) -> AcceptedRequest:
        """See ``ClockControl``."""
        self._table.index(clocks)
        wanted: dict[Domain, ClockMhz] = {"sm": clocks.sm_mhz, "mem": clocks.mem_mhz}
        changes = [domain for domain in _DOMAINS if wanted[domain] != self._target[domain]]
        if changes:
            self._tell(lambda: self._guard.before(clocks))
        self._requested = clocks
        issued_ns = returned_ns = self.device.time.now_ns()
        try:
            for domain in changes:
                self._change(domain, wanted[domain])
                returned_ns = self.device.time.now_ns()
        finally:
            if changes:
                self._tell(lambda: self._guard.after(self._held))
        return AcceptedRequest(
            clocks=clocks, n_calls=len(changes), issued_ns=issued_ns, returned_ns=returned_ns
        )

    def reset_clocks(self) -> AcceptedRequest:
        """Release both locks, whatever is believed about them."""
        self._forget()
        return self.request_clocks(AUTO_CLOCKS)

    def beat(self) -> None:
        """Show the guardian that this process is alive and still wants its clocks."""
        self._tell(lambda: self._guard.after(self._held))

    def _change(self, domain: Domain, mhz: ClockMhz) -> None:
        """One call of the driver. Unless it clearly refuses, and if interrupted, it may have happened."""
        held = self._held
        if isinstance(mhz, int):
            self._held = _with(held or AUTO_CLOCKS, domain, mhz)
        self._target[domain] = None
        try:
            _lock(self.device, domain, mhz)
        except (DevicePermissionError, DeviceUnsupportedError):
            self._held = held
            raise
        self._held = _with(self._held or AUTO_CLOCKS, domain, mhz)
        self._target[domain] = mhz

    def _forget(self) -> None:
        # locks from before cannot be read: the first request of a domain is always made
        capabilities = self.device.capabilities()
        for domain in _DOMAINS:
            cannot = capabilities[_FEATURE[domain]].support == "no"
            self._target[domain] = AUTO if cannot else None

    def _tell(self, what: Callable[[], None]) -> None:
        try:
            what()
        except DeviceError:
            # the guardian is gone, or has released the clocks, perhaps before our last change
            self._forget()
            if self._held is not None:
                release_clocks(self.device, {self._held})
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """What became of releasing both locks.

    ``moved``: the clock was at the lock and left it. ``highest``: it is the GPU's highest clock,
    nothing holds it down. ``accepted``: by the driver; no lock of ours showed in the clock before
    (none was made, or the GPU was idle or at its power cap), or a slowdown keeps the clock where the
    lock had it. ``unmoved``: accepted without effect.
    """

    sm: Outcome
    mem: Outcome
    words: str = ""

    @property
    def complete(self) -> bool:
        return not {self.sm, self.mem} & {"refused", "unmoved"}

    def __str__(self) -> str:
        return f"SM clock {self.sm}, memory clock {self.mem}" + (f" ({self.words})" if self.words else "")


def release_clocks(device: NvmlDevice, believed: Collection[Clocks]) -> Release:
    """Release both locks and read back whether the clocks left the ``believed`` locks.

    Never raises DriverError: a refusal is in the answer. Tries again where the driver's answer is
    one that passes. Takes up to a few seconds.
    """
    before = _read(device)
    highest = _highest(device)
    words: dict[Domain, str] = {}
    outcomes: dict[Domain, Outcome] = {}
    for domain in _DOMAINS:
        outcomes[domain] = _reset(device, domain, words)
        locks = {clocks.sm_mhz if domain == "sm" else clocks.mem_mhz for clocks in believed}
        if outcomes[domain] == "not supported" and any(isinstance(mhz, int) for mhz in locks):
            outcomes[domain] = "refused"  # it did take the lock
        lock = next((mhz for mhz in locks if isinstance(mhz, int) and _near(before, domain, mhz)), None)
        if outcomes[domain] != "accepted" or lock is None:
            continue
        if _near(highest, domain, lock):
            outcomes[domain] = "highest"
        elif _leaves(device, domain, lock) or (
            _reset(device, domain, words) == "accepted" and _leaves(device, domain, lock)
        ):
            outcomes[domain] = "moved"
        elif not _is_slowed(device):
            outcomes[domain] = "unmoved"
    return Release(sm=outcomes["sm"], mem=outcomes["mem"], words="; ".join(dict.fromkeys(words.values())))


def _with(clocks: Clocks, domain: Domain, mhz: ClockMhz) -> Clocks:
    return Clocks(mhz, clocks.mem_mhz) if domain == "sm" else Clocks(clocks.sm_mhz, mhz)


def _lock(device: NvmlDevice, domain: Domain, mhz: ClockMhz) -> None:
    if isinstance(mhz, int):
        device.ask(_SET[domain], mhz, mhz, may_change=_CHANGES)
    else:
        device.ask(_RESET[domain], may_change=_CHANGES)


def _reset(device: NvmlDevice, domain: Domain, words: dict[Domain, str]) -> Outcome:
    pause_ns = _FIRST_PAUSE_NS
    for i_try in range(_N_TRIES):
        try:
            _lock(device, domain, AUTO)
            words.pop(domain, None)
            return "accepted"
        except DeviceUnsupportedError as error:
            words[domain] = error.words
            return "not supported"
        except DriverError as error:
            words[domain] = error.words
            if error.code not in TRANSIENT_CODES or i_try == _N_TRIES - 1:
                return "refused"
        device.time.sleep_ns(pause_ns)
        pause_ns *= 2
    return "refused"


def _read(device: NvmlDevice) -> dict[Domain, int]:
    try:
        observed = device.observed_clocks()
    except DriverError:
        return {}
    return {"sm": observed.sm_mhz, "mem": observed.mem_mhz}


def _highest(device: NvmlDevice) -> dict[Domain, int]:
    try:
        sm_mhz, mem_mhz = device.max_clocks()
    except DriverError:
        return {}
    return {"sm": sm_mhz, "mem": mem_mhz}


def _is_slowed(device: NvmlDevice) -> bool:
    """Whether the driver names a reason, other than our lock, for a clock that does not rise."""
    try:
        return bool(device.throttle_reasons().slowed_by)
    except DriverError:
        return False


def _near(clocks: dict[Domain, int], domain: Domain, mhz: int) -> bool:
    return domain in clocks and abs(clocks[domain] - mhz) <= NEAR_MHZ


def _leaves(device: NvmlDevice, domain: Domain, lock: int) -> bool:
    """Whether the clock is read elsewhere within the time that the slowest known changes take."""
    deadline_ns = device.time.now_ns() + _VERIFY_NS
    while True:
        now = _read(device)
        if domain in now and not _near(now, domain, lock):
            return True
        if device.time.now_ns() >= deadline_ns:
            return False
        device.time.sleep_ns(_POLL_NS)
