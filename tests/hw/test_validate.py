"""The whole loop on an emulated GPU: agreement, and which part of a prediction did not hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from kdvfs_hw.devices import open_emulated
from kdvfs_hw.emulator.gpu import EmulatedGpu
from kdvfs_hw.measure.counter import EnergyWindow
from kdvfs_hw.measure.observer import Observation, Observer
from kdvfs_hw.nvml_control import GuardedClockControl
from kdvfs_hw.runs.live import Block, choose
from kdvfs_hw.runs.plan import bind, make_plan
from kdvfs_hw.runs.record import Record, read_record
from kdvfs_hw.runs.subject import emulated_workload
from kdvfs_hw.runs.sweep import best_clocks, check_points, read_points, sweep
from kdvfs_hw.runs.validate import Settings
from kdvfs_hw.workloads.base import Part
from subject import COPY_MHZ, PRODUCT_MHZ, Bench, NoGuard, alternating, bench, build, write_subject

from kdvfs_sim.core.clocks import AUTO, AUTO_CLOCKS, Clocks
from kdvfs_sim.core.errors import InputError, UnsupportedClocksError
from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.gpu.fit.sweep import read_sweep
from kdvfs_sim.gpu.tables import read_cost_table
from kdvfs_sim.study.scene import Scene, build_scene
from kdvfs_sim.trace.readers import read_trace

SHORT = {"seconds": 0.15, "kernel_seconds": 0.1, "kernel_settle_s": 0.06, "max_settle_s": 0.5, "repeats": 3}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return build(tmp_path_factory.mktemp("subject"))


def made(folder: Path, scene: Scene, *faults: str) -> Bench:
    return bench(folder / "gpu", scene, {"per-kernel": alternating()}, *faults)


def test_a_gpu_that_is_as_predicted_agrees(tmp_path: Path, scene: Scene) -> None:
    with Record(tmp_path / "run") as record:
        outcome = made(tmp_path, scene).validate(Settings(modes=("isolated", "live"), **SHORT), record)
    verdict = outcome.verdict
    assert (verdict.overall, verdict.time, verdict.energy) == ("agrees", "agrees", "agrees"), verdict.lines()
    assert verdict.because == ()
    assert outcome.troubles.n_void == 0
    lines = read_record(tmp_path / "run")
    kinds = [line["kind"] for line in lines]
    assert kinds[:2] == ["record", "plan"]
    assert kinds.index("plan") < kinds.index("isolated")
    assert len(lines[1]["sha256"]) == 64
    assert lines[-1]["overall"] == "agrees"
    assert set(read_sweep(tmp_path / "run" / "costs.csv").kernels) == {"product", "stream"}
    costs = read_cost_table(tmp_path / "run" / "costs.csv")
    rows = scene.costs["nominal"]
    product = costs.kinds.index("product")
    assert costs.duration_ns[product, costs.auto] == pytest.approx(
        rows.duration_ns[0, rows.effective[0, rows.auto]], rel=1e-3
    )
    assert "verdict: agrees" in (tmp_path / "run" / "record.md").read_text()


def test_a_schedule_without_requests_stays_at_the_start_clocks(tmp_path: Path, scene: Scene) -> None:
    nothing = Schedule(requests=(), protocol="lookahead")
    subject = bench(tmp_path / "gpu", scene, {"nothing": nothing})
    verdict = subject.validate(Settings(modes=("live",), **SHORT)).verdict
    answers = {(q.part, q.name): (q.answer, q.predicted) for q in verdict.quantities}
    for name in ("time", "energy"):
        assert answers["live nothing", name] == answers["live auto", name]
        assert answers["live nothing", name][0] == "agrees"


def test_kernels_5_percent_slower_disagree_and_are_named(tmp_path: Path, scene: Scene) -> None:
    outcome = made(tmp_path, scene, "slower=1.05").validate(Settings(modes=("isolated",), **SHORT))
    assert outcome.verdict.time == "disagrees"
    assert outcome.verdict.because == ("kernels of auto", "kernels of per-kernel")


def test_switching_10_times_slower_disagrees_and_is_named(tmp_path: Path, scene: Scene) -> None:
    outcome = made(tmp_path, scene, "slow_switching=10").validate(Settings(modes=("live",), **SHORT))
    assert outcome.verdict.overall == "disagrees"
    assert outcome.verdict.because == ("switching",)
    answers = {(q.part, q.name): q.answer for q in outcome.verdict.quantities}
    assert answers["live auto", "time"] == "agrees"
    assert answers["live per-kernel", "time"] == "disagrees"


def test_of_several_schedules_the_best_is_chosen_on_one_half_and_reported_on_the_other(
    tmp_path: Path, scene: Scene
) -> None:
    locks = {
        f"at-{mhz}": Schedule.static(Clocks(mhz, AUTO), stream=7, protocol="lookahead")
        for mhz in (1080, 1380)
    }
    plan = bench(tmp_path / "gpu", scene, locks).plan
    # in the odd rounds at-1380 is lucky; what is reported is its luck in the even ones
    read = {
        "auto": [(1.0, 100.0)] * 4,
        "at-1080": [(1.3, 60.0)] * 4,
        "at-1380": [(1.0, 80.0), (1.0, 90.0)] * 2,
    }
    blocks = [block(arm, *read[arm][i]) for i in range(4) for arm in read]
    assert choose(plan, blocks, slack=0.006) == ("at-1380", 0.0, pytest.approx(-10.0))
    assert choose(plan, blocks[:3], slack=0.006) is None


def block(arm: str, time_s: float, energy_j: float) -> Block:
    window = EnergyWindow(begin_ns=0, end_ns=1e9, n_periods=10, energy_j=energy_j / time_s)
    seen = Observation(
        from_ns=0,
        to_ns=10**9,
        energy=window,
        instant_w=None,
        sm_mhz=None,
        mem_mhz=None,
        sm_range_mhz=None,
        temperature_c=None,
        capped=0.0,
    )
    return Block(arm=arm, step_s=(time_s,), seen=seen, changes=())


@pytest.mark.soak
@pytest.mark.parametrize("protocol", ["drain", "follow"])
def test_a_live_run_is_what_the_replay_of_its_protocol_says(
    tmp_path: Path, scene: Scene, protocol: str
) -> None:
    clocks = [Clocks(PRODUCT_MHZ if i % 2 == 0 else COPY_MHZ, AUTO) for i in range(4)]
    schedule = Schedule.from_assignment(clocks, stream=7, protocol=protocol)
    subject = bench(tmp_path / "gpu", scene, {"per-kernel": schedule}, protocol=protocol)
    verdict = subject.validate(Settings(modes=("live",), **SHORT)).verdict
    assert verdict.overall == "agrees", verdict.lines()


def test_a_sweep_reads_a_list_and_reports_what_it_did_not_choose_on(tmp_path: Path, scene: Scene) -> None:
    (tmp_path / "points.csv").write_text("kernel,sm_mhz,mem_mhz\n*,1080,auto\nstream,1230,auto\n")
    subject = made(tmp_path, scene)
    with open_emulated(subject.gpu) as opened, Record(tmp_path / "run") as record:
        work = emulated_workload(scene, subject.gpu)
        points = check_points(read_points(tmp_path / "points.csv"), work, opened.device)
        assert len(points) == 5  # each kernel at AUTO besides
        control = GuardedClockControl(opened.device, NoGuard())
        record.begin(opened.device, "sweep")
        with Observer(opened.device) as observer:
            observer.await_period()
            readings = sweep(points, work, observer, control, record, repeats=2, seconds=0.1, settle_s=0.06)
        control.reset_clocks()
        with pytest.raises(InputError, match="has no kernel 'gemm'"):
            check_points([("gemm", AUTO_CLOCKS)], work, opened.device)
        with pytest.raises(UnsupportedClocksError):
            check_points([("*", Clocks(1000, AUTO))], work, opened.device)
    best = {each.part: each for each in best_clocks(readings)}
    assert best["stream"].clocks == Clocks(1080, AUTO)
    rows = scene.costs["nominal"]
    slower = float(rows.ratio[rows.kinds.index("stream"), rows.index(Clocks(1080, AUTO))])
    assert best["stream"].time_pct == pytest.approx(100 * (slower - 1), abs=0.01)
    assert best["stream"].energy_pct < -15
    costs = read_cost_table(tmp_path / "run" / "costs.csv")
    assert len(costs.kinds) == 2
    for wrong, problem in (
        ("stream,fast,auto", "line 3"),
        ("stream,1080", "line 3 has 2 cells"),
        (",1080,auto", "line 3"),
    ):
        (tmp_path / "points.csv").write_text(f"kernel,sm_mhz,mem_mhz\nstream,1080,auto\n{wrong}\n")
        with pytest.raises(InputError, match=problem):
            read_points(tmp_path / "points.csv")


class Fake:
    """A workload that names its parts its own way, as a captured graph does, and has no memory sets."""

    name = "fake"

    def __init__(self, kinds: list[KernelKind], n_ops: int) -> None:
        self.parts = tuple(Part(name=f"{i:03d} op", kind=kind) for i, kind in enumerate(kinds))
        self.n_ops = n_ops


def test_a_captured_step_fits_the_trace_it_was_recorded_as() -> None:
    scene = build_scene(read_trace("h200_gpt3xl_layer_train"))
    plan = make_plan(scene, {}, protocol="follow")
    kinds = [kind for kind in scene.program.kinds if kind.op_class != "memset"]
    twice = next(kind for kind in kinds if kind.category == "gemm")
    binding = bind(plan, Fake([*kinds, twice], 46), ("isolated", "live"))  # type: ignore[arg-type]
    assert binding.n_per_pass == 3
    assert (plan.n_ops, binding.anchors[0], binding.anchors[-1]) == (192, 0, 138)
    assert all(b - a in (0, 1) for a, b in pairwise(binding.anchors))
    alike = {name: parts for name, parts in binding.parts.items() if plan.kinds[name].op_class != "memset"}
    assert [len(parts) for name, parts in alike.items() if plan.kinds[name] == twice] == [2]
    assert all(parts for parts in alike.values())
    by_name = {part.name: part.kind for part in Fake([*kinds, twice], 46).parts}
    assert all(by_name[part].name == plan.kinds[name].name for name, parts in alike.items() for part in parts)
    with pytest.raises(InputError, match="whole number of steps"):
        bind(plan, Fake(kinds, 47), ("live",))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="has no kernel"):
        bind(plan, Fake(kinds[1:], 46), ("isolated",))  # type: ignore[arg-type]


def kdvfs(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from kdvfs_sim.cli import main; main()", "hw", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=cwd)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("fault", "answer"), [("", "agrees"), (",slower=1.05", "disagrees"), (",slow_switching=10", "disagrees")]
)
def test_one_command_optimizes_validates_and_says(tmp_path: Path, fault: str, answer: str) -> None:
    """In wall time, with the guardian process: needs a machine that is not busy with other things."""
    write_subject(tmp_path, kernel_ms=100.0, switching_ms=20.0, call_ms=1.0)
    done = kdvfs(
        *("validate", "step.csv", "--gpu", "gpu.toml", "--device", f"emulated:h200{fault}"),
        *("--protocol", "lookahead", "--mode", "isolated", "--mode", "live", "--allow-clock-control"),
        *(
            "--seconds",
            "1.5",
            "--repeats",
            "20" if answer == "agrees" else "5",
            "--settle",
            "3",
            "--out-dir",
            "run",
        ),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"verdict: {answer}"), done.stdout
    named = {"": "", ",slower=1.05": "kernels of auto", ",slow_switching=10": "switching"}[fault]
    assert named in done.stdout.splitlines()[1]
    (folder,) = (Path(os.environ["KDVFS_RUNTIME_DIR"]) / "kdvfs" / "emulated").iterdir()
    assert EmulatedGpu(folder).locks() == AUTO_CLOCKS


def test_control_needs_consent_and_a_bundle_holds_all_it_needs(tmp_path: Path) -> None:
    write_subject(tmp_path)
    subject = ("validate", "schedule.json", "--trace", "step.csv", "--gpu", "gpu.toml")
    from kdvfs_sim.core.schedule_file import write_schedule

    write_schedule(alternating(), tmp_path / "schedule.json")
    refused = kdvfs(*subject, "--mode", "live", "--device", "emulated:h200", cwd=tmp_path)
    assert refused.returncode == 2
    assert "--allow-clock-control" in refused.stderr
    bundled = kdvfs(*subject, "--bundle", "box", "--workload", "gpt3xl-layer", cwd=tmp_path)
    assert bundled.returncode == 0, bundled.stderr
    names = {path.name for path in (tmp_path / "box").iterdir()}
    assert names == {
        *("README.md", "code", "gpu.toml", "plan.json", "requirements.txt", "run.sh", "schedule.json"),
        "trace.parquet",
    }
    environment = {**os.environ, "PYTHON": sys.executable, "GPU": "emulated:h200"}
    ran = subprocess.run(
        [tmp_path / "box" / "run.sh", "doctor"], capture_output=True, text=True, check=False, env=environment
    )
    assert ran.returncode == 0, ran.stderr
    assert "lock SM clock" in ran.stdout
    plan = json.loads((tmp_path / "box" / "plan.json").read_text())
    assert [arm["name"] for arm in plan["arms"]] == ["auto", "schedule"]
