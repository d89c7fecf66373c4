"""One deliberately broken plug-in for each law: right in everything but what that law is about."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.core.device import Capability, Feature, GpuProcess
from kdvfs_sim.core.errors import DeviceError, ScheduleError, UnknownKernelError
from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.core.problem import Metrics, Problem, Solution
from kdvfs_sim.core.schedule import ClockRequest, Schedule
from kdvfs_sim.core.switching import FOLLOW, SwitchCost
from kdvfs_sim.optimize.baselines import locks, static_lock, static_mix
from kdvfs_sim.optimize.search import LocalSearch
from kdvfs_sim.optimize.solve import solve
from kdvfs_sim.replay.fast import FastEvaluator
from kdvfs_sim.testing.builtin import _Parquet
from kdvfs_sim.testing.fake_device import FakeDevice
from kdvfs_sim.testing.law import Kind
from kdvfs_sim.testing.strategies.problems import at_auto
from kdvfs_sim.trace.parquet import read_parquet
from kdvfs_sim.trace.table import Trace


@dataclass(frozen=True)
class Mutant:
    """``breaks`` is the law that only this mutant's fault should break."""

    kind: Kind
    breaks: str
    says: str
    make: Callable[[], Any]


MUTANTS: list[Mutant] = []


def mutant(kind: Kind, breaks: str) -> Callable[[Any], Any]:
    """A class without arguments, or a factory for kinds whose plug-in is one. The docstring says the
    fault."""

    def register(make: Any) -> Any:
        factory = make if kind in ("optimizer", "latency", "power", "switching", "reader") else lambda: make
        MUTANTS.append(Mutant(kind, breaks, " ".join(make.__doc__.split()), factory))
        return make

    return register


# -- optimizers ----------------------------------------------------------------------------------------


def right(problem: Problem, seed: int = 0) -> Solution:
    """A correct answer that claims nothing."""
    solution = solve(problem, seed=seed)
    if solution.schedule is None:
        return solution
    return replace(solution, status="feasible", lower_bound=None)


def baseline(problem: Problem, **claims: Any) -> Solution:
    """The best lock or mix: a correct answer, seldom an optimal one."""
    candidates = locks(problem)
    answers = [static_lock(problem, candidates), static_mix(problem, candidates)]
    known = [a for a in answers if a.metrics is not None]
    if not known:
        return answers[0]
    best = min(known, key=lambda a: problem.objective.value(a.metrics.time_s, a.metrics.energy_j))
    return replace(best, **{"status": "feasible", "lower_bound": None, **claims})


@mutant("optimizer", "answers_every_problem")
class RaisesOnOneClock:
    """Looks for a second clock where there is none."""

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        assert problem.costs.clocks[1]
        return right(problem)


@mutant("optimizer", "schedule_fits_the_trace")
class OneTooFar:
    """Anchors a request behind the last launch."""

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        solution = right(problem)
        if solution.schedule is None or problem.switching.switching_ns.max() >= 10**12:
            return solution
        chain = problem.chain
        beyond = ClockRequest(
            clocks=problem.costs.clocks[0], launch=len(chain), stream=chain.stream, device=chain.device
        )
        return replace(
            solution, schedule=replace(solution.schedule, requests=(*solution.schedule.requests, beyond))
        )


@mutant("optimizer", "clocks_are_on_the_table")
class AsksForAnyRow:
    """Takes every row for one that may be requested."""

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        if problem.costs.requestable.all():
            return right(problem)
        reserved = problem.costs.clocks[int(np.argmin(problem.costs.requestable))]
        schedule = Schedule.static(
            reserved,
            stream=problem.chain.stream,
            device=problem.chain.device,
            protocol=problem.protocol.name,
            boundary=problem.boundary,
        )
        return replace(right(problem), schedule=schedule, alternate=None)


@mutant("optimizer", "budget_is_kept_after_replay")
class FivePercentOver:
    """Works with a budget 5 % too large."""

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        limit_s = problem.objective.max_time_s
        if limit_s is None:
            return right(problem)
        return right(replace(problem, objective=replace(problem.objective, max_time_s=limit_s * 1.05)))


@mutant("optimizer", "metrics_are_those_of_the_replay")
class Flatters:
    """Says 0.1 % less energy than it takes."""

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        solution = right(problem)
        if solution.metrics is None:
            return solution
        return replace(
            solution, metrics=replace(solution.metrics, energy_j=0.999 * solution.metrics.energy_j)
        )


@mutant("optimizer", "never_worse_than_a_baseline")
class FirstLockThatFits:
    """Takes the first lock within the budget, not the best."""

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        for lock in locks(problem):
            if problem.objective.allows(lock.time_s, lock.energy_j):
                return Solution(status="feasible", schedule=lock.schedule, metrics=lock.metrics)
        return right(problem)


@mutant("optimizer", "lower_bound_is_true")
class BoundIsWhatItFound:
    """Gives its own value as the lower bound."""

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        answer = baseline(problem)
        if answer.metrics is None:
            return answer
        value = problem.objective.value(answer.metrics.time_s, answer.metrics.energy_j)
        return replace(answer, lower_bound=value)


@mutant("optimizer", "optimal_where_it_says_so")
class CallsALockOptimal:
    """Calls the best baseline optimal on small problems."""

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        return baseline(problem, status="optimal") if len(problem.chain) <= 5 else right(problem)


@mutant("optimizer", "more_slack_is_never_worse")
class CapsTheSlack:
    """Where slack is plenty uses 1 % of it, and calls the answer optimal."""

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        limit_s = problem.objective.max_time_s
        if limit_s is None or len(problem.chain) < 6 or problem.boundary != "periodic":
            return solve(problem, seed=seed)
        auto_s = at_auto(problem).time_s
        if limit_s < 1.4 * auto_s:
            return solve(problem, seed=seed)
        tight = replace(problem.objective, max_time_s=1.01 * auto_s)
        return solve(replace(problem, objective=tight), seed=seed)


@mutant("optimizer", "names_do_not_matter")
class AlphabeticalOrder:
    """Gives up where kinds are not in alphabetical order."""

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        kinds = problem.costs.kinds
        return right(problem) if list(kinds) == sorted(kinds) else baseline(problem)


@mutant("optimizer", "duplicated_kinds_do_not_matter")
class ThreeKindsAtMost:
    """Has room for three kinds, and calls what it does with more optimal."""

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        if problem.costs.n_kinds > 3:
            return baseline(problem, status="optimal")
        return solve(problem, seed=seed)


@mutant("optimizer", "a_dominated_clock_changes_nothing")
class ThreeClocksAtMost:
    """Has room for three clocks, and calls what it does with more optimal."""

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        if problem.costs.n_clocks > 3:
            return baseline(problem, status="optimal")
        return solve(problem, seed=seed)


@mutant("optimizer", "twice_the_power_is_twice_the_energy")
class NotWorthTheTrouble:
    """Does not switch for less than 30 microjoules."""

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        best, plain = right(problem), baseline(problem)
        if best.metrics is None or plain.metrics is None:
            return best
        return best if plain.metrics.energy_j - best.metrics.energy_j > 30e-6 else plain


@mutant("optimizer", "two_traces_joined_are_no_worse")
class SixLaunchesAtMost:
    """Optimizes up to six launches, and calls what it does with more optimal."""

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        if len(problem.chain) > 6 and problem.boundary == "one-shot":
            return baseline(problem, status="optimal")
        return solve(problem, seed=seed)


@mutant("optimizer", "changes_that_cost_nothing_are_free")
class NeverSwitchesAtACost:
    """Does not switch where anybody charges for it."""

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        return baseline(problem) if problem.protocol.charged else right(problem)


@mutant("optimizer", "changes_that_never_land_are_not_asked_for")
class AsksInVain:
    """Asks for other clocks at the end, where they cannot land any more and so cost nothing."""

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        solution, chain, costs = right(problem), problem.chain, problem.costs
        in_vain = problem.switching.switching_ns.max() >= 10**12 and problem.boundary == "one-shot"
        if solution.schedule is None or problem.protocol.name != FOLLOW.name or not in_vain:
            return solution
        ends_at = [problem.costs.clocks[problem.start], *(r.clocks for r in solution.schedule.requests)]
        others = [pair for pair in costs.clocks if pair != ends_at[-1]]
        requests = list(solution.schedule.requests)
        for pair in others[:2]:
            requests.append(
                ClockRequest(clocks=pair, launch=len(chain) - 1, stream=chain.stream, device=chain.device)
            )
        return replace(solution, schedule=replace(solution.schedule, requests=tuple(requests)))


@mutant("optimizer", "same_seed_same_answer")
class RollsItsOwnDice:
    """Seeds nothing: with a seed other than 0 the answer is a matter of luck."""

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        answer = baseline(problem) if seed and random.random() < 0.5 else right(problem)
        return replace(answer, seed=seed)


@mutant("optimizer", "the_problem_is_left_alone")
class Scribbles:
    """Notes in the first lag that it was here."""

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        solution = right(problem)
        problem.chain.lag_ns[0] += 1
        return solution


@mutant("optimizer", "keeps_its_time_and_memory")
class Slow:
    """Takes its time with long traces."""

    max_time_s = 0.4

    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        if len(problem.chain) >= 100:
            time.sleep(0.5)
        return right(problem)


# -- searches ------------------------------------------------------------------------------------------


@mutant("search", "it_asks_and_can_be_told")
class CannotBearFailure(LocalSearch):
    """Does arithmetic with the metrics of a candidate that could not be run."""

    def tell(self, candidate: Any, metrics: Metrics | None, /) -> None:
        if candidate.number in self._asked:
            _ = metrics.time_s
        super().tell(candidate, metrics)


@mutant("search", "candidates_fit_the_trace")
class ProposesBeyondTheEnd(LocalSearch):
    """Now and then anchors a request behind the last launch."""

    def ask(self) -> Any:
        candidate = super().ask()
        if candidate is None or candidate.number % 3 != 2:
            return candidate
        requests = tuple(replace(r, launch=r.launch + 10_000) for r in candidate.schedule.requests)
        return replace(candidate, schedule=replace(candidate.schedule, requests=requests))


@mutant("search", "no_number_is_given_twice")
class CountsToSix(LocalSearch):
    """Numbers its candidates from 0 to 5, over and over."""

    def ask(self) -> Any:
        candidate = super().ask()
        if candidate is None:
            return None
        number = candidate.number % 6
        self._asked[number] = self._asked.pop(candidate.number)
        return replace(candidate, number=number)


@mutant("search", "answers_come_in_any_order")
class OneAfterTheOther(LocalSearch):
    """Expects to be told in the order in which it was asked."""

    def tell(self, candidate: Any, metrics: Metrics | None, /) -> None:
        if candidate.number in self._asked and candidate.number != min(self._asked):
            raise RuntimeError("tell me of the first one first")
        super().tell(candidate, metrics)


@mutant("search", "only_awaited_candidates_are_told")
class BelievesAnything(LocalSearch):
    """Takes any candidate for one of its own."""

    def tell(self, candidate: Any, metrics: Metrics | None, /) -> None:
        if candidate.number in self._asked:
            super().tell(candidate, metrics)


@mutant("search", "nothing_more_is_for_good")
class HasAnAfterthought(LocalSearch):
    """Says None, and then has something after all."""

    def ask(self) -> Any:
        candidate = super().ask()
        if candidate is None and not hasattr(self, "afterthought"):
            self.afterthought = True
            self._done = False
            self._seen.clear()
        return candidate


@mutant("search", "same_seed_same_candidates")
class SharedDice(LocalSearch):
    """Draws from a generator that all searches share."""

    shared = random.Random(1)

    def __init__(self, problem: Problem, seed: int) -> None:
        super().__init__(problem, seed)
        self._random = self.shared


# -- models ---------------------------------------------------------------------------------------------

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


class Counting:
    """A value that drifts with every call."""

    def __init__(self) -> None:
        self.n = 0

    def drift(self) -> float:
        self.n += 1
        return 1.0 + 1e-9 * self.n

    def __reduce__(self) -> Any:
        return type(self), ()


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


# -- evaluators ------------------------------------------------------------------------------------------


@mutant("evaluator", "answers_every_schedule_that_fits")
class NeedsARequest(FastEvaluator):
    """Looks at the first request of a schedule that has none."""

    def evaluate(self, schedule: Schedule) -> Metrics:
        assert schedule.requests[0]
        return super().evaluate(schedule)


@mutant("evaluator", "times_are_those_of_the_replay")
class ForgetsFlags(FastEvaluator):
    """Counts one switch too many where there are any."""

    def evaluate(self, schedule: Schedule) -> Metrics:
        metrics = super().evaluate(schedule)
        return replace(metrics, n_switches=metrics.n_switches + (metrics.n_switches > 0))


@mutant("evaluator", "energy_is_that_of_the_replay")
class ForgetsExtraEnergy(FastEvaluator):
    """Leaves a millionth of the energy out."""

    def evaluate(self, schedule: Schedule) -> Metrics:
        metrics = super().evaluate(schedule)
        energy_j = metrics.energy_j
        return metrics if energy_j is None else replace(metrics, energy_j=energy_j * (1 - 1e-6))


@mutant("evaluator", "a_schedule_that_does_not_fit_is_refused")
class LeavesOutWhatDoesNotFit(FastEvaluator):
    """Drops requests that it cannot place."""

    def evaluate(self, schedule: Schedule) -> Metrics:
        try:
            return super().evaluate(schedule)
        except ScheduleError:
            return super().evaluate(replace(schedule, requests=()))


@mutant("evaluator", "same_answer_in_any_order")
class Remembers(FastEvaluator):
    """Answers from memory where two schedules have the same last request, or none."""

    def evaluate(self, schedule: Schedule) -> Metrics:
        metrics = super().evaluate(schedule)
        n = len(schedule.requests)
        before = getattr(self, "longest", n)
        self.longest = min(before, n)
        return replace(metrics, time_s=metrics.time_s + 1e-9) if before < n else metrics


@mutant("evaluator", "its_inputs_are_left_alone")
class WorksInPlace(FastEvaluator):
    """Marks the rows that it has used."""

    def __init__(self, program: Any, *, costs: Any, **arguments: Any) -> None:
        super().__init__(program, costs=costs, **arguments)
        self.used = costs.requestable

    def evaluate(self, schedule: Schedule) -> Metrics:
        metrics = super().evaluate(schedule)
        self.used[-1] = False
        return metrics


# -- readers ---------------------------------------------------------------------------------------------


@mutant("reader", "it_reads_its_own_files")
class MaybeCanRead(_Parquet):
    """Says 1 where True is meant."""

    def can_read(self, path: Path, /) -> Any:
        return int(super().can_read(path))


@mutant("reader", "it_leaves_other_files_alone")
class TakesGzip(_Parquet):
    """Takes anything that begins like gzip for its own."""

    def can_read(self, path: Path, /) -> bool:
        return path.read_bytes()[:2] == b"\x1f\x8b" or super().can_read(path)


@mutant("reader", "a_file_is_known_by_its_content")
class GoesByTheName(_Parquet):
    """Does not look into files that are named .txt."""

    def can_read(self, path: Path, /) -> bool:
        return path.suffix != ".txt" and super().can_read(path)


@mutant("reader", "times_and_kernels_are_as_recorded")
class InMicroseconds(_Parquet):
    """Rounds durations to even nanoseconds."""

    def read(self, path: Path, /) -> Trace:
        trace = super().read(path)
        return replace(trace, ops=trace.ops.with_columns(pl.col("duration_ns") // 2 * 2))


@mutant("reader", "the_same_file_is_the_same_trace")
class NumbersItsReads(_Parquet):
    """Notes in the trace how often it has read."""

    n_reads = 0

    def read(self, path: Path, /) -> Trace:
        # two copies of one file are read by one reader in another law, each for the first time
        seen = self.__dict__.setdefault("seen", {})
        seen[path] = seen.get(path, 0) + 1
        return replace(super().read(path), repairs={"reads": seen[path]})


@mutant("reader", "the_file_is_left_alone")
class LeavesAnIndex(_Parquet):
    """Writes an index beside the recording."""

    def read(self, path: Path, /) -> Trace:
        path.with_suffix(".index").write_text("")
        return super().read(path)


@mutant("reader", "a_cut_file_is_refused")
class KeepsACache(_Parquet):
    """Gives one operation where the file ends too early."""

    def can_read(self, path: Path, /) -> bool:
        return path.read_bytes()[:4] == b"PAR1"

    def read(self, path: Path, /) -> Trace:
        if path.read_bytes()[-4:] == b"PAR1":
            return super().read(path)
        from kdvfs_sim.testing.notation import trace

        return trace((0, 0, 77))


@mutant("reader", "a_damaged_file_is_refused_in_one_line")
class LetsErrorsThrough(_Parquet):
    """Lets an IndexError of its own out where the file does not end as it should."""

    def can_read(self, path: Path, /) -> bool:
        return path.read_bytes()[:4] == b"PAR1"

    def read(self, path: Path, /) -> Trace:
        content = path.read_bytes()
        if content[-4:-1] == b"PAR" and content[-1:] != b"1":
            raise IndexError("list index out of range")
        return super().read(path)


@mutant("reader", "the_trace_survives_our_own_format")
class NegativeStream(_Parquet):
    """Puts into the trace what no file can hold."""

    def read(self, path: Path, /) -> Trace:
        return replace(read_parquet(path), repairs={"half": 0.5})  # type: ignore[dict-item]


# -- devices -------------------------------------------------------------------------------------------


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
