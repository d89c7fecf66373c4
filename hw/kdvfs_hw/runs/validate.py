"""Validate: a plan fixed first, rounds of readings until they can answer, then the verdict."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from kdvfs_hw.measure.loop import Reading, measure, reading_s, settle
from kdvfs_hw.measure.observer import Observer
from kdvfs_hw.measure.statistics import MIN_READINGS
from kdvfs_hw.runs.isolated import (
    Readings,
    held_below,
    highest_sm_mhz,
    isolated_quantities,
    isolated_round,
    why_void,
)
from kdvfs_hw.runs.live import Block, Director, choose, live_quantities, live_round
from kdvfs_hw.runs.plan import Binding, Plan, bind
from kdvfs_hw.runs.record import COSTS, Record
from kdvfs_hw.runs.trouble import HopelessError, Troubles
from kdvfs_hw.runs.verdict import ENERGY_TOLERANCE, TIME_TOLERANCE, Quantity, Verdict, quantity
from kdvfs_hw.workloads.base import Workload
from kdvfs_sim.core.clocks import AUTO_CLOCKS
from kdvfs_sim.core.device import ClockControl, Device
from kdvfs_sim.core.errors import DeviceError, DeviceUnsupportedError, InvariantError

MODES: Final = ("observe", "isolated", "live")
CONTROLLED: Final = frozenset({"isolated", "live"})
COST_COLUMNS: Final = ("kernel", "sm_mhz", "mem_mhz", "time_s", "power_w")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Lengths in seconds. ``repeats``: at most so many rounds, at least three."""

    modes: tuple[str, ...] = ("observe",)
    seconds: float = 1.0
    kernel_seconds: float = 1.0
    kernel_settle_s: float = 0.25
    max_settle_s: float = 30.0
    repeats: int = 10
    slack: float = 0.006
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """``chosen``: name, time and energy against AUTO in per cent, where several schedules were live.
    ``notes``: what about the GPU may be other than the prediction takes it to be."""

    verdict: Verdict
    n_rounds: int
    troubles: Troubles
    notes: tuple[str, ...] = ()
    chosen: tuple[str, float, float] | None = None

    @property
    def exit_code(self) -> int:
        """6 where GPU or machine did not do as asked, so that nothing can be said; a verdict is no error."""
        spoilt = self.troubles.n_void or self.troubles.stopped
        return DeviceError.exit_code if spoilt and self.verdict.overall == "not enough data" else 0

    def to_json(self) -> dict[str, Any]:
        return {**self.verdict.to_json(), "n_rounds": self.n_rounds, "readings": self.troubles.to_json()}


def validate(
    device: Device,
    plan: Plan,
    workload: Workload,
    record: Record,
    settings: Settings,
    *,
    control: ClockControl | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Run the modes asked for, and judge. ``isolated`` and ``live`` change clocks: they need ``control``.

    Raises DeviceError, with the reasons, if every reading is void. Ends early, with what there is, where
    reading after reading has the same trouble.
    """
    if control is None and set(settings.modes) & CONTROLLED:
        raise InvariantError(f"modes {settings.modes} without control over clocks")
    binding = bind(plan, workload, settings.modes)
    record.begin(device, "validate", workload=dict(workload.describe()))
    record.add("plan", **plan.to_json(**asdict(settings)))
    outcome = _outcome(device, plan, workload, record, settings, control, binding, say)
    record.add("verdict", **outcome.to_json())
    record.page(outcome_lines(plan, outcome))
    return outcome


def _outcome(
    device: Device,
    plan: Plan,
    workload: Workload,
    record: Record,
    settings: Settings,
    control: ClockControl | None,
    binding: Binding,
    say: Callable[[str], None],
) -> Outcome:
    """Rounds until every question has an answer, and what they say."""
    troubles = Troubles(say)
    with Observer(device, alone=control is not None) as observer:
        observer.await_period()
        say(f"warming up until temperature and speed stand still, at most {settings.max_settle_s:g} s")
        settled = settle(
            workload, observer, max_s=settings.max_settle_s, beat=control.beat if control else None
        )
        record.add("settled", settled=settled)
        rounds = _Rounds(
            plan=plan,
            binding=binding,
            workload=workload,
            observer=observer,
            control=control,
            record=record,
            settings=settings,
            troubles=troubles,
            say=say,
        )
        n_rounds, verdict, spent_s = 0, Verdict(quantities=()), 0.0
        most = max(MIN_READINGS, settings.repeats)
        expected_s = _round_s(plan, binding, settings, observer)
        while n_rounds < most and not troubles.stopped:
            n_rounds += 1
            begun_ns = device.time.now_ns()
            say(_before_round(n_rounds, most, expected_s, spent_s))
            with _unless_hopeless(troubles):
                rounds.one()
            spent_s += (device.time.now_ns() - begun_ns) * 1e-9
            verdict = Verdict(quantities=tuple(rounds.quantities()))
            if n_rounds >= MIN_READINGS and all(q.answer != "not enough data" for q in verdict.quantities):
                break
        record.add("overhead", **observer.overhead.to_json())
        record.counter_updates(observer.updates)
    record.table(COSTS, COST_COLUMNS, cost_rows(rounds.kernels))
    record.add("troubles", **troubles.to_json())
    troubles.refuse_all_void(device.uuid)
    blocks = rounds.blocks
    chosen = choose(plan, blocks, slack=settings.slack) if len(plan.arms) > 2 and blocks else None
    if troubles.doubt:
        verdict = verdict.doubted(troubles.doubt)
    every = [*rounds.steps, *(reading for each in rounds.kernels.values() for reading in each)]
    notes = tuple(_notes(device, plan, every))
    return Outcome(verdict=verdict, n_rounds=n_rounds, troubles=troubles, notes=notes, chosen=chosen)


@dataclass(kw_only=True)
class _Rounds:
    """What is read, round after round: the step at AUTO, kernels by themselves, blocks of each arm."""

    plan: Plan
    binding: Binding
    workload: Workload
    observer: Observer
    control: ClockControl | None
    record: Record
    settings: Settings
    troubles: Troubles
    say: Callable[[str], None]
    steps: list[Reading] = field(default_factory=list)
    kernels: Readings = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.settings.seed)
        control = self.control
        self._director = None if control is None else Director(self.plan, self.observer, control)

    def one(self) -> None:
        """One round of every mode. Raises HopelessError where there is no point in more."""
        modes, director = self.settings.modes, self._director
        if "observe" in modes:
            self._step()
        if director is not None and "isolated" in modes:
            isolated_round(
                self.plan,
                self.binding,
                self.workload,
                self.observer,
                director.control,
                self.record,
                self.kernels,
                seconds=self.settings.kernel_seconds,
                settle_s=self.settings.kernel_settle_s,
                rng=self._rng,
                say=self.say,
                troubles=self.troubles,
            )
            director.last = None
        if director is not None and "live" in modes:
            live_round(
                self.plan,
                self.workload,
                director,
                self.record,
                self.blocks,
                seconds=self.settings.seconds,
                binding=self.binding,
                rng=self._rng,
                say=self.say,
                troubles=self.troubles,
            )

    def _step(self) -> None:
        """The whole step, at the clocks that the driver chooses."""
        if self.control is not None:
            self.control.request_clocks(AUTO_CLOCKS)
        reading = measure(self.workload, None, self.observer, seconds=self.settings.seconds)
        reading = replace(reading, void=why_void(reading.seen, AUTO_CLOCKS))
        self.steps.append(reading)
        self.record.add("step", **reading.to_json())
        self.troubles.note(reading.void, reading.seen.energy)

    def quantities(self) -> Iterator[Quantity]:
        """What was predicted, and what all rounds so far say of it."""
        base, binding = self.plan.arms[0], self.binding
        if "observe" in self.settings.modes:
            good = [reading for reading in self.steps if not reading.void]
            times = [reading.time_s * binding.n_per_pass for reading in good]
            energies = [e * binding.n_per_pass for reading in good if (e := reading.energy_j) is not None]
            yield quantity("step at auto", "time", "s", base.time_s, times, TIME_TOLERANCE)
            yield quantity("step at auto", "energy", "J", base.energy_j, energies, ENERGY_TOLERANCE)
        if "isolated" in self.settings.modes:
            yield from isolated_quantities(self.plan, binding, self.kernels)
        if "live" in self.settings.modes:
            yield from live_quantities(self.plan, self.blocks)


@contextmanager
def _unless_hopeless(troubles: Troubles) -> Iterator[None]:
    try:
        yield
    except HopelessError as error:
        troubles.stopped = str(error)


def _round_s(plan: Plan, binding: Binding, settings: Settings, observer: Observer) -> float:
    """How long a round will take where nothing holds it up: readings back to back."""
    n_parts = {cell.part: len(binding.parts[cell.part]) for cell in plan.cells()}
    each_s = {
        "observe": reading_s(observer, settings.seconds, 0.0),
        "isolated": sum(n_parts[cell.part] for cell in plan.cells())
        * reading_s(observer, settings.kernel_seconds, settings.kernel_settle_s),
        "live": len(plan.arms) * reading_s(observer, settings.seconds, 0.0),
    }
    return sum(each_s[mode] for mode in settings.modes)


def _before_round(n: int, most: int, expected_s: float, spent_s: float) -> str:
    """What is to come, from what is expected and, after the first round, from how long a round took."""
    if n == 1:
        least = MIN_READINGS * expected_s
        return f"round 1; {MIN_READINGS} to {most} rounds, about {_span(least)} to {_span(most * expected_s)}"
    return f"round {n} of at most {most}; at most {_span((most - n + 1) * spent_s / (n - 1))} more"


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _notes(device: Device, plan: Plan, readings: Sequence[Reading]) -> Iterator[str]:
    with suppress(DeviceUnsupportedError):
        limit_w = device.power_limit_w()
        if plan.cap_w is not None and abs(limit_w - plan.cap_w) > 1:
            yield (f"the GPU's power limit is {limit_w:g} W, the predictions are for {plan.cap_w:g} W")
    locked = held_below(readings, highest_sm_mhz(device))
    if locked:
        yield locked


def cost_rows(readings: Readings) -> Iterator[tuple[object, ...]]:
    """Means of good readings in the long form of a cost table."""
    for (part, clocks), each in readings.items():
        good = [reading for reading in each if not reading.void]
        if good:
            watts = [reading.power_w for reading in good if reading.power_w is not None]
            yield (
                part,
                str(clocks.sm_mhz),
                str(clocks.mem_mhz),
                sum(reading.time_s for reading in good) / len(good),
                sum(watts) / len(watts) if watts else None,
            )


def outcome_lines(plan: Plan, outcome: Outcome) -> Iterator[str]:
    """A page for people."""
    yield from outcome.verdict.lines()
    yield f"{plan.source} on {plan.gpu}, protocol {plan.protocol.name}, {outcome.n_rounds} rounds"
    yield from (f"WARNING: {note}" for note in outcome.notes)
    yield from outcome.troubles.lines()
    if outcome.chosen is not None:
        name, time_pct, energy_pct = outcome.chosen
        yield (
            f"best of {len(plan.arms)} on the odd rounds: {name}; on the even rounds it takes "
            f"{time_pct:+.2f} % time and {energy_pct:+.2f} % energy against AUTO"
        )
    if plan.assumed:
        yield f"the prediction leans on assumed numbers: {', '.join(plan.assumed)}"
