"""Latency, power and governor: the formulas, their laws, and the vectorized code against a slow one."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from gpu_reference import SlowKernel
from hypothesis import given
from hypothesis import strategies as st

from kdvfs_sim.core.clocks import AUTO, AUTO_CLOCKS, Auto, Clocks
from kdvfs_sim.core.errors import InputError, UnknownKernelError
from kdvfs_sim.core.kinds import CATEGORIES, Category, KernelKind
from kdvfs_sim.core.protocols import LatencyModel, PowerModel
from kdvfs_sim.gpu.build import cost_table
from kdvfs_sim.gpu.catalogue import gpu_names, load_gpu
from kdvfs_sim.gpu.facts import Fact
from kdvfs_sim.gpu.governor import cap_position, effective_position, position
from kdvfs_sim.gpu.latency import p_norm, roofline_share, unit_latency
from kdvfs_sim.gpu.model import analytic_model
from kdvfs_sim.gpu.power import gpu_power

MODELLED = [category for category in CATEGORIES if category != "communication"]
slugs = st.sampled_from(gpu_names())
categories = st.sampled_from(MODELLED)
times = st.floats(0, 1e9, allow_subnormal=False)


@given(x=times, y=times, p=st.one_of(st.just(4.0), st.just(math.inf), st.floats(1, 40)))
def test_the_p_norm_lies_between_maximum_and_sum(x: float, y: float, p: float) -> None:
    norm = float(p_norm(np.array([x]), np.array([y]), p)[0])
    assert max(x, y) * (1 - 1e-12) <= norm <= (x + y) * (1 + 1e-12)
    assert norm == pytest.approx(float(p_norm(np.array([y]), np.array([x]), p)[0]))


@given(x=st.floats(1e-3, 1e6), y=st.floats(1e-3, 1e6), p=st.floats(1, 20), q=st.floats(1, 20))
def test_the_p_norm_falls_with_p(x: float, y: float, p: float, q: float) -> None:
    low, high = sorted((p, q))
    assert p_norm(np.array([x]), np.array([y]), high)[0] <= p_norm(np.array([x]), np.array([y]), low)[0] * (
        1 + 1e-12
    )


def test_the_fast_form_for_4_is_the_general_one() -> None:
    x, y = np.random.default_rng(1).uniform(0, 1e5, (2, 500))
    np.testing.assert_allclose(p_norm(x, y, 4.0), (x**4 + y**4) ** 0.25, rtol=1e-13)
    np.testing.assert_allclose(p_norm(x, y, 1.0), x + y)
    np.testing.assert_allclose(p_norm(x, y, math.inf), np.maximum(x, y))
    assert p_norm(np.zeros(1), np.zeros(1), 4.0)[0] == 0.0


@given(
    share=st.floats(0, 1),
    fixed=st.floats(0, 0.9),
    sm=st.floats(200, 3000),
    p=st.sampled_from([1.0, 4.0, math.inf]),
)
def test_a_unit_latency_is_1_where_it_says(share: float, fixed: float, sm: float, p: float) -> None:
    latency = unit_latency(np.array([share]), np.array([fixed]), np.array([sm]), 1000.0, p)
    assert latency.duration_ns(sm, 1000.0)[0, 0] == pytest.approx(1.0)


@given(slug=slugs, category=categories, data=st.data())
def test_vectorized_equals_the_slow_reference(slug: str, category: Category, data: st.DataObject) -> None:
    facts = load_gpu(slug)
    typical_ns = data.draw(st.floats(1e3, 1e8))
    limit = facts.need("power.limit_w").value
    cap = data.draw(st.floats(facts.value("power.limit_min_w", 50.0), limit))
    slow = SlowKernel(gpu=facts, path=f"category.{category}", typical_ns=typical_ns)
    costs = cost_table(
        facts,
        [KernelKind(name="k", category=category)],
        [typical_ns],
        power_limit_w=cap,
    )
    row = data.draw(st.integers(0, costs.n_clocks - 1))
    request = costs.clocks[row]
    mem = facts.default_memory_mhz if isinstance(request.mem_mhz, Auto) else request.mem_mhz
    asked = math.inf if isinstance(request.sm_mhz, Auto) else request.sm_mhz
    effective = Clocks(slow.effective_mhz(asked, mem, cap), mem)
    assert costs.clocks[costs.effective[0, row]] == effective
    at = costs.index(effective)
    assert costs.duration_ns[0, at] == pytest.approx(slow.duration_ns(effective.sm_mhz, mem), rel=1e-9)
    assert costs.power_w[0, at] == pytest.approx(slow.power_w(effective.sm_mhz, mem), rel=1e-9)
    reached = min(asked, facts.auto_ceiling_mhz if math.isinf(asked) else facts.ceiling_mhz)
    reached = max(mhz for mhz in facts.sm.values_mhz if mhz <= reached)
    assert costs.idle_power_w[row] == pytest.approx(slow.idle_w(reached, mem), rel=1e-9)


@given(slug=slugs, category=categories)
def test_power_rises_and_time_falls_with_the_sm_clock(slug: str, category: Category) -> None:
    facts = load_gpu(slug)
    model = analytic_model(facts, [KernelKind(name="k", category=category)], [1e6])
    for memory in facts.memory:
        durations, powers = model.at(memory)
        assert (np.diff(durations[0]) <= 0).all()
        assert (np.diff(powers[0]) > 0).all()
        idle = model.power.gpu.idle_w(facts.sm_clocks(memory), memory.mhz)
        assert (np.diff(idle) > 0).all()
        assert (powers[0] >= idle).all()


@given(slug=slugs, sm=st.integers(100, 3300))
def test_the_voltage_is_flat_then_rises_to_its_stated_value(slug: str, sm: int) -> None:
    facts = load_gpu(slug)
    shared = gpu_power(facts)
    knee, top = facts.need("voltage.knee_mhz").value, facts.ceiling_mhz
    assert shared.voltage(min(sm, knee)) == 1.0
    assert float(shared.voltage(top)) == pytest.approx(1.0 + facts.need("voltage.rise").value)
    assert float(shared.voltage(sm + 1)) >= float(shared.voltage(sm))
    assert float(shared.idle_w(facts.auto_ceiling_mhz, facts.default_memory_mhz)) == pytest.approx(
        facts.need("power.idle_w").value
    )


@given(
    powers=st.lists(st.floats(50, 900), min_size=1, max_size=12).map(sorted),
    caps=st.tuples(st.floats(0, 1000), st.floats(0, 1000)),
)
def test_the_cap_is_monotone_and_kept_where_it_can_be(powers: list[float], caps: tuple[float, float]) -> None:
    low, high = (int(cap_position(np.array([powers]), cap)[0]) for cap in sorted(caps))
    assert low <= high
    if powers[0] <= max(caps):
        assert powers[high] <= max(caps)
        assert high + 1 == len(powers) or powers[high + 1] > max(caps)
    else:
        assert high == 0


def test_the_cap_spares_kinds_of_unknown_power_and_boards_of_unknown_limit() -> None:
    powers = np.array([[100.0, 200.0, 300.0], [np.nan, np.nan, np.nan]])
    assert cap_position(powers, 150.0).tolist() == [0, 2]
    assert cap_position(powers, None).tolist() == [2, 2]
    assert effective_position(np.array([0, 1, 2], dtype=np.int32), cap_position(powers, 250.0)).tolist() == [
        [0, 1, 1],
        [0, 1, 2],
    ]


def test_a_position_is_the_highest_clock_at_or_below_a_limit() -> None:
    assert [position((100, 200, 300), limit) for limit in (50, 100, 199, 200, 999)] == [0, 0, 0, 1, 2]


def test_the_model_answers_as_a_latency_and_a_power_model() -> None:
    kinds = [KernelKind(name="a", category="gemm"), KernelKind(name="b", category="copy")]
    model = analytic_model(load_gpu("h200"), kinds, [1e6, 5e4])
    latency: LatencyModel = model
    power: PowerModel = model
    clocks = Clocks(1410, 3201)
    costs = cost_table(load_gpu("h200"), kinds, [1e6, 5e4])
    for i, kind in enumerate(kinds):
        assert latency.duration_ns(kind, clocks) == pytest.approx(costs.duration_ns[i, costs.index(clocks)])
        assert power.busy_power_w(kind, clocks) == pytest.approx(costs.power_w[i, costs.index(clocks)])
    assert power.idle_power_w(clocks) == pytest.approx(costs.idle_power_w[costs.index(clocks)])
    with pytest.raises(UnknownKernelError, match="other"):
        latency.duration_ns(KernelKind(name="other"), clocks)
    with pytest.raises(InputError, match="effective clocks"):
        power.idle_power_w(AUTO_CLOCKS)


class TestRoofline:
    gpu = load_gpu("h200")

    def share(self, flops: float, n_bytes: float, typical_ns: float, *, tensor: bool = True) -> float:
        return float(
            roofline_share(
                self.gpu,
                flops=np.array([flops]),
                n_bytes=np.array([n_bytes]),
                typical_ns=np.array([typical_ns]),
                tensor=np.array([tensor]),
                sm_mhz=np.array([1491.0]),
            )[0]
        )

    def test_a_square_gemm_is_sm_bound(self) -> None:
        n = 8192
        assert self.share(2 * n**3, 3 * 2 * n * n, 1.65e6) > 0.85

    def test_a_skinny_gemm_is_as_memory_bound_as_a_copy(self) -> None:
        k, n = 16384, 16384
        copy = self.gpu.need("category.copy.compute_share").value
        assert self.share(2 * 8 * k * n, 2 * k * n, 1.2e5) == pytest.approx(copy)

    def test_a_32_bit_gemm_is_measured_against_the_vector_units(self) -> None:
        n = 2048
        flops = 2 * n**3
        assert self.share(flops, 3 * 4 * n * n, flops / 45e3) > 0.8

    def test_a_kernel_that_it_does_not_explain_is_left_to_its_category(self) -> None:
        assert math.isnan(self.share(1e6, 1e6, 1e6))
        assert math.isnan(self.share(math.nan, math.nan, 1e6))


def test_a_roofline_changes_the_split_and_is_flagged() -> None:
    gpu = load_gpu("h200")
    skinny = KernelKind(name="gemv", category="gemm", flops=4.3e9, bytes=5.4e8)
    plain = KernelKind(name="gemm", category="gemm")
    costs = cost_table(gpu, [skinny, plain], [1.2e5, 1.2e5])
    low = costs.index(Clocks(1005, AUTO))
    assert costs.ratio[0, low] < 1.2 < costs.ratio[1, low]
    assert "h200.roofline" in costs.assumed
    assert "h200.roofline" not in cost_table(gpu, [plain], [1.2e5]).assumed


def test_a_memory_bound_gemm_runs_and_draws_as_a_copy_does() -> None:
    gpu = load_gpu("h200")
    kinds = [
        KernelKind(name="decode", category="gemm", flops=4.3e9, bytes=5.4e8, grid=(132, 1, 1)),
        KernelKind(name="copy", category="copy"),
        KernelKind(name="prefill", category="gemm", flops=1.1e12, bytes=4e8, grid=(132, 1, 1)),
    ]
    costs = cost_table(gpu, kinds, [1.2e5, 1.2e5, 1.7e6])
    assert costs.request_power_w[0, costs.auto] == pytest.approx(costs.request_power_w[1, costs.auto])
    assert [costs.clocks[row].sm_mhz for row in costs.effective[:, costs.auto]] == [1980, 1980, 1500]


def test_few_blocks_draw_little_and_are_not_capped() -> None:
    gpu = load_gpu("h200")
    kinds = [KernelKind(name=f"g{n}", category="gemm", grid=(n, 1, 1)) for n in (1, 33, 66, 132, 1000)]
    costs = cost_table(gpu, kinds, [1e5] * 5)
    above_idle = (
        costs.power_w[:, costs.index(Clocks(1485, 3201))]
        - costs.idle_power_w[costs.index(Clocks(1485, AUTO))]
    )
    np.testing.assert_allclose(above_idle / above_idle[-1], [1 / 132, 0.25, 0.5, 1.0, 1.0])
    assert costs.clocks[costs.effective[0, costs.auto]].sm_mhz == 1980
    assert costs.clocks[costs.effective[3, costs.auto]].sm_mhz == 1500
    assert "h200.occupancy" in costs.assumed
    assert "h200.occupancy" not in cost_table(gpu, kinds[3:], [1e5] * 2).assumed


def test_copies_memory_sets_and_collectives_keep_their_time() -> None:
    kinds = [
        KernelKind(name="Memcpy HtoD (Pinned -> Device)", op_class="memcpy", bytes=1e6),
        KernelKind(name="Memcpy DtoD (Device -> Device)", op_class="memcpy", bytes=1e8),
        KernelKind(name="Memset (Device)", op_class="memset", bytes=1e8),
        KernelKind(name="ncclDevKernel_AllReduce_Sum_bf16_RING_LL", category="communication"),
    ]
    costs = cost_table(load_gpu("h200"), kinds, [1e5] * 4)
    assert (costs.ratio == 1.0).all()
    at_auto = costs.request_power_w[:, costs.auto]
    # a copy over a link draws far less than one within the memory, one over the host's next to nothing
    assert at_auto[0] < at_auto[3] < at_auto[1] == at_auto[2]
    assert 5 < at_auto[0] - costs.idle_power_w[costs.auto] < 20
    unknown = cost_table(load_gpu("h100-sxm"), kinds, [1e5] * 4)
    assert unknown.request_power_w[0, unknown.auto] == unknown.request_power_w[3, unknown.auto]


def test_kinds_without_a_model_keep_their_time_and_have_a_null_power() -> None:
    gpu = load_gpu("h200")
    facts = {path: fact for path, fact in gpu.facts.items() if not path.startswith("category.optimizer")}
    stripped = replace(gpu, facts=facts)
    costs = cost_table(stripped, [KernelKind(name="adam", category="optimizer")], [1e5])
    assert (costs.ratio == 1.0).all()
    assert np.isnan(costs.power_w).all()
    assert costs.clocks[costs.effective[0, costs.auto]].sm_mhz == 1980


def test_kernels_with_numbers_of_their_own_do_not_take_their_categorys() -> None:
    gpu = load_gpu("h200").with_facts(
        {
            "kernel.my_*.sm_mhz": _fact(1500),
            "kernel.my_*.power_w": _fact(600),
            "kernel.my_*.compute_share": _fact(0.1),
        }
    )
    kinds = [
        KernelKind(name="my_gemm", category="gemm", flops=1e12, bytes=1e9),
        KernelKind(name="a", category="gemm"),
    ]
    costs = cost_table(gpu, kinds, [1e6, 1e6])
    assert costs.ratio[0, costs.index(Clocks(1005, AUTO))] < 1.02
    assert costs.power_w[0, costs.index(Clocks(1500, 3201))] == pytest.approx(600)
    assert costs.clocks[costs.effective[0, costs.auto]].sm_mhz > 1500


def test_a_power_below_idle_is_refused() -> None:
    gpu = load_gpu("h200").with_facts({"category.copy.power_w": _fact(90)})
    with pytest.raises(
        InputError, match=r"h200: category\.copy\.power_w is 90; more than the idle 119 W is right"
    ):
        cost_table(gpu, [KernelKind(name="c", category="copy")], [1e5])


@pytest.mark.parametrize("durations", [[1e5], [1e5, math.nan], [1e5, -1.0], [[1e5, 1e5]]])
def test_durations_that_are_none_are_refused(durations: list[float]) -> None:
    kinds = [KernelKind(name="a"), KernelKind(name="b")]
    with pytest.raises(InputError, match="2 durations from 0 ns are right"):
        cost_table(load_gpu("h200"), kinds, durations)


@pytest.mark.parametrize("p", [1.0, 2.5, 4.0, math.inf])
def test_the_exponent_is_a_number_of_the_entry(p: float) -> None:
    gpu = load_gpu("h200").with_facts({"latency.exponent": _fact(p)})
    costs = cost_table(gpu, [KernelKind(name="n", category="normalization")], [1e5])
    share = gpu.need("category.normalization.compute_share").value
    fixed = gpu.need("category.normalization.fixed_share").value
    sm, memory = share * 1980 / 1605, 1 - share
    norm = max if math.isinf(p) else lambda x, y: (x**p + y**p) ** (1 / p)
    expected = (1 - fixed) * norm(sm, memory) / norm(share, memory) + fixed
    assert costs.ratio[0, costs.index(Clocks(1605, AUTO))] == pytest.approx(expected)


def _fact(value: float) -> Fact:
    return Fact(value=value, source="made up for a test", kind="measured")
