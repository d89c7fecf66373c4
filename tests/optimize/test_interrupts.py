"""Interrupts are heard: compiled loops come back to Python often."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from kdvfs_sim.cli import main
from kdvfs_sim.core.chain import Chain
from kdvfs_sim.core.clocks import AUTO_CLOCKS, Clocks
from kdvfs_sim.core.compiled import compiled, interruptible
from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.core.problem import Problem
from kdvfs_sim.core.switching import PROTOCOLS
from kdvfs_sim.optimize import charged
from kdvfs_sim.optimize.charged import Charged
from kdvfs_sim.optimize.descent import MAX_STEPS, descend, objective
from kdvfs_sim.optimize.target import Effort, Target
from tests.optimize.chains import chain_problem, random_table

TICK_S = 0.01
DEAF_S = 0.5  # of this process's own time, whatever else the machine does


@contextmanager
def ticking() -> Iterator[list[float]]:
    """Collects the times at which Python hears of a timer that ticks all the while."""
    heard = [time.process_time()]
    before = signal.signal(signal.SIGVTALRM, lambda *_: heard.append(time.process_time()))
    signal.setitimer(signal.ITIMER_VIRTUAL, TICK_S, TICK_S)
    try:
        yield heard
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        heard.append(time.process_time())


def large_problem(n: int, n_clocks: int, protocol: str) -> Problem:
    rng = np.random.default_rng(0)
    speed = np.linspace(1, 0.3, n_clocks)
    minds = rng.uniform(0, 1, (20, 1))
    kinds = tuple(KernelKind(name=f"k{k}", category="other") for k in range(20))
    costs = CostTable(
        kinds=tuple(kind.name for kind in kinds),
        clocks=(AUTO_CLOCKS, *(Clocks(3000 - i, AUTO_CLOCKS.mem_mhz) for i in range(1, n_clocks))),
        duration_ns=minds / speed + 1 - minds,
        power_w=rng.uniform(50, 150, (20, 1)) + 300 * speed**2.5,
        effective=np.tile(np.arange(n_clocks, dtype=np.int32), (20, 1)),
        idle_power_w=30 + 20 * speed,
        recorded=0,
        requestable=np.ones(n_clocks, dtype=np.bool_),
    )
    lag_ns = np.append(0, np.full(n - 1, 500))
    chain = Chain(
        kind=rng.integers(20, size=n).astype(np.int32),
        duration_ns=rng.integers(5_000, 200_000, n),
        lag_ns=lag_ns,
        min_lag_ns=lag_ns,
    )
    return chain_problem(
        chain,
        costs,
        kinds,
        switching=random_table(n_clocks, 1_000_000),
        protocol=PROTOCOLS[protocol],
        boundary="one-shot",
        slack=0.05,
    )


def method(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> Charged:
    """Nothing solved yet."""
    with monkeypatch.context() as patch:
        patch.setattr(charged.Chase, "solve", lambda self, target: ([], 0.0))
        patch.setattr(Charged, "_seeds", lambda self, target: ())
        return Charged(problem, lambda cells, _: cells, 1e-3)


@pytest.mark.parametrize("protocol", ["drain", "follow", "lookahead"])
def test_sweeps_hear_of_interrupts(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method(large_problem(50, 5, protocol), monkeypatch)._chase.paths(1.0, 1e-7)  # compiles
    paths = method(large_problem(4000, 500, protocol), monkeypatch)._chase.paths
    with ticking() as heard:
        paths(1.0, 1e-7)
    assert np.diff(heard).max() < DEAF_S


def test_descents_hear_of_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    for n, n_clocks in ((50, 5), (4000, 300)):
        problem = replace(large_problem(n, n_clocks, "follow"), granularity="kind")
        model = method(problem, monkeypatch)._chase.paths.model
        clocks, target = np.zeros(20, dtype=np.int64), Target.of(problem.objective)
        with ticking() as heard:
            descend(
                model, problem.chain.kind.astype(np.int64), 0, clocks, objective(target), Effort(MAX_STEPS)
            )
    assert np.diff(heard).max() < DEAF_S


def test_an_interrupted_command_ends_soon() -> None:
    command = [sys.executable, "-m", "kdvfs_sim", "optimize", "h200_gpt3xl_full_train", "--policy", "all"]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert run.stderr is not None
    while "optimizing" not in (line := run.stderr.read(10)) and line:
        pass
    time.sleep(1)
    assert run.poll() is None
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=20)
    assert run.returncode == 130


def test_a_long_call_hears_of_interrupts() -> None:
    spin(1)
    with ticking() as heard:
        assert interruptible(spin, 1_000_000_000) > 0
    assert max(np.diff(heard)) < DEAF_S < heard[-1] - heard[0]


def test_errors_of_a_long_call_arrive() -> None:
    with pytest.raises(ZeroDivisionError):
        interruptible(lambda: 1 // 0)


@compiled
def spin(n: int) -> float:
    total = 0.0
    for k in range(n):
        total += 1.0 / (k + 1)
    return total


def test_an_interrupt_inside_compiled_code_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Numba's dispatchers return with it set, of which Python makes another one."""

    def command(**_: object) -> None:
        raise SystemError("returned a result with an exception set") from KeyboardInterrupt()

    with pytest.raises(SystemExit) as left:
        main([], app=lambda: command)
    assert left.value.code == 130
    assert capsys.readouterr().err == "kdvfs: interrupted\n"
