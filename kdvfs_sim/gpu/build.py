"""A cost table from what is known of a GPU and the durations that a recording shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from kdvfs_sim.core.clocks import AUTO, AUTO_CLOCKS, ClockMhz, Clocks, ClockTable
from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.core.errors import InputError
from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.gpu.facts import GpuFacts, Level, with_auto
from kdvfs_sim.gpu.governor import Rows, cap_position, effective_position
from kdvfs_sim.gpu.model import AnalyticModel, analytic_model, default_limit_w, requested_positions


def cost_table(
    gpu: GpuFacts,
    kinds: Sequence[KernelKind],
    typical_duration_ns: npt.ArrayLike,
    *,
    recorded: Clocks = AUTO_CLOCKS,
    corner: Level = "nominal",
    power_limit_w: float | None = None,
    sm_clocks: Iterable[int] | None = None,
    untested: bool = False,
) -> CostTable:
    """What every kind costs at every clock of a GPU it was recorded on.

    Rows are the requests of ``gpu.clock_table``; (AUTO, AUTO) and every other row with AUTO takes
    the cells it resolves to. ``recorded`` is one of them. ``sm_clocks`` limits what a schedule may
    request, and so does the sweep that an entry was fitted to (``GpuFacts.offers``); rows that only
    matter as effective clocks stay. ``power_limit_w`` other than the default: recorded durations
    still belong to the default limit. ``untested`` offers memory clocks that are listed but that
    nobody is known to have locked. Other arguments as in ``analytic_model``. Raises
    UnsupportedClocksError for clocks the GPU does not list, InputError for a power limit outside
    its range and where ``analytic_model`` does.
    """
    model = analytic_model(gpu, kinds, typical_duration_ns, recorded=recorded, corner=corner)
    return tabulate_model(
        model, recorded=recorded, power_limit_w=power_limit_w, sm_clocks=sm_clocks, untested=untested
    )


def tabulate_model(
    model: AnalyticModel,
    *,
    recorded: Clocks = AUTO_CLOCKS,
    power_limit_w: float | None = None,
    sm_clocks: Iterable[int] | None = None,
    untested: bool = False,
) -> CostTable:
    """A model's answers for all its kinds at all clocks; arguments and errors as in ``cost_table``."""
    gpu = model.gpu
    requests = gpu.clock_table(untested=untested)
    cap_w = power_limit(gpu, power_limit_w)
    recorded_row = requests.index(recorded)
    requestable = np.array([gpu.offers(pair) for pair in requests])
    if sm_clocks is not None:
        wanted: set[ClockMhz] = {AUTO, *sm_clocks}
        for sm_mhz in wanted:
            requests.index(Clocks(sm_mhz, AUTO))
        requestable &= np.array([pair.sm_mhz in wanted for pair in requests])

    durations, powers, idle, asked_for = _cells(model, requests)
    effective = _effective(model, requests, powers, asked_for, cap_w)
    # a row with AUTO is no effective clock of its own: it shows the cell it resolves to
    kinds = np.arange(len(model.kinds))[:, None]
    unlisted = np.array([AUTO in (pair.sm_mhz, pair.mem_mhz) for pair in requests])
    for cells in (durations, powers):
        cells[:, unlisted] = cells[kinds, effective[:, unlisted]]

    ran_at = effective[:, recorded_row]
    if cap_w != default_limit_w(gpu):
        ran_at = _effective(model, requests, powers, asked_for, default_limit_w(gpu))[:, recorded_row]
    keep = np.ones(len(requests), dtype=np.bool_)
    if sm_clocks is not None:
        keep = _closed(requestable, [recorded_row, *ran_at], effective)
    new_row = (np.cumsum(keep) - 1).astype(np.int32)
    return CostTable(
        kinds=tuple(kind.name for kind in model.kinds),
        clocks=tuple(pair for pair, kept in zip(requests, keep, strict=True) if kept),
        duration_ns=durations[:, keep],
        power_w=powers[:, keep],
        effective=new_row[effective[:, keep]],
        idle_power_w=idle[keep],
        recorded=int(new_row[recorded_row]),
        requestable=requestable[keep],
        cap_w=cap_w,
        recorded_effective=None if cap_w == default_limit_w(gpu) else new_row[ran_at],
        assumed=model.assumed,
        source=f"analytic model of {gpu.name}",
    )


def power_limit(gpu: GpuFacts, power_limit_w: float | None) -> float | None:
    """The limit in force. Raises InputError for one that the GPU does not take."""
    if power_limit_w is None:
        return default_limit_w(gpu)
    low, high = gpu.value("power.limit_min_w", 0.0), gpu.value("power.limit_max_w", np.inf)
    if not low <= power_limit_w <= high:
        raise InputError(f"power limit {power_limit_w:g} W: {gpu.name} takes {low:g} to {high:g} W")
    return power_limit_w


def _cells(
    model: AnalyticModel, requests: ClockTable
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64], Rows]:
    """Durations and powers at numeric rows, idle power at all, and the row each request asks for.

    What a request asks for is numeric: AUTO parts resolved, nothing above what the board reaches.
    """
    gpu = model.gpu
    shape = (len(model.kinds), len(requests))
    durations, powers = np.full(shape, np.nan), np.full(shape, np.nan)
    idle, asked_for = np.zeros(shape[1]), np.zeros(shape[1], dtype=np.int32)
    for memory in gpu.memory:
        if Clocks(AUTO, memory.mhz) not in requests:
            continue
        sm_mhz = gpu.sm_clocks(memory)
        listed = np.array([requests.index(Clocks(sm, memory.mhz)) for sm in sm_mhz])
        durations[:, listed], powers[:, listed] = model.at(memory)
        reached = requested_positions(gpu, memory, with_auto(sm_mhz))
        answering: tuple[ClockMhz, ...] = (memory.mhz,)
        if memory.mhz == gpu.default_memory_mhz:
            answering = (memory.mhz, AUTO)
        for mem_mhz in answering:
            rows = [requests.index(Clocks(sm, mem_mhz)) for sm in with_auto(sm_mhz)]
            asked_for[rows] = listed[reached]
            idle[rows] = model.power.gpu.idle_w(np.asarray(sm_mhz)[reached], memory.mhz)
    return durations, powers, idle, asked_for


def _effective(
    model: AnalyticModel,
    requests: ClockTable,
    powers: npt.NDArray[np.float64],
    asked_for: Rows,
    cap_w: float | None,
) -> Rows:
    """(n_kinds, n_requests): the row at which each kind runs under each request and a power cap."""
    effective = np.zeros((len(model.kinds), len(requests)), dtype=np.int32)
    for memory in model.gpu.memory:
        if Clocks(AUTO, memory.mhz) not in requests:
            continue
        # the table's order: the SM clocks of one memory clock are neighbours, ascending
        first = requests.index(Clocks(model.gpu.sm_clocks(memory)[0], memory.mhz))
        stop = requests.index(Clocks(AUTO, memory.mhz))
        here = (first <= asked_for) & (asked_for < stop)
        cap = cap_position(powers[:, first:stop], cap_w)
        effective[:, here] = first + effective_position(asked_for[here] - first, cap)
    return effective


def _closed(
    requestable: npt.NDArray[np.bool_], needed: Iterable[int], effective: Rows
) -> npt.NDArray[np.bool_]:
    """Rows that may be requested or are needed, and every row at which a kind runs under one of them."""
    keep = requestable.copy()
    keep[list(needed)] = True
    while True:
        closed = keep.copy()
        closed[effective[:, keep]] = True
        if (closed == keep).all():
            return keep
        keep = closed
