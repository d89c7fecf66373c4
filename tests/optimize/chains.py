"""Plain chains with a judge that is fast: for what is too large for the slow evaluator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kdvfs_sim.core.chain import Chain
from kdvfs_sim.core.clocks import AUTO_CLOCKS
from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.core.problem import Objective, Problem
from kdvfs_sim.core.switching import Boundary, SwitchProtocol, SwitchTable
from kdvfs_sim.optimize.baselines import locked
from kdvfs_sim.replay.fast import FastEvaluator
from kdvfs_sim.replay.program import LONG_AGO, Host, Program


def chain_problem(
    chain: Chain,
    costs: CostTable,
    kinds: tuple[KernelKind, ...],
    *,
    switching: SwitchTable,
    protocol: SwitchProtocol,
    boundary: Boundary,
    slack: float,
) -> Problem:
    """A time budget of so much over the recorded clocks."""
    evaluator = FastEvaluator(
        program_of(chain, kinds),
        costs=costs,
        switching=switching,
        protocol=protocol,
        boundary=boundary,
        start=costs.clocks[costs.recorded],
    )
    problem = Problem(
        chain=chain,
        costs=costs,
        switching=switching,
        protocol=protocol,
        boundary=boundary,
        objective=Objective(),
        evaluate=evaluator.evaluate,
        start=costs.recorded,
    )
    recorded = evaluator.evaluate(locked(problem, costs.clocks[costs.recorded]))
    return replace(problem, objective=Objective(max_time_s=recorded.time_s * (1 + slack)))


def program_of(chain: Chain, kinds: tuple[KernelKind, ...]) -> Program:
    """The chain as a program without a host."""
    n = len(chain)
    minus, zeros, empty = np.full(n, -1), np.zeros(n, dtype=np.int64), np.zeros(0, dtype=np.int64)
    starts_ns = np.cumsum(chain.duration_ns + np.append(chain.lag_ns[1:], 0)) - chain.duration_ns
    starts_ns -= np.append(chain.lag_ns[1:], 0)
    not_before_ns = np.full(n, LONG_AGO)
    not_before_ns[0] = 0
    return Program(
        row=np.arange(n),
        kind=chain.kind,
        stream=zeros,
        position=np.arange(n),
        duration_ns=chain.duration_ns,
        recorded_start_ns=starts_ns,
        previous=np.arange(n) - 1,
        after=np.arange(n) - 1,
        after_lag_ns=chain.lag_ns,
        overlap_ns=minus,
        launch=minus,
        launch_lag_ns=zeros,
        last_action=minus,
        not_before_ns=not_before_ns,
        passes=minus.astype(np.int8),
        wait_op=empty,
        wait_on=empty,
        wait_lag_ns=empty,
        host=Host(
            thread=empty.astype(np.int32),
            is_launch=empty.astype(np.bool_),
            start_ns=empty,
            length_ns=empty,
            prev_any=empty,
            gap_ns=empty,
            prev_own=empty,
            awaits=empty,
            await_lag_ns=empty,
        ),
        streams=((chain.device, chain.stream),),
        threads=(),
        kinds=kinds,
        recorded_clocks=AUTO_CLOCKS,
    )


def random_table(n_clocks: int, latency_ns: int, *, n_classes: int = 0, seed: int = 0) -> SwitchTable:
    """Latencies from half to one and a half times the given one: one a pair, or one a class of targets."""
    rng = np.random.default_rng(seed)
    low, high = latency_ns // 2, latency_ns + latency_ns // 2 + 1
    if n_classes:
        switching_ns = rng.integers(low, high, n_classes)[rng.integers(n_classes, size=n_clocks)]
        switching_ns = np.tile(switching_ns, (n_clocks, 1))
    else:
        switching_ns = rng.integers(low, high, (n_clocks, n_clocks))
    np.fill_diagonal(switching_ns, 0)
    return SwitchTable(
        host_call_ns=switching_ns // 5,
        switching_ns=switching_ns,
        stall_ns=0 * switching_ns,
        extra_energy_j=0.0 * switching_ns,
    )
