"""Switch costs of the catalogue's GPUs, and tables of anybody's switching model."""

from __future__ import annotations

import math
import pickle
import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdvfs_sim.core.clocks import AUTO, AUTO_CLOCKS, ClockMhz, Clocks
from kdvfs_sim.core.domain_cost import DomainCost
from kdvfs_sim.core.errors import ContractError, InputError, UsageError
from kdvfs_sim.core.protocols import SwitchingModel
from kdvfs_sim.core.switching import FREE, PROTOCOLS, SwitchCost
from kdvfs_sim.gpu.catalogue import gpu_names, load_gpu
from kdvfs_sim.gpu.facts import Fact, Level
from kdvfs_sim.gpu.switching import (
    DomainSwitching,
    dynamic_governor,
    protocol_for,
    switching_model,
    tabulate,
)

LEVELS: tuple[Level, ...] = ("low", "nominal", "high")
MODEL = DomainSwitching(
    sm=DomainCost(host_call_ns=5, up_ns=100, down_ns=70),
    memory=DomainCost(host_call_ns=3, up_ns=900, down_ns=40),
)
clocks = st.builds(Clocks, st.sampled_from([AUTO, 210, 1410, 1980]), st.sampled_from([AUTO, 810, 9501]))


@given(old=clocks, new=clocks)
def test_calls_add_and_switching_times_overlap(old: Clocks, new: Clocks) -> None:
    cost = MODEL.switch(old, new)
    sm_only = MODEL.switch(Clocks(old.sm_mhz, new.mem_mhz), new)
    memory_only = MODEL.switch(Clocks(new.sm_mhz, old.mem_mhz), new)
    assert cost.host_call_ns == sm_only.host_call_ns + memory_only.host_call_ns
    assert cost.switching_ns == max(sm_only.switching_ns, memory_only.switching_ns)
    assert (cost == SwitchCost(host_call_ns=0, switching_ns=0)) == (old == new)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (210, 1410, 100),
        (1410, 210, 70),
        (1410, AUTO, 100),  # a release pays too, and the governor's clock is the highest allowed
        (AUTO, 1980, 70),
    ],
)
def test_up_is_not_down_and_a_release_pays(old: ClockMhz, new: ClockMhz, expected: int) -> None:
    cost = MODEL.switch(Clocks(old, AUTO), Clocks(new, AUTO))
    assert (cost.host_call_ns, cost.switching_ns) == (5, expected)


@given(slug=st.sampled_from(gpu_names()), data=st.data())
def test_levels_are_ordered_and_tables_match_the_model(slug: str, data: st.DataObject) -> None:
    gpu = load_gpu(slug)
    pairs = data.draw(st.lists(st.sampled_from(list(gpu.clock_table())), min_size=1, max_size=6, unique=True))
    tables = [tabulate(switching_model(gpu, level), pairs) for level in LEVELS]
    for lower, higher in pairwise(tables):
        assert (lower.host_call_ns <= higher.host_call_ns).all()
        assert (lower.switching_ns <= higher.switching_ns).all()
    nominal = switching_model(gpu)
    for i, old in enumerate(pairs):
        for j, new in enumerate(pairs):
            cost = nominal.switch(old, new)
            assert tables[1].host_call_ns[i, j] == cost.host_call_ns
            assert tables[1].switching_ns[i, j] == cost.switching_ns
    assert tables[1].assumed == nominal.assumed
    assert not tables[1].stall_ns.any()
    assert not tables[1].extra_energy_j.any()


@pytest.mark.parametrize(
    ("slug", "low_ms", "high_ms"),
    [
        ("h200", 6, 100),
        ("h100-sxm", 6, 100),
        ("a100-sxm-80gb", 4.5, 200),
        ("rtx-3080-ti", 4.5, 200),
        ("quadro-rtx-6000", 25, 500),
        ("b200", 0.01, 100),
        ("rtx-5090", 0.01, 100),
    ],
)
def test_conflicting_sources_are_both_carried(slug: str, low_ms: float, high_ms: float) -> None:
    gpu = load_gpu(slug)
    a, b = Clocks(gpu.sm.values_mhz[0], AUTO), AUTO_CLOCKS
    ends = [switching_model(gpu, level).switch(a, b).switching_ns for level in ("low", "high")]
    assert ends == [low_ms * 1e6, high_ms * 1e6]
    if slug == "quadro-rtx-6000":
        assert switching_model(gpu).switch(a, b).switching_ns == 150_000_000


def test_blackwell_comes_with_a_host_call_of_0_and_of_5_ms() -> None:
    for slug in ("b200", "rtx-5090"):
        gpu = load_gpu(slug)
        calls = [switching_model(gpu, level).sm.host_call_ns for level in ("low", "nominal")]
        assert calls == [0, 5_000_000]
        assert f"{slug}.switching.sm.switching_ns" in switching_model(gpu).assumed


def test_one_memory_clock_is_a_call_without_a_change() -> None:
    cost = switching_model(load_gpu("b200")).switch(Clocks(1410, AUTO), Clocks(1410, 3996))
    assert cost == SwitchCost(host_call_ns=5_000_000, switching_ns=0)


def test_an_unknown_latency_is_refused_not_taken_as_none() -> None:
    gpu = load_gpu("h200")
    facts = {path: fact for path, fact in gpu.facts.items() if not path.startswith("switching.memory")}
    with pytest.raises(InputError, match=r"h200: switching\.memory\.switching_ns is unknown"):
        switching_model(replace(gpu, facts=facts))


def test_directions_may_be_known_apart() -> None:
    up = Fact(value=9e6, source="made up for a test", kind="measured")
    model = switching_model(load_gpu("h200").with_facts({"switching.sm.up_ns": up}))
    assert (model.sm.up_ns, model.sm.down_ns) == (9_000_000, 25_000_000)


def test_models_survive_pickling() -> None:
    assert pickle.loads(pickle.dumps(MODEL)) == MODEL


class Broken:
    def __init__(self, answer: object) -> None:
        self.answer = answer

    def switch(self, old: Clocks, new: Clocks, /) -> SwitchCost:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer() if callable(self.answer) else self.answer  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (SwitchCost(host_call_ns=1, switching_ns=2), "no-op is free"),
        (None, "returned None; expected a SwitchCost"),
        (1.5, "returned 1.5; expected a SwitchCost"),
        (lambda: SwitchCost(host_call_ns=1.5, switching_ns=2), "host_call_ns is 1.5; a whole number"),
        (
            lambda: SwitchCost(host_call_ns=0, switching_ns=0, extra_energy_j=math.inf),
            "is inf; a finite number",
        ),
        (KeyError("sm=1410"), "returned the exception KeyError"),
        (InputError("no part of a switch cost is negative"), "returned the exception InputError"),
    ],
)
def test_a_model_that_breaks_its_contract_is_named_with_the_pair(answer: object, says: str) -> None:
    model: SwitchingModel = Broken(answer)
    with pytest.raises(ContractError, match=says) as error:
        tabulate(model, [Clocks(1410, AUTO), AUTO_CLOCKS])
    assert str(error.value).startswith("Broken: switch(sm=1410,mem=auto -> ")
    assert "\n" not in str(error.value)


def test_any_model_is_tabulated_without_symmetry() -> None:
    class ByTarget:
        def switch(self, old: Clocks, new: Clocks, /) -> SwitchCost:
            if old == new:
                return SwitchCost(host_call_ns=0, switching_ns=0)
            target = 7 if new.sm_mhz is AUTO else 3
            return SwitchCost(host_call_ns=1, switching_ns=target, stall_ns=2, extra_energy_j=0.5)

    table = tabulate(ByTarget(), [Clocks(1410, AUTO), AUTO_CLOCKS])
    assert table.switching_ns.tolist() == [[0, 7], [3, 0]]
    assert table.stall_ns.tolist() == [[0, 2], [2, 0]]
    assert table.extra_energy_j.tolist() == [[0, 0.5], [0.5, 0]]
    assert table.assumed == ()


class Opaque:
    """A model that hides what it is: tabulated by asking for every pair."""

    def __init__(self, model: SwitchingModel) -> None:
        self.switch = model.switch


@given(pairs=st.lists(clocks, min_size=1, max_size=9, unique=True))
def test_the_catalogues_own_models_are_tabulated_as_if_asked_pair_by_pair(pairs: list[Clocks]) -> None:
    at_once, asked = tabulate(MODEL, pairs), tabulate(Opaque(MODEL), pairs)
    for name in ("host_call_ns", "switching_ns", "stall_ns", "extra_energy_j"):
        np.testing.assert_array_equal(getattr(at_once, name), getattr(asked, name), err_msg=name)


def test_1170_clocks_are_tabulated_quickly() -> None:
    pairs = list(load_gpu("rtx-4090").clock_table())
    start = time.perf_counter()
    table = tabulate(switching_model(load_gpu("rtx-4090")), pairs)
    assert time.perf_counter() - start < 1.0
    assert table.n_clocks == 1170
    assert int(np.count_nonzero(table.host_call_ns)) == 1170 * 1169


def test_protocols_take_the_gpus_times() -> None:
    gpu = load_gpu("h200")
    assert protocol_for(gpu, "free") is FREE
    for name in ("drain", "follow", "lookahead"):
        protocol = protocol_for(gpu, name)
        assert (protocol.trigger_ns, protocol.relaunch_ns) == (10_000, 7_300)
        assert protocol.drains == PROTOCOLS[name].drains
    with pytest.raises(UsageError, match="protocol 'drian': one of free, drain, follow, lookahead is right"):
        protocol_for(gpu, "drian")


def test_only_the_h200s_governor_was_sampled() -> None:
    governor = dynamic_governor(load_gpu("h200"))
    assert governor is not None
    assert (governor.sense_ns, governor.fall_ns, governor.rise_ns, governor.steps) == (
        20_000,
        160_000,
        200_000,
        4,
    )
    assert governor.overshoot == 0.5
    assert [slug for slug in gpu_names() if dynamic_governor(load_gpu(slug)) is not None] == ["h200"]
