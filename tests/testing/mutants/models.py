"""Models of latency, power and switching that are right in everything but one law."""

from __future__ import annotations

from typing import Any

from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.core.errors import UnknownKernelError
from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.core.switching import SwitchCost
from tests.testing.mutants.mutant import mutant

LISTED = (KernelKind(name="a"), KernelKind(name="b"))


class FineLatency:
    kinds: tuple[KernelKind, ...] = ()

    def duration_ns(self, kind: KernelKind, clocks: Clocks, /) -> float:
        if self.kinds and kind not in self.kinds:
            raise UnknownKernelError(kind.name, "fine")
        return 1e9 / clocks.sm_mhz


@mutant("latency", "durations_are_positive")
class Zero(FineLatency):
    """Takes no time at high clocks."""

    def duration_ns(self, kind: KernelKind, clocks: Clocks, /) -> float:
        return max(0.0, 5000.0 - clocks.sm_mhz)


@mutant("latency", "same_answer_in_any_order")
class WarmsUp(FineLatency):
    """Slows down the more it is asked."""

    def __init__(self) -> None:
        self.last: Any = None

    def duration_ns(self, kind: KernelKind, clocks: Clocks, /) -> float:
        before, self.last = self.last, clocks
        return 1e9 / clocks.sm_mhz * (1.001 if before not in (None, clocks) else 1.0)

    def __reduce__(self) -> Any:
        return _with_last, (type(self), self.last)


def _with_last(cls: type, last: Any) -> Any:
    made = cls()
    made.last = last
    return made


@mutant("latency", "an_unknown_kernel_is_refused")
class KnowsEverything(FineLatency):
    """Lists two kinds and answers for any."""

    kinds = LISTED

    def duration_ns(self, kind: KernelKind, clocks: Clocks, /) -> float:
        return 1e9 / clocks.sm_mhz


@mutant("latency", "a_copy_answers_the_same")
class HoldsALambda(FineLatency):
    """Keeps a function that no other process can have."""

    def __init__(self) -> None:
        self.scale = lambda mhz: 1e9 / mhz


class FinePower:
    kinds: tuple[KernelKind, ...] = ()

    def busy_power_w(self, kind: KernelKind, clocks: Clocks, /) -> float:
        if self.kinds and kind not in self.kinds:
            raise UnknownKernelError(kind.name, "fine")
        return 50.0 + 0.1 * clocks.sm_mhz

    def idle_power_w(self, clocks: Clocks, /) -> float:
        return 50.0


@mutant("power", "busy_power_is_a_number_of_watts")
class BelowNothing(FinePower):
    """Extrapolates to negative power at low clocks."""

    def busy_power_w(self, kind: KernelKind, clocks: Clocks, /) -> float:
        return 0.1 * clocks.sm_mhz - 30.0


@mutant("power", "idle_power_is_a_number_of_watts")
class NoIdlePower(FinePower):
    """Has never measured idle power and says NaN."""

    def idle_power_w(self, clocks: Clocks, /) -> float:
        return float("nan") if clocks.sm_mhz > 1 else 0.0


@mutant("power", "same_answer_in_any_order")
class HeatsUp(FinePower):
    """Draws more after it was asked about other clocks."""

    def __init__(self) -> None:
        self.last: Any = None

    def busy_power_w(self, kind: KernelKind, clocks: Clocks, /) -> float:
        before, self.last = self.last, clocks
        return 50.0 + 0.1 * clocks.sm_mhz + (1.0 if before not in (None, clocks) else 0.0)

    def __reduce__(self) -> Any:
        return _with_last, (type(self), self.last)


@mutant("power", "an_unknown_kernel_is_refused")
class GuessesPower(FinePower):
    """Lists two kinds and answers for any."""

    kinds = LISTED

    def busy_power_w(self, kind: KernelKind, clocks: Clocks, /) -> float:
        return 100.0


@mutant("power", "a_copy_answers_the_same")
class ForgetsItsFit(FinePower):
    """Leaves its fitted offset behind when it is pickled."""

    def __init__(self, offset: float = 10.0) -> None:
        self.offset = offset

    def busy_power_w(self, kind: KernelKind, clocks: Clocks, /) -> float:
        return self.offset + 0.1 * clocks.sm_mhz

    def __reduce__(self) -> Any:
        return type(self), (0.0,)


class FineSwitching:
    def switch(self, old: Clocks, new: Clocks, /) -> SwitchCost:
        if old == new:
            return SwitchCost(host_call_ns=0, switching_ns=0)
        return SwitchCost(host_call_ns=1000, switching_ns=20_000)


@mutant("switching", "every_change_has_a_cost")
class FractionsOfANanosecond(FineSwitching):
    """Answers in float nanoseconds where the memory clock changes."""

    def switch(self, old: Clocks, new: Clocks, /) -> SwitchCost:
        if old.mem_mhz == new.mem_mhz:
            return super().switch(old, new)
        return SwitchCost(host_call_ns=1000, switching_ns=1234.5)  # type: ignore[arg-type]


@mutant("switching", "a_no_op_is_free")
class ChargesNoOps(FineSwitching):
    """Charges the call also where nothing changes."""

    def switch(self, old: Clocks, new: Clocks, /) -> SwitchCost:
        return SwitchCost(host_call_ns=1000, switching_ns=0 if old == new else 20_000)


@mutant("switching", "same_answer_in_any_order")
class DrawsALatency(FineSwitching):
    """Draws a new latency for every question."""

    def __init__(self) -> None:
        self.n = 0

    def switch(self, old: Clocks, new: Clocks, /) -> SwitchCost:
        self.n += 1
        return super().switch(old, new) if old == new else SwitchCost(host_call_ns=0, switching_ns=self.n)

    def __reduce__(self) -> Any:
        return _with_n, (type(self), self.n)


def _with_n(cls: type, n: int) -> Any:
    made = cls()
    made.n = n
    return made


@mutant("switching", "a_copy_answers_the_same")
class HoldsAnOpenFile(FineSwitching):
    """Keeps a file open, which cannot be sent anywhere."""

    def __init__(self) -> None:
        self.log = (line for line in ())
