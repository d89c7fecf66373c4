"""Whoever takes a path takes it as text too."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kdvfs_sim
from kdvfs_sim import (
    Clocks,
    build_scene,
    load_gpu,
    read_cost_table,
    read_schedule,
    read_trace,
    write_schedule,
)
from kdvfs_sim.core.schedule_file import read_about
from kdvfs_sim.gpu.catalogue import write_gpu
from kdvfs_sim.gpu.fit.sweep import read_sweep
from kdvfs_sim.gpu.tables import write_cost_table
from kdvfs_sim.report.perfetto import write_perfetto
from kdvfs_sim.trace.parquet import read_parquet, write_parquet

# what other readers are made of; nobody outside calls them
INNER = (
    "kdvfs_sim.core.parquet",
    "kdvfs_sim.core.csv_table",
    "kdvfs_sim.trace.chrome",
    "kdvfs_sim.gpu.gpt3xl",
)


def _public() -> Iterator[Callable[..., Any]]:
    for name in kdvfs_sim.__all__:
        if inspect.isfunction(value := getattr(kdvfs_sim, name)):
            yield value
    for module in pkgutil.walk_packages(kdvfs_sim.__path__, "kdvfs_sim."):
        if ".cli" in module.name or module.name.rpartition(".")[2].startswith("_"):
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            ours = inspect.isfunction(value) and not value.__module__.startswith(INNER)
            if ours and name.startswith(("read_", "write_", "load_")):
                yield value


@pytest.mark.parametrize(
    "function", sorted(set(_public()), key=lambda f: f.__qualname__), ids=lambda f: f.__name__
)
def test_a_path_may_be_text(function: Callable[..., Any]) -> None:
    for parameter in inspect.signature(function).parameters.values():
        options = {option.strip() for option in str(parameter.annotation).split("|")}
        assert "Path" not in options or "str" in options, f"{function.__module__}.{function.__name__}"


def test_text_does_what_a_path_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trace = read_trace("h200_gpt3xl_layer_train")
    scene = build_scene(trace)
    free = scene.protocols["free"]
    plan = scene.static(Clocks.parse("sm=1410,mem=auto"), free)
    write_schedule(plan, "x.json", about={"gpu": "h200"})
    assert read_schedule("x.json") == plan
    assert read_about("x.json") == {"gpu": "h200"}
    write_perfetto(scene.replay(plan, free).timeline, "timeline.json")
    write_parquet(trace, "x.parquet")
    assert read_parquet("x.parquet").n_ops == read_trace("x.parquet").n_ops == trace.n_ops
    write_cost_table(scene.costs["nominal"], "costs.csv")
    assert read_cost_table("costs.csv").kinds == scene.costs["nominal"].kinds
    write_gpu(load_gpu("h200"), "mine.toml")
    assert load_gpu("mine.toml").name == "NVIDIA H200"
    Path("sweep.csv").write_text("kernel,sm_mhz,mem_mhz,time_s\na,1410,1593,0.001\n")
    assert read_sweep("sweep.csv").kernels == ("a",)
    assert {path.name for path in tmp_path.iterdir()} == {
        "x.json", "timeline.json", "x.parquet", "costs.csv", "mine.toml", "sweep.csv"
    }  # fmt: skip
