"""The paper's Table 1 schedule, replayed: 46 kernels, 897 calls an iteration, switching free."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from kdvfs_sim.core.clocks import AUTO_CLOCKS, Clocks
from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.core.switching import FREE
from kdvfs_sim.replay.fast import FastEvaluator
from kdvfs_sim.replay.program import Program
from kdvfs_sim.replay.simulate import replay
from kdvfs_sim.trace.table import OPS_SCHEMA, Trace

sys.path.append(str(Path(__file__).parents[1] / "gpu"))
from paper_tables import kernel_costs


def test_table_1_saves_what_it_says(shared: Path) -> None:
    costs, _ = kernel_costs(shared)
    table = pl.read_csv(shared / "paper_gpt3xl_3080ti" / "fig5_table1_kernels.csv", infer_schema_length=None)
    by_id = {row["id"]: row for row in table.iter_rows(named=True)}
    calls = [0, 1, *(24 * list(range(2, 14))), *range(14, 19), *(24 * list(range(19, 44))), 44, 45]
    assert len(calls) == 897
    kind_of = {i: costs.kinds.index(f"{i} {by_id[i]['name_table1']}") for i in by_id}
    durations = np.array([round(by_id[i]["auto_time_s"] * 1e9) for i in calls])
    starts = np.concatenate([[0], np.cumsum(durations)[:-1]])
    n = len(calls)
    ops = pl.DataFrame(
        {
            "kind": [kind_of[i] for i in calls],
            "device": [0] * n,
            "stream": [0] * n,
            "start_ns": starts,
            "duration_ns": durations,
            "host": [None] * n,
            "pass": [-1] * n,
            "iteration": [-1] * n,
        },
        schema=dict(OPS_SCHEMA),
    )
    trace = Trace(ops=ops, kinds=tuple(KernelKind(name=name) for name in costs.kinds))
    program = Program.from_trace(trace)
    chosen = [
        Clocks.parse(f"sm={by_id[i]['table1_core_mhz']},mem={by_id[i]['table1_mem_mhz']}") for i in calls
    ]
    schedule = Schedule.from_assignment(chosen)
    auto = replay(program, costs=costs, schedule=Schedule.static(AUTO_CLOCKS)).metrics
    table1 = replay(program, costs=costs, schedule=schedule).metrics
    assert auto.energy_j is not None
    assert table1.energy_j is not None
    assert 100 * (table1.time_s / auto.time_s - 1) == pytest.approx(0.00, abs=0.02)
    assert 100 * (table1.energy_j / auto.energy_j - 1) == pytest.approx(-15.64, abs=0.02)
    fast = FastEvaluator(program, costs=costs, protocol=FREE).evaluate(schedule)
    assert fast.time_s == table1.time_s
    assert fast.energy_j == pytest.approx(table1.energy_j, rel=1e-9)
