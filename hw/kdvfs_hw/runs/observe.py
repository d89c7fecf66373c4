"""Observe: a workload, or its kernels one by one, at the clocks that the driver chooses. Changes nothing."""

from __future__ import annotations

import random
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kdvfs_hw.measure.loop import Reading, measure, overhead_of_watching, settle
from kdvfs_hw.measure.observer import Observer
from kdvfs_hw.measure.statistics import Interval, interval
from kdvfs_hw.runs.isolated import held_below, highest_sm_mhz
from kdvfs_hw.runs.record import KERNEL_COLUMNS, KERNELS, Record, kernel_rows, part_json
from kdvfs_hw.workloads.base import Workload
from kdvfs_hw.workloads.command import run_command
from kdvfs_sim.core.device import Device


@dataclass(kw_only=True)
class Observed:
    """Readings of the step, and of the kernels by name; what is not known is None in them."""

    steps: list[Reading] = field(default_factory=list)
    kernels: dict[str, list[Reading]] = field(default_factory=dict)
    settled: bool = True
    period_ms: float | None = None
    overhead: Mapping[str, Any] = field(default_factory=dict)
    highest_sm_mhz: int | None = None

    def step_time(self) -> Interval | None:
        return interval([reading.time_s for reading in self.steps])

    def step_energy(self) -> Interval | None:
        return interval([e for reading in self.steps if (e := reading.energy_j) is not None])


def observe(
    device: Device,
    workload: Workload,
    record: Record,
    *,
    seconds: float = 2.0,
    repeats: int = 5,
    kernels: bool = False,
    kernel_seconds: float = 1.0,
    max_settle_s: float = 30.0,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> Observed:
    """Settle, then read the step ``repeats`` times; with ``kernels`` every kernel between two readings.

    Kernels come in a random order, another in each repeat, so that a drift falls on all alike.
    """
    result = Observed(highest_sm_mhz=highest_sm_mhz(device))
    parts = list(workload.parts) if kernels else []
    rng = random.Random(seed)
    record.begin(device, "observe", workload=dict(workload.describe()), seed=seed)
    for part in workload.parts:
        record.add("part", **part_json(part))
    with Observer(device) as observer:
        say("finding the energy counter's period")
        period = observer.await_period()
        result.period_ms = None if period is None else period.period_ns * 1e-6
        record.add("counter", period_ms=result.period_ms, jitter_ms=period and period.jitter_ns * 1e-6)
        say("warming up until temperature and speed stand still")
        result.settled = settle(workload, observer, max_s=max_settle_s)
        record.add("settled", settled=result.settled)
        for i in range(repeats):
            say(f"step, reading {i + 1} of {repeats}")
            reading = measure(workload, None, observer, seconds=seconds)
            result.steps.append(reading)
            record.add("step", **reading.to_json())
            if parts and i < max(1, repeats // 2):
                for j, part in enumerate(rng.sample(parts, len(parts))):
                    if j % 10 == 0:
                        say(f"kernels, pass {i + 1}: {j} of {len(parts)}")
                    reading = measure(workload, part.name, observer, seconds=kernel_seconds)
                    result.kernels.setdefault(part.name, []).append(reading)
                    record.add("kernel", **reading.to_json())
                settle(workload, observer, max_s=5.0)
        say("how much watching slows the step")
        result.overhead = {
            **overhead_of_watching(workload, observer, seconds=min(1.0, seconds)),
            **observer.overhead.to_json(),
        }
        record.add("overhead", **result.overhead)
        record.counter_updates(observer.updates)
    record.table(KERNELS, KERNEL_COLUMNS, kernel_rows(parts, result.kernels))
    record.page(observed_page(device, workload, result))
    return result


def observe_command(
    device: Device,
    command: Sequence[str],
    record: Record,
    *,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[Reading, int]:
    """Run any command and watch the GPU meanwhile; the reading of the whole run, and its exit code."""
    record.begin(device, "observe", workload={"command": list(command)})
    with Observer(device) as observer:
        observer.await_period()
        reading, code = run_command(command, observer, say=say)
        record.add("command", exit_code=code, **reading.to_json())
        record.add("overhead", **observer.overhead.to_json())
        record.counter_updates(observer.updates)
    ended = [] if code == 0 else [f"ended with code {code}"]
    record.page([f"# {shlex.join(command)} on {device.name}", "", *ended, reading_line(reading)])
    return reading, code


def reading_line(reading: Reading) -> str:
    """Time and energy of one reading, and what is to be said of it."""
    energy = reading.energy_j
    text = f"not known ({reading.seen.energy.reason})" if energy is None else f"{energy:.5g} J"
    return f"time {reading.time_s:.4g} s, energy {text}" + "".join(f"; {mark}" for mark in reading.seen.marks)


def observed_page(device: Device, workload: Workload, result: Observed) -> Iterator[str]:
    """Markdown."""
    yield f"# {workload.name} on {device.name}"
    yield ""
    yield ", ".join(f"{key} {value}" for key, value in {**workload.describe()}.items())
    yield ""
    yield from summary_lines(result)
    if not result.kernels:
        return
    yield ""
    yield "| kernel | n | time us | power W | instant W | SM MHz | at the cap | marks |"
    yield "|---|---|---|---|---|---|---|---|"
    for part in workload.parts:
        for reading in result.kernels.get(part.name, [])[:1]:
            seen = reading.seen
            yield (
                f"| {part.name} | {part.n_per_step:g} | {reading.time_s * 1e6:.2f} | {_w(reading.power_w)} "
                f"| {_w(seen.instant_w)} | {_w(seen.sm_mhz)} | {100 * seen.capped:.0f} % "
                f"| {'; '.join((*seen.marks, reading.void)).strip('; ')} |"
            )


def summary_lines(result: Observed) -> Iterator[str]:
    """What a person wants to know first."""
    time, energy = result.step_time(), result.step_energy()
    if time is not None:
        yield f"step: {_ms(time)} ms ({_ms(time, 'low')} to {_ms(time, 'high')}, {time.n} readings)"
    elif result.steps:
        yield f"step: {result.steps[-1].time_s * 1e3:.4g} ms ({len(result.steps)} readings: no interval)"
    if energy is not None:
        yield f"energy: {energy.mean:.4g} J a step ({energy.low:.4g} to {energy.high:.4g})"
        instant = [e for reading in result.steps if (e := reading.instant_energy_j) is not None]
        if instant:
            mean = sum(instant) / len(instant)
            yield f"by integrating instant power: {mean:.4g} J, {100 * (mean / energy.mean - 1):+.1f} %"
    elif result.steps:
        yield f"energy: not known ({result.steps[-1].seen.energy.reason or 'too few readings'})"
    if result.period_ms is not None:
        yield f"the energy counter moves every {result.period_ms:.2f} ms"
    if not result.settled:
        yield "WARNING: temperature or speed were still moving when the readings began"
    if "overhead_pct" in result.overhead:
        yield (
            f"watching slows the step by {result.overhead['overhead_pct']:+.2f} % "
            f"(noise {result.overhead['noise_pct']:.2f} %)"
        )
    locked = held_below(result.steps, result.highest_sm_mhz)
    if locked:
        yield f"WARNING: {locked}"
    marks = sorted({mark for reading in result.steps for mark in reading.seen.marks})
    yield from (f"WARNING: {mark}" for mark in marks)


def _ms(found: Interval, which: str = "mean") -> str:
    return f"{getattr(found, which) * 1e3:.5g}"


def _w(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
