"""``kdvfs hw characterize``: everything about a GPU and its driver that a model of switching needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kdvfs_hw.characterize.driver_calls import call_costs, counter_period, instant_power_period
from kdvfs_hw.devices import OpenDevice
from kdvfs_hw.runs.record import SCOPE, Record
from kdvfs_hw.workloads.base import Workload
from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.core.device import ClockControl
from kdvfs_sim.core.errors import DeviceError

SCOPE_COLUMNS = ("t_ns", "sm_mhz")


def characterize(
    opened: OpenDevice,
    record: Record,
    *,
    workload: Workload | None = None,
    control: ClockControl | None = None,
    pairs: Sequence[tuple[Clocks, Clocks]] = (),
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Call costs, counter period, the chip's own clock moves; with ``control`` the latency of ``pairs``.

    What cannot be found out here is null, with the reason beside it.
    """
    device = opened.device
    about = {} if workload is None else {"workload": dict(workload.describe())}
    record.begin(device, "characterize", **about)
    found: dict[str, Any] = {}
    say("what a reading costs")
    found["calls"] = call_costs(device)
    say("how often the energy counter moves")
    found["energy_counter"] = counter_period(device)
    found["instant_power_period_ms"] = instant_power_period(device)
    say("how the clock moves by itself")
    found["clock_moves"] = _clock_moves(opened, record, workload)
    found["switching"] = None
    if control is not None and workload is not None:
        from kdvfs_hw.characterize.switching import switching_latency, under_load
        from kdvfs_hw.measure.observer import Observer

        with Observer(device, alone=True) as observer, under_load(workload, observer):
            readings = switching_latency(control, observer, pairs, say=say)
        found["switching"] = [reading.to_json() for reading in readings]
    for name, value in found.items():
        record.add(name, found=value)
    record.page(characterize_lines(found))
    return found


def _clock_moves(opened: OpenDevice, record: Record, workload: Workload | None) -> Mapping[str, Any]:
    if opened.emulated is not None:
        return {"reason": "an emulated GPU runs no kernel that could look at its clock"}
    try:
        from kdvfs_hw.characterize.clock_moves import find_moves, scope_bursts, scope_workload

        scopes = {"bursts": scope_bursts(opened.device.uuid)}
        if workload is not None:
            scopes["workload"] = scope_workload(opened.device.uuid, workload)
    except DeviceError as error:
        return {"reason": str(error)}
    for name, scope in scopes.items():
        rows = zip(scope.t_ns.tolist(), scope.sm_mhz.round(1).tolist(), strict=True)
        record.table(SCOPE.format(name), SCOPE_COLUMNS, rows)
    return {name: find_moves(scope).to_json() for name, scope in scopes.items()}


def characterize_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """A page for people."""
    yield "readings, microseconds: median / 90 % / longest"
    for name, cost in found["calls"].items():
        values = [cost["median_us"], cost["p90_us"], cost["longest_us"]]
        text = "not there" if None in values else " / ".join(f"{value:.0f}" for value in values)
        yield f"  {name:18} {text}"
    counter = found["energy_counter"]
    if counter["period_ms"] is None:
        yield f"energy counter: moved {counter['n_updates']} times in 3 s; its period is not known"
    else:
        yield f"energy counter: moves every {counter['period_ms']:.2f} ms (+-{counter['jitter_ms']:.1f} ms)"
    if found["instant_power_period_ms"] is not None:
        yield f"instant power: changes every {found['instant_power_period_ms']:.0f} ms"
    moves = found["clock_moves"]
    if "reason" in moves:
        yield f"the chip's own clock moves: not seen ({moves['reason']})"
    else:
        for name, each in moves.items():
            yield f"the chip's own clock moves, {name}: " + _moves(each)
    if found["switching"] is None:
        yield "switching latency: not read (needs --allow-clock-control and a workload)"
        return
    for each in found["switching"]:
        latency = each["latency_ms"]
        text = (
            each["problem"]
            if latency is None
            else (
                f"{latency:.2f} ms ({each['lowest_ms']:.2f} to {each['highest_ms']:.2f}), "
                f"call {each['host_call_ms']:.2f} ms"
            )
        )
        yield f"  {each['old']} -> {each['new']}: {text}"


def _moves(each: Mapping[str, Any]) -> str:
    if each["fall_ns"] is None and each["rise_ns"] is None:
        return f"none (stays at {each['high_mhz']:.0f} MHz)"
    fall, rise = (
        "not seen" if each[name] is None else f"{each[name] * 1e-3:.0f} us" for name in ("fall_ns", "rise_ns")
    )
    return (
        f"{each['n_falls']} falls from {each['high_mhz']:.0f} MHz to {each['low_mhz'] or 0:.0f} in {fall}, "
        f"{each['n_rises']} rises in {rise}"
    )
