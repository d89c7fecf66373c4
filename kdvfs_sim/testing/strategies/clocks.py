"""Clock pairs, the tables that GPUs list, and GPUs."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from kdvfs_sim.core.clocks import AUTO, AUTO_CLOCKS, Clocks, ClockTable
from kdvfs_sim.gpu.catalogue import gpu_names, load_gpu
from kdvfs_sim.gpu.facts import GpuFacts

PAIRS = (
    AUTO_CLOCKS,
    Clocks(900, 1000),
    Clocks(600, 1000),
    Clocks(300, 1000),
    Clocks(AUTO, 1000),
    Clocks(900, 500),
    Clocks(600, 500),
)


def clock_pairs(*, may_be_auto: bool = True) -> st.SearchStrategy[Clocks]:
    """Any pair of clocks; either part may be AUTO."""
    mhz = st.sampled_from([600, 900, 300]) | st.integers(1, 10_000)
    part = st.just(AUTO) | mhz if may_be_auto else mhz
    return st.builds(Clocks, part, part)


def clock_tables() -> st.SearchStrategy[ClockTable]:
    """Odd ones (AUTO only, one clock, one domain, holes) and those of the catalogue's GPUs."""
    few = st.lists(st.sampled_from([600, 900, 300, 1200, 7]), max_size=4, unique=True)
    grids = st.builds(ClockTable.grid, st.just("odd"), few, few)
    holes = st.builds(ClockTable, st.just("holes"), st.lists(clock_pairs(), max_size=5).map(tuple))
    return grids | holes | gpus().map(GpuFacts.clock_table)


@st.composite
def gpus(draw: st.DrawFn) -> GpuFacts:
    """GPUs of the catalogue, with any uncertain number somewhere else in its range."""
    gpu = load_gpu(draw(st.sampled_from(sorted(gpu_names()))))
    uncertain = sorted(
        path for path, fact in gpu.facts.items() if fact.at("low") < fact.at("high") and "." in path
    )
    moved = {}
    for path in draw(st.lists(st.sampled_from(uncertain), max_size=3, unique=True)) if uncertain else []:
        fact = gpu.facts[path]
        value = draw(st.sampled_from([fact.at("low"), fact.at("high")]))
        moved[path] = replace(fact, value=value)
    return gpu.with_facts(moved)
