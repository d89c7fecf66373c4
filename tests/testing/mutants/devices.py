"""Devices that are right in everything but one law."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kdvfs_sim.core.device import Capability, Feature, GpuProcess
from kdvfs_sim.core.errors import DeviceError
from kdvfs_sim.testing.fake_device import FakeDevice
from tests.testing.mutants.mutant import mutant


def device(**changes: Any) -> Callable[[], FakeDevice]:
    return lambda: FakeDevice(**changes)


@mutant("device", "a_reading_or_a_device_error")
class ValueErrorDevice(FakeDevice):
    """Raises a ValueError where the counter has no value."""

    def capabilities(self) -> Any:
        return {**super().capabilities(), Feature.ENERGY_COUNTER: Capability("no", "none")}

    def energy_counter(self) -> Any:
        raise ValueError("no counter")


@mutant("device", "readings_carry_their_times")
class StampsLate(FakeDevice):
    """Stamps power readings with the time of the sample before."""

    def power(self, kind: Any, /) -> Any:
        return replace(super().power(kind), called_ns=self.time.now_ns() - 100_000_000)


@mutant("device", "the_energy_counter_never_goes_back")
class CounterWraps(FakeDevice):
    """Has an energy counter that wraps around at 10 J."""

    def energy_counter(self) -> Any:
        reading = super().energy_counter()
        return replace(reading, energy_mj=reading.energy_mj % 10_000)


@mutant("device", "power_says_of_which_kind_it_is")
class AveragesOnly(FakeDevice):
    """Gives the average where the instant power was asked for."""

    def power(self, kind: Any, /) -> Any:
        return super().power("average")


@mutant("device", "capabilities_are_true")
class Promises(FakeDevice):
    """Says that the counter is there, and has none."""

    def energy_counter(self) -> Any:
        raise DeviceError("not supported")


@mutant("device", "the_clock_table_can_be_asked_for")
class ForgetsAuto(FakeDevice):
    """Lists fewer clocks each time it is asked."""

    def clock_table(self) -> Any:
        table = super().clock_table()
        n = next(self.__dict__.setdefault("asked", itertools.count(1)))
        return replace(table, pairs=table.pairs[n:])


@mutant("device", "its_identity_stays")
class ChangesItsName(FakeDevice):
    """Has another name once its clocks were read."""

    def observed_clocks(self) -> Any:
        self.name = "another"
        return super().observed_clocks()


@mutant("device", "own_processes_are_not_foreign")
class ListsItself(FakeDevice):
    """Lists every process, also those named as own."""

    def foreign_processes(self, own_pids: Any = ()) -> Any:
        return (GpuProcess(pid=4711, memory_bytes=None),)
