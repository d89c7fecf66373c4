"""One iteration as several."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdvfs_sim.core.errors import InputError
from kdvfs_sim.replay.program import Program
from kdvfs_sim.replay.simulate import replay
from kdvfs_sim.testing.strategies import traces
from kdvfs_sim.trace.readers import read_trace
from kdvfs_sim.trace.repeat import repeated
from kdvfs_sim.trace.table import Trace


@given(traces(), st.integers(2, 4))
def test_every_iteration_is_the_first_one_later(trace: Trace, n: int) -> None:
    several = repeated(trace, n)
    period = int((trace.ops["start_ns"] + trace.ops["duration_ns"]).max())
    assert several.n_ops == n * trace.n_ops
    for i in range(n):
        part = several.ops[i * trace.n_ops : (i + 1) * trace.n_ops]
        assert (part["start_ns"] - i * period).to_list() == trace.ops["start_ns"].to_list()
        assert part["kind"].to_list() == trace.ops["kind"].to_list()
    for wait in several.waits.iter_rows(named=True):
        assert wait["op"] // trace.n_ops == wait["on"] // trace.n_ops


def test_a_repeated_recording_takes_n_times_as_long() -> None:
    layer = read_trace("h200_gpt3xl_layer_train")
    once = replay(Program.from_trace(layer)).metrics.time_s
    assert replay(Program.from_trace(repeated(layer, 3))).metrics.time_s == pytest.approx(3 * once, rel=1e-12)


def test_once_is_the_recording_itself_and_none_is_refused() -> None:
    layer = read_trace("h200_gpt3xl_layer_train")
    assert repeated(layer, 1) is layer
    with pytest.raises(InputError, match="at least 1"):
        repeated(layer, 0)
