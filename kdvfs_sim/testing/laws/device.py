"""What has to hold of a Device (core.device).

The plug-in is a Device, or what opens one: called without arguments it gives a Device or a context manager.
The laws only read. Where the device is lost while it is read, there is no case.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from hypothesis import strategies as st

from kdvfs_sim.core.clocks import AUTO_CLOCKS, Auto
from kdvfs_sim.core.device import Device, Feature, Reading
from kdvfs_sim.core.errors import DeviceError, DeviceLostError, DeviceUnsupportedError
from kdvfs_sim.core.objects import theirs
from kdvfs_sim.testing.law import Raised, ask, assume, law, require

READS: Final[dict[str, Callable[[Device], Any]]] = {
    "observed_clocks()": lambda device: device.observed_clocks(),
    "energy_counter()": lambda device: device.energy_counter(),
    "power('instant')": lambda device: device.power("instant"),
    "power('average')": lambda device: device.power("average"),
    "throttle_reasons()": lambda device: device.throttle_reasons(),
}
FEATURES: Final = {
    "observed_clocks()": Feature.READ_CLOCKS,
    "energy_counter()": Feature.ENERGY_COUNTER,
    "power('instant')": Feature.INSTANT_POWER,
    "power('average')": Feature.AVERAGE_POWER,
    "throttle_reasons()": Feature.THROTTLE_REASONS,
}
names = st.sampled_from(sorted(READS))
moments = st.lists(st.tuples(names, st.integers(0, 3)), min_size=1, max_size=6)


@contextmanager
def opened(plugin: Any) -> Iterator[Device]:
    """The device itself, or what the plug-in opens for one case."""
    with ExitStack() as stack:
        device = plugin
        if not hasattr(plugin, "observed_clocks") or isinstance(plugin, type):
            device = ask(plugin)
        if hasattr(device, "__enter__"):
            device = stack.enter_context(device)
        yield device


def read(device: Device, name: str) -> Any:
    """One reading; no case where the value does not exist here."""
    try:
        return ask(READS[name], device)
    except Raised as raised:
        assume(not isinstance(raised.error, DeviceUnsupportedError | DeviceLostError))
        raise


@law("device", lambda _: names, total=True)
def a_reading_or_a_device_error(plugin: Any, name: str) -> None:
    """Every method returns a reading in the units of its fields, or raises a DeviceError."""
    with opened(plugin) as device:
        try:
            reading = READS[name](device)
        except DeviceError:
            return
        except BaseException as error:
            if not theirs(error):
                raise
            raise Raised(name, error) from error
        require(isinstance(reading, Reading), f"{name} returned {reading!r}, not a reading")
        for field, least in (("sm_mhz", 1), ("mem_mhz", 1), ("energy_mj", 0)):
            value = getattr(reading, field, least)
            require(
                type(value) is int and value >= least,
                f"{field} is {value!r}; a whole number from {least} is right",
            )
        watts = getattr(reading, "power_w", 0.0)
        require(0 <= watts < float("inf"), f"power_w is {watts!r}; a finite number of at least 0 is right")


@law("device", lambda _: moments)
def readings_carry_their_times(plugin: Any, script: list[tuple[str, int]]) -> None:
    """A reading's call began before it returned, within the time that the device's own clock showed around
    it."""
    with opened(plugin) as device:
        for name, wait_ms in script:
            device.time.sleep_ns(wait_ms * 1_000_000)
            before = device.time.now_ns()
            reading = read(device, name)
            after = device.time.now_ns()
            fine = before <= reading.called_ns <= reading.returned_ns <= after
            require(
                fine,
                f"{name} says it was called at {reading.called_ns} and returned at {reading.returned_ns}; "
                f"the device's clock showed {before} and {after}",
            )


@law("device", lambda _: st.lists(st.integers(0, 300), min_size=1, max_size=4))
def the_energy_counter_never_goes_back(plugin: Any, waits_ms: list[int]) -> None:
    """Of two readings of the energy counter the later one is at least the earlier one."""
    with opened(plugin) as device:
        last = read(device, "energy_counter()").energy_mj
        for wait_ms in waits_ms:
            device.time.sleep_ns(wait_ms * 1_000_000)
            now = read(device, "energy_counter()").energy_mj
            require(now >= last, f"it fell from {last} mJ to {now} mJ")
            last = now


@law("device", lambda _: st.sampled_from(["instant", "average"]))
def power_says_of_which_kind_it_is(plugin: Any, kind: Any) -> None:
    """A power reading is of the kind that was asked for: one never stands in for the other."""
    with opened(plugin) as device:
        reading = read(device, f"power({kind!r})")
        require(reading.power_kind == kind, f"asked for {kind} power, it gave {reading.power_kind}")


@law("device", lambda _: names)
def capabilities_are_true(plugin: Any, name: str) -> None:
    """A feature that is said to be there can be read, one that is said to be missing cannot, and it says
    why."""
    with opened(plugin) as device:
        capability = ask(device.capabilities)[FEATURES[name]]
        require(bool(capability.words), f"{FEATURES[name]} is {capability.support!r} without words")
        try:
            READS[name](device)
        except DeviceLostError:
            assume(False)
        except DeviceError as error:
            require(
                capability.support != "yes", f"{FEATURES[name]} is said to be there; {name} raised: {error}"
            )
        else:
            require(
                capability.support == "yes",
                f"{name} works; {FEATURES[name]} is said to be {capability.support!r}",
            )


@law("device", lambda _: st.just(()), once=True)
def the_clock_table_can_be_asked_for(plugin: Any, _: tuple[()]) -> None:
    """The clock table is the same each time and holds (AUTO, AUTO); observed clocks are numbers within its
    range."""
    with opened(plugin) as device:
        table = ask(device.clock_table)
        require(AUTO_CLOCKS in table, "(AUTO, AUTO) is not in the clock table")
        require(ask(device.clock_table).pairs == table.pairs, "the clock table changed between two calls")
        listed = [pair.sm_mhz for pair in table if not isinstance(pair.sm_mhz, Auto)]
        sm_mhz = read(device, "observed_clocks()").sm_mhz
        fine = not listed or min(listed) <= sm_mhz <= max(listed)
        require(
            fine,
            f"it runs at an SM clock of {sm_mhz} MHz; {min(listed or [0])}..{max(listed or [0])} are listed",
        )


@law("device", lambda _: moments)
def its_identity_stays(plugin: Any, script: list[tuple[str, int]]) -> None:
    """UUID and name are the same whatever is read, and not empty."""
    with opened(plugin) as device:
        before = (device.uuid, device.name)
        require(all(before), f"uuid and name are {before}")
        for name, _ in script:
            read(device, name)
        after = (device.uuid, device.name)
        require(before == after, f"uuid and name were {before} and are {after}")


@law("device", lambda _: st.just(()), once=True)
def own_processes_are_not_foreign(plugin: Any, _: tuple[()]) -> None:
    """A process named as one's own is not listed among the foreign ones."""
    with opened(plugin) as device:
        pids = {process.pid for process in ask(device.foreign_processes, ())} | {os.getpid()}
        left = {process.pid for process in ask(device.foreign_processes, pids)}
        require(
            not left & pids, f"processes {sorted(left & pids)} were named as own and are listed as foreign"
        )
