"""Work for an emulated GPU: the launches of a trace, or of any list of kinds and durations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kdvfs_hw.emulator.behaviour import GAP
from kdvfs_hw.emulator.gpu import EmulatedGpu
from kdvfs_hw.workloads.base import Part, Ticket
from kdvfs_sim.core.errors import UsageError
from kdvfs_sim.core.kinds import KernelKind


@dataclass(frozen=True, slots=True)
class Operation:
    """``n`` launches of an emulated kind (a part of one if below 1), ``gap_ns`` after the one before."""

    kind: str
    n: float
    gap_ns: float = 0.0


class EmulatedWorkload:
    """A step of ``operations``, on the queue of an emulated GPU. ``kinds``: what each name stands for."""

    def __init__(
        self,
        gpu: EmulatedGpu,
        operations: Sequence[Operation],
        *,
        name: str = "emulated",
        kinds: Mapping[str, KernelKind] | None = None,
    ) -> None:
        self.name = name
        self._gpu = gpu
        self._operations = tuple(operations)
        self._gap_unit_ns = _gap_unit_ns(gpu)
        n_of: dict[str, float] = {}
        for each in operations:
            n_of[each.kind] = n_of.get(each.kind, 0.0) + each.n
        self.parts = tuple(
            Part(name=kind, kind=(kinds or {}).get(kind, KernelKind(name=kind)), n_per_step=n)
            for kind, n in n_of.items()
        )

    @property
    def n_ops(self) -> int:
        return len(self._operations)

    def launch(self, part: str | None, n: int, /) -> Ticket:
        if part is None:
            works = self._works(0, self.n_ops) if n else [(self.parts[0].name, 0.0)]
            return Ticket(self._gpu.launch_all(works, max(1, n)), n)
        if all(each.name != part for each in self.parts):
            raise UsageError(f"workload {self.name}: no part {part!r}")
        return Ticket(self._gpu.launch(part, n), n)

    def segment(self, first: int, stop: int, /) -> Ticket:
        return Ticket(self._gpu.launch_all(self._works(first, stop) or [(self.parts[0].name, 0.0)]), 1)

    def _works(self, first: int, stop: int) -> list[tuple[str, float]]:
        works: list[tuple[str, float]] = []
        for each in self._operations[first:stop]:
            if each.gap_ns and self._gap_unit_ns:
                works.append((GAP, each.gap_ns / self._gap_unit_ns))
            works.append((each.kind, each.n))
        return works

    def wait(self, ticket: Ticket, /) -> int:
        return self._gpu.wait(str(ticket.mark))

    def describe(self) -> Mapping[str, object]:
        return {"workload": self.name, "n_operations": self.n_ops, "emulated": True}


def _gap_unit_ns(gpu: EmulatedGpu) -> float:
    loads = gpu.spec.behaviour.loads
    return loads[GAP].duration_ns[0] if GAP in loads else 0.0


def default_workload(gpu: EmulatedGpu) -> EmulatedWorkload:
    """Ten launches of the first kind and ten of the last that are no gap."""
    kinds = [kind for kind in gpu.spec.behaviour.loads if kind != GAP]
    return EmulatedWorkload(gpu, [Operation(kinds[0], 10), Operation(kinds[-1], 10)], name="default")
