"""A study of a thousand cases on one and on two worker processes."""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest

from kdvfs_sim.gpu.catalogue import load_gpu
from kdvfs_sim.report.switching_page import study_json
from kdvfs_sim.study.plans import Budget
from kdvfs_sim.study.scene import Scene, build_scene
from kdvfs_sim.study.switching_study import SwitchingStudy, switching_study
from kdvfs_sim.trace.readers import read_trace

pytestmark = pytest.mark.bench
N_CASES = 1000


def run(scene: Scene, n_latencies: int, pool: ProcessPoolExecutor, n_workers: int) -> SwitchingStudy:
    return switching_study(
        {1: scene},
        budget=Budget(slack_pct=2.0),
        gpus=[load_gpu("h200")],
        latencies_ns=[int(ns) for ns in np.geomspace(1e3, 1e9, n_latencies)],
        executor=pool,
        n_workers=n_workers,
    )


def test_two_workers_are_nearly_twice_as_fast() -> None:
    if (os.cpu_count() or 1) < 2:
        pytest.skip("one processor")
    scene = build_scene(read_trace("h200_gpt3xl_layer_infer_cudagraph"))
    took_s, studies = [], []
    for n_workers in (1, 2):
        with ProcessPoolExecutor(n_workers, mp_context=get_context("spawn")) as pool:
            run(scene, n_workers, pool, n_workers)  # start the workers, load what is compiled
            began = time.perf_counter()
            studies.append(run(scene, N_CASES // 3, pool, n_workers))
            took_s.append(time.perf_counter() - began)
    assert len(studies[0].rows) >= N_CASES
    assert study_json(studies[0]) == study_json(studies[1])
    print(
        f"\n{len(studies[0].rows)} cases: {took_s[0]:.1f} s, {took_s[1]:.1f} s, x {took_s[0] / took_s[1]:.2f}"
    )
    assert took_s[0] / took_s[1] >= 1.8
