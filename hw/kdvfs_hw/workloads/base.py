"""What a runner needs of a workload, and the simplest one: any Python callable."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from kdvfs_sim.core.errors import KdvfsError, PluginError, UsageError
from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.core.objects import words


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A kernel that can be launched on its own. ``name`` is unique in the workload; a step launches it
    ``n_per_step`` times."""

    name: str
    kind: KernelKind
    n_per_step: float = 1


@dataclass(frozen=True, slots=True)
class Ticket:
    """Work handed to the GPU: ``n`` launches, perhaps more than asked for where they go in bundles.

    ``mark`` means something to the workload that gave it.
    """

    mark: object
    n: int


class Workload(Protocol):
    """A step that can be repeated, and its kernels, each launchable alone.

    ``parts`` in the order of the step; () where the step cannot be taken apart. ``launch`` queues at least
    ``n`` launches of a part, or ``n`` whole steps (None), and returns at once; with ``n`` 0 it is a
    mark in the queue. ``segment`` queues operations ``first`` <= i < ``stop`` of the ``n_ops`` of a
    step (0: it cannot be split). ``wait`` blocks until all work up to a ticket is done and returns when that
    was, in ns; only differences of such times have a meaning, and they are the GPU's, not the
    host's. One queue, in order; one thread at a time. ``describe`` gives sizes and software for the
    record. Raises DeviceError if the GPU fails. Promises nothing about the values computed.
    """

    @property
    def name(self) -> str: ...

    @property
    def parts(self) -> tuple[Part, ...]: ...

    @property
    def n_ops(self) -> int: ...

    def launch(self, part: str | None, n: int, /) -> Ticket: ...

    def segment(self, first: int, stop: int, /) -> Ticket: ...

    def wait(self, ticket: Ticket, /) -> int: ...

    def describe(self) -> Mapping[str, object]: ...


@contextmanager
def blamed(name: str) -> Iterator[None]:
    """What a user's code raises in the block is a PluginError that names the workload, file and line."""
    try:
        yield
    except KdvfsError:
        raise
    except (Exception, SystemExit) as error:
        raise PluginError(f"workload {name}: {words(error)}") from error


class CallableWorkload:
    """Any function as a step that cannot be taken apart.

    ``synchronize`` makes sure that what a step asked of the GPU is done; without it the function
    itself is taken to wait. ``launch`` returns when its steps are done; times are the host's.
    """

    parts: tuple[Part, ...] = ()
    n_ops = 0

    def __init__(
        self, step: Callable[[], object], *, name: str = "", synchronize: Callable[[], object] | None = None
    ) -> None:
        self.name = name or getattr(step, "__qualname__", "callable")
        self._step = step
        self._synchronize = synchronize

    def launch(self, part: str | None, n: int, /) -> Ticket:
        if part is not None:
            raise UsageError(f"workload {self.name}: has no parts, so none named {part!r}")
        with blamed(self.name):
            for _ in range(n):
                self._step()
            if n and self._synchronize is not None:
                self._synchronize()
        return Ticket(time.monotonic_ns(), n)

    def segment(self, first: int, stop: int, /) -> Ticket:
        raise UsageError(f"workload {self.name}: its step cannot be split")

    def wait(self, ticket: Ticket, /) -> int:
        assert isinstance(ticket.mark, int)
        return ticket.mark

    def describe(self) -> Mapping[str, object]:
        return {"workload": self.name}
