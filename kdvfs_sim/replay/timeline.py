"""What happened in a replay, as tables: device intervals, launches and clock switches; and its energy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from kdvfs_sim.core.clocks import Auto, Clocks
from kdvfs_sim.core.errors import InvariantError

if TYPE_CHECKING:
    from kdvfs_sim.replay.device import Device
    from kdvfs_sim.replay.program import Program
    from kdvfs_sim.replay.states import States, StateTable
    from kdvfs_sim.replay.switcher import Change

Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class DeviceIntervals:
    """One device's states over time: (n_intervals,) arrays; ``state`` counts ``Timeline.states``.

    ``member_op`` and ``member_interval``: which operations run in which interval. ``changes``: those
    asked for, with the time each landed (None: not within this run). ``extra_energy_j``: of changes
    that landed.
    """

    device: int
    start_ns: Int64s
    end_ns: Int64s
    state: Int64s
    member_op: Int64s
    member_interval: Int64s
    changes: tuple[tuple[Change, int | None], ...]
    extra_energy_j: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Timeline:
    """A replayed run. Rows of ``clocks`` stand for clock pairs; tables are made when asked for.

    ``intervals_of``: by device. ``start_ns``, ``end_ns``: (n_ops,), of each operation of the program.
    ``time_ns``: end of the last operation.
    """

    program: Program
    clocks: tuple[Clocks, ...]
    states: StateTable
    intervals_of: tuple[DeviceIntervals, ...]
    start_ns: Int64s
    end_ns: Int64s
    time_ns: int

    @cached_property
    def launch_energy_j(self) -> Floats:
        """(n_ops,): what each operation adds to the idle floor; NaN where its power is not known."""
        energy = np.zeros(self.program.n_ops)
        for d in self.intervals_of:
            if not d.member_op.size:
                continue
            run = np.arange(d.member_op.size)
            is_first = np.concatenate(([True], d.member_interval[1:] != d.member_interval[:-1]))
            nth = run - np.maximum.accumulate(np.where(is_first, run, 0))
            power = self.states.increments_w[self.states.first[d.state[d.member_interval]] + nth]
            seconds = (d.end_ns - d.start_ns)[d.member_interval] * 1e-9
            energy += np.bincount(d.member_op, power * seconds, minlength=energy.size)
        return energy

    @cached_property
    def energy_j(self) -> float:
        """Energy of all devices from 0 to ``time_ns``; NaN where some power met is not known."""
        return sum(self._integral(d, self.states.power_w) + d.extra_energy_j for d in self.intervals_of)

    @cached_property
    def gross_energy_j(self) -> float:
        """What idle power, what kernels add to it and switches come to where none is taken off another: what
        the rounding of their sum is relative to."""
        return sum(self._integral(d, self.states.gross_w) + d.extra_energy_j for d in self.intervals_of)

    @staticmethod
    def _integral(d: DeviceIntervals, power_w: Floats) -> float:
        return float((power_w[d.state] * (d.end_ns - d.start_ns)).sum()) * 1e-9

    def unknown_power(self) -> str:
        """Why the energy is not known, or ''. Raises InvariantError if nothing says why."""
        if not math.isnan(self.energy_j):
            return ""
        for d in self.intervals_of:
            for i in np.flatnonzero(np.isnan(self.states.power_w[d.state])).tolist():
                kinds = {self.program.kinds[self.program.kind[op]].name for op in self._members(d, i)}
                what = f"kernel kind {min(kinds)!r}" if kinds else "the idle device"
                return f"no power is known for {what} at {self.clocks[self.states.effective[d.state[i]]]}"
        raise InvariantError("replay: the energy is NaN though every power is known")

    @staticmethod
    def _members(d: DeviceIntervals, interval: int) -> list[int]:
        first, stop = np.searchsorted(d.member_interval, (interval, interval + 1))
        return [int(op) for op in d.member_op[first:stop]]

    def check(self) -> None:
        """Intervals cover [0, time_ns) without gap or overlap, and energy booked three ways adds up.

        Raises InvariantError.
        """
        for d in self.intervals_of:
            edges_meet = bool((d.start_ns[1:] == d.end_ns[:-1]).all())
            whole = int((d.end_ns - d.start_ns).sum()) == self.time_ns
            if not (edges_meet and whole and bool((d.end_ns > d.start_ns).all())):
                raise InvariantError(
                    f"replay: intervals of device {d.device} do not cover [0, {self.time_ns})"
                )
        launches = float(self.launch_energy_j.sum())
        floor = sum(self._integral(d, self.states.floor_w) for d in self.intervals_of)
        extra = sum(d.extra_energy_j for d in self.intervals_of)
        booked, total = launches + floor + extra, self.energy_j
        # Where an idle device draws more than a busy one, large parts make a small sum.
        rounding = 1e-9 * self.gross_energy_j + 1e-12
        if abs(booked - total) > rounding:  # never of NaN
            raise InvariantError(
                f"replay: launches {launches} J + idle {floor} J + switches {extra} J "
                f"is not the total {total} J"
            )

    @property
    def overlaps(self) -> bool:
        """Did two operations ever run at once on a device?"""
        return any(bool((d.member_interval[1:] == d.member_interval[:-1]).any()) for d in self.intervals_of)

    # -- tables ------------------------------------------------------------------------------------

    @cached_property
    def launches(self) -> pl.DataFrame:
        """One row per operation: op (row of Trace.ops), device, stream, launch (number in its stream),
        kind, start_ns, end_ns, energy_j (what it adds to the idle floor; null where not known)."""
        program = self.program
        stream_of = np.asarray(program.streams, dtype=np.int64)
        return pl.DataFrame(
            {
                "op": program.row,
                "device": stream_of[program.stream, 0],
                "stream": stream_of[program.stream, 1],
                "launch": program.position,
                "kind": program.kind,
                "start_ns": self.start_ns,
                "end_ns": self.end_ns,
                "energy_j": self.launch_energy_j,
            }
        ).with_columns(pl.col("energy_j").fill_nan(None))

    @cached_property
    def intervals(self) -> pl.DataFrame:
        """One row between any two changes of a device's state, half-open: device, start_ns, end_ns, the
        requested_* and effective_* sm_mhz and mem_mhz (null: AUTO), n_running, power_w (null: unknown)."""
        parts = []
        for d in self.intervals_of:
            columns: dict[str, object] = {
                "device": np.full(d.state.size, d.device),
                "start_ns": d.start_ns,
                "end_ns": d.end_ns,
            }
            for what in ("requested", "effective"):
                rows = getattr(self.states, what)[d.state]
                columns[f"{what}_sm_mhz"] = self._mhz["sm_mhz"].gather(rows)
                columns[f"{what}_mem_mhz"] = self._mhz["mem_mhz"].gather(rows)
            columns["n_running"] = self.states.n_running[d.state]
            columns["power_w"] = pl.Series(self.states.power_w[d.state]).fill_nan(None)
            parts.append(pl.DataFrame(columns))
        return parts[0] if len(parts) == 1 else pl.concat(parts)

    @cached_property
    def switches(self) -> pl.DataFrame:
        """One row per change asked for: device, requested_ns, landed_ns (null: not within this run),
        old_*/new_* sm_mhz and mem_mhz (null: AUTO), host_call_ns, stall_ns, extra_energy_j."""
        rows = [
            {
                "device": d.device,
                "requested_ns": change.issued_ns,
                "landed_ns": landed_ns,
                **{
                    f"{when}_{domain}": self._mhz[domain][row]
                    for when, row in (("old", change.old), ("new", change.new))
                    for domain in ("sm_mhz", "mem_mhz")
                },
                "host_call_ns": change.returns_ns - change.issued_ns,
                "stall_ns": change.lands_ns - change.stall_from_ns,
                "extra_energy_j": change.extra_energy_j,
            }
            for d in self.intervals_of
            for change, landed_ns in d.changes
        ]
        clocks = {f"{when}_{domain}": pl.Int64 for when in ("old", "new") for domain in ("sm_mhz", "mem_mhz")}
        schema = {"device": pl.Int64, "requested_ns": pl.Int64, "landed_ns": pl.Int64, **clocks}
        schema |= {"host_call_ns": pl.Int64, "stall_ns": pl.Int64}
        return pl.DataFrame(rows, schema={**schema, "extra_energy_j": pl.Float64})

    @cached_property
    def _mhz(self) -> dict[str, pl.Series]:
        return {
            domain: pl.Series(
                [None if isinstance(mhz := getattr(c, domain), Auto) else mhz for c in self.clocks],
                dtype=pl.Int64,
            )
            for domain in ("sm_mhz", "mem_mhz")
        }


def build_timeline(
    program: Program, states: States, devices: Sequence[Device], start_ns: list[int], end_ns: list[int]
) -> Timeline:
    """From the logs of a run. Raises InvariantError if they contradict one another."""
    ends, table = np.asarray(end_ns, dtype=np.int64), states.table()
    time_ns = int(ends.max())
    timeline = Timeline(
        program=program,
        clocks=states.clocks,
        states=table,
        intervals_of=tuple(
            _intervals(program.devices[device.index], device, table, time_ns) for device in devices
        ),
        start_ns=np.asarray(start_ns, dtype=np.int64),
        end_ns=ends,
        time_ns=time_ns,
    )
    timeline.check()
    return timeline


def _intervals(number: int, device: Device, states: StateTable, time_ns: int) -> DeviceIntervals:
    start = np.asarray(device.log_ns, dtype=np.int64)
    state = np.asarray(device.log_state, dtype=np.int64)
    member_op = np.asarray(device.log_ops, dtype=np.int64)
    n_running = states.n_running[state]
    end = np.append(start[1:], time_ns)
    lasts = end > start  # operations of no length leave states of no length
    member_op = member_op[np.repeat(lasts, n_running)]
    start, end, state, n_running = start[lasts], end[lasts], state[lasts], n_running[lasts]
    landed = {id(change) for change in device.switcher.landed}
    return DeviceIntervals(
        device=number,
        start_ns=start,
        end_ns=end,
        state=state,
        member_op=member_op,
        member_interval=np.repeat(np.arange(state.size), n_running),
        changes=tuple(
            (change, change.lands_ns if id(change) in landed else None) for change in device.switcher.issued
        ),
        extra_energy_j=math.fsum(change.extra_energy_j for change in device.switcher.landed),
    )
