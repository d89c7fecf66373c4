"""What strategies generate is printed as code that makes it again, and shrinks to next to nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from kdvfs_sim.core.clocks import AUTO_CLOCKS
from kdvfs_sim.core.errors import DeviceError
from kdvfs_sim.core.problem import Problem
from kdvfs_sim.testing import strategies as ks
from kdvfs_sim.testing.fake_device import DeviceFault, FakeDevice
from kdvfs_sim.testing.notation import as_code, same

NOUNS: dict[str, st.SearchStrategy[Any]] = {
    "clock tables": ks.clock_tables(),
    "cost tables": ks.cost_tables(),
    "physical cost tables": ks.physical_cost_tables(),
    "switch tables": st.integers(1, 3).flatmap(ks.switch_tables),
    "switching models": st.just((AUTO_CLOCKS,)).flatmap(ks.switching_models),
    "protocols": ks.protocols(),
    "traces": ks.traces(n_devices=2),
    "recordings": ks.recordings(),
    "scenes": ks.scenes(),
    "problems": ks.problems(recordings=ks.traces(), minimize=("energy", "time", "edp")),
    "faults": ks.device_faults(),
}


@pytest.mark.parametrize("noun", NOUNS)
def test_a_noun_is_printed_as_code_that_makes_it_again(noun: str) -> None:
    @settings(max_examples=settings().max_examples // 2)
    @given(NOUNS[noun])
    def check(value: Any) -> None:
        _, imports, text = as_code(value)
        names: dict[str, Any] = {}
        exec("\n".join(imports), names)
        assert same(eval(text, names), value)

    check()


def test_a_falsified_property_prints_code() -> None:
    @settings(max_examples=50, database=None)
    @given(ks.problems())
    def wrong(problem: Problem) -> None:
        assert problem.costs.n_clocks < 2

    with pytest.raises(AssertionError) as failure:
        wrong()
    notes = "\n".join(failure.value.__notes__)
    assert "problem=problem(" in notes
    assert "trace((0, 0, 1000), n_kinds=2)" in notes


def test_problems_shrink_to_one_launch_and_one_clock() -> None:
    smallest = find(ks.problems(), lambda _: True, settings=settings(database=None))
    assert len(smallest.chain) == 1
    assert smallest.costs.clocks == (AUTO_CLOCKS,)
    assert not smallest.protocol.charged


QUICK = settings(
    max_examples=3000, database=None, suppress_health_check=list(HealthCheck), phases=(Phase.generate,)
)


@pytest.mark.parametrize(
    ("what", "strategy", "holds"),
    [
        ("only AUTO", ks.clock_tables(), lambda t: len(t) == 1),
        ("two domains", ks.clock_tables(), lambda t: len({p.mem_mhz for p in t}) > 2),
        ("hundreds of clocks", ks.clock_tables(), lambda t: len(t) > 100),
        ("ties", ks.traces(), lambda t: t.ops["start_ns"].is_duplicated().any()),
        ("no length", ks.traces(), lambda t: (t.ops["duration_ns"] == 0).any()),
        ("graph launches", ks.traces(), lambda t: t.ops["host"].drop_nulls().is_duplicated().any()),
        ("event waits", ks.traces(), lambda t: not t.waits.is_empty()),
        ("synchronizations", ks.traces(), lambda t: (t.host["action"] == "sync").any()),
        ("heavy tail", ks.switch_tables(2, longest_ns=10**9), lambda t: t.switching_ns.max() >= 10**8),
        ("up is not down", ks.switch_tables(2), lambda t: t.switching_ns[0, 1] != t.switching_ns[1, 0]),
        (
            "longer than the trace",
            ks.problems(),
            lambda p: p.switching.switching_ns.max() > 10 * p.chain.duration_ns.sum() > 0,
        ),
        ("a host that binds", ks.problems(recordings=ks.single_stream()), lambda p: not p.chain.additive),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_odd_cases_are_generated(what: str, strategy: st.SearchStrategy[Any], holds: Any) -> None:
    find(strategy, holds, settings=QUICK)  # raises NoSuchExample


@given(ks.device_faults())
def test_a_fake_device_breaks_as_scripted(faults: tuple[DeviceFault, ...]) -> None:
    device = FakeDevice(faults=faults)
    for call in range(25):
        expected = any(f.name in ("lost", "unknown_error") and f.active(call) for f in faults)
        no_counter = any(f.name == "no_energy" and f.active(call) for f in faults)
        try:
            device.energy_counter()
        except DeviceError:
            assert expected or no_counter
        else:
            assert not expected
            assert not no_counter


@pytest.mark.parametrize(
    ("strategy", "holds"),
    [
        (ks.cost_tables(n_kinds=2), lambda t: len(t.kinds) == 2 and t.duration_ns.shape[0] == 2),
        (ks.device_faults(max_faults=1), lambda faults: len(faults) <= 1),
    ],
    ids=["cost tables", "faults"],
)
def test_sizes_are_as_asked(strategy: st.SearchStrategy[Any], holds: Any) -> None:
    @settings(max_examples=30, database=None)
    @given(strategy)
    def sized(value: Any) -> None:
        assert holds(value)

    sized()
