"""Errors, sorted by what the reader of the message has to do next.

Every class passes all its fields to ``super().__init__`` and builds its text in ``__str__``:
SimPy, ``copy`` and ``pickle`` re-create an exception as ``type(e)(*e.args)``, and an error that
does not survive that turns into an unrelated ``TypeError``. ``tests/architecture`` rebuilds each.
"""

from __future__ import annotations

from typing import Final

INFEASIBLE_EXIT_CODE: Final = 4  # of the command line, where no schedule keeps the budget: no error, a status


class KdvfsError(Exception):
    """Base of every error this package raises on purpose. ``exit_code`` is the command line's."""

    exit_code = 70


class UsageError(KdvfsError):
    """A malformed option or a missing optional package: fix the command."""

    exit_code = 2


class InputError(KdvfsError, ValueError):
    """Fix the data. One line: where, which value, what is wrong with it, what would be right."""

    exit_code = 3


class PlacedError(InputError):
    """``where`` is a path, with a row or byte where known, or a place in a schedule."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(where, problem)
        self.where = where
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}"


class TraceFormatError(PlacedError):
    """A recording that cannot be read."""


class ScheduleError(PlacedError):
    """A schedule that does not fit its trace, or a schedule file that cannot be read."""


class UnknownGpuError(InputError, LookupError):
    """No entry of the GPU catalogue has this name."""

    def __init__(self, name: str, known: str) -> None:
        super().__init__(name, known)
        self.name = name
        self.known = known

    def __str__(self) -> str:
        return f"no GPU named {self.name!r} in the catalogue; known: {self.known}"


class UnsupportedClocksError(InputError):
    """Clocks that the GPU's table does not list. Never replaced silently by the nearest."""

    def __init__(self, clocks: str, device_name: str, nearest: str) -> None:
        super().__init__(clocks, device_name, nearest)
        self.clocks = clocks
        self.device_name = device_name
        self.nearest = nearest

    def __str__(self) -> str:
        return f"clocks {self.clocks} are not supported by {self.device_name}; nearest: {self.nearest}"


class NotApplicableError(InputError):
    """A method was asked for outside its stated domain (say, the fast evaluator on two streams)."""


class PluginError(KdvfsError):
    """Fix the plug-in: a model, optimizer, reader or device broke its contract."""

    exit_code = 5


class ContractError(PluginError):
    """What a plug-in returned is not what its Protocol promises."""

    def __init__(self, plugin: str, call: str, got: str, expected: str) -> None:
        super().__init__(plugin, call, got, expected)
        self.plugin = plugin
        self.call = call
        self.got = got
        self.expected = expected

    def __str__(self) -> str:
        return f"{self.plugin}: {self.call} returned {self.got}; expected {self.expected}"


class UnknownKernelError(PluginError, LookupError):
    """A model was asked about a kernel kind it knows nothing of."""

    def __init__(self, kernel: str, model: str) -> None:
        super().__init__(kernel, model)
        self.kernel = kernel
        self.model = model

    def __str__(self) -> str:
        return f"{self.model} has no answer for kernel {self.kernel!r}"


class DeviceError(KdvfsError, RuntimeError):
    """Fix the machine or its permissions."""

    exit_code = 6


class DriverError(DeviceError):
    """The GPU driver refused a call. Keeps its code and words; ``remedy`` says what to do next.

    The three subclasses are the refusals that callers tell apart; all others stay this class.
    """

    def __init__(self, device: str, call: str, code: int, words: str, remedy: str) -> None:
        super().__init__(device, call, code, words, remedy)
        self.device = device
        self.call = call
        self.code = code
        self.words = words
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.device}: {self.call}: {self.words} (code {self.code}); {self.remedy}"


class DevicePermissionError(DriverError):
    """The driver wants rights that this process does not have."""


class DeviceUnsupportedError(DriverError):
    """This GPU, driver or binding does not offer the call. The value is unknown, not 0."""


class DeviceLostError(DriverError):
    """The GPU can no longer be reached. Its clocks may still be locked."""


class ClocksNotReachedError(DeviceError):
    """The driver accepted a request, and the GPU does not run at it."""

    def __init__(self, device: str, requested: str, observed: str, waited_s: float, reasons: str) -> None:
        super().__init__(device, requested, observed, waited_s, reasons)
        self.device = device
        self.requested = requested
        self.observed = observed
        self.waited_s = waited_s
        self.reasons = reasons

    def __str__(self) -> str:
        return (
            f"{self.device}: clocks {self.requested} were accepted but not reached: observed {self.observed} "
            f"after {self.waited_s:.3g} s; the driver's reasons: {self.reasons or 'none'}"
        )


class InvariantError(KdvfsError):
    """Our bug. Please report it with the message."""
