"""What is fixed before the first reading: which schedules a validation takes, and a digest of all of it."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from command import kdvfs
from kdvfs_hw.runs import plan as plans
from kdvfs_hw.runs.plan import Plan, make_plan
from kdvfs_hw.runs.record import Record, read_record
from kdvfs_hw.runs.subject import load_subject
from kdvfs_hw.runs.validate import Settings
from subject import alternating, bench, build, write_subject

from kdvfs_sim.core.errors import InputError, UsageError
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.core.schedule_file import write_schedule
from kdvfs_sim.study.scene import Scene


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return build(tmp_path_factory.mktemp("subject"))


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_subject(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(name: str, schedule: Schedule | None = None, **about: Any) -> str:
    about = {"trace": "step.csv", "gpu": "gpu.toml", **about}
    write_schedule(schedule or alternating(), name, about=about)
    return name


class TestSchedulesTogether:
    def test_those_of_one_trace_are_taken_by_their_names(self, desk: Path) -> None:
        names = [written("a/one.json"), written("b/two.json", trace=None), written("three.json", gpu=None)]
        names.append(written("four.json", trace="./step.csv", gpu=str(desk / "gpu.toml")))
        _, schedules, protocol = load_subject(names, trace="step.csv")
        assert (list(schedules), protocol) == (["one", "two", "three", "four"], "lookahead")

    def test_two_of_one_name_are_refused(self, desk: Path) -> None:
        names = [written("a/schedule.json"), written("b/schedule.json")]
        with pytest.raises(
            UsageError, match=r"a/schedule\.json and b/schedule\.json are both named 'schedule'"
        ):
            load_subject(names)
        done = kdvfs("validate", *names, "--device", "emulated:h200", cwd=desk)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)

    def test_none_takes_the_place_of_the_baseline(self, desk: Path, scene: Scene) -> None:
        loaded, schedules, protocol = load_subject([written("auto.json")])
        with pytest.raises(InputError, match="a schedule named 'auto' would take the place of the baseline"):
            make_plan(loaded, schedules, protocol=protocol)
        done = kdvfs("validate", "auto.json", "--device", "emulated:h200", cwd=desk)
        assert (done.returncode, done.stdout) == (3, "")

    @pytest.mark.parametrize("named", [None, "step.csv"])
    def test_one_for_another_trace_is_refused(self, desk: Path, named: str | None) -> None:
        shutil.copy("step.csv", "other.csv")
        names = [written("a/one.json"), written("b/two.json", trace="other.csv")]
        says = r"a/one\.json is for the trace 'step\.csv', b/two\.json for 'other\.csv'"
        with pytest.raises(UsageError, match=says):
            load_subject(names, trace=named)

    def test_one_for_another_gpu_is_refused_unless_the_model_is_named(self, desk: Path) -> None:
        names = [written("a/one.json"), written("b/two.json", gpu="h200")]
        with pytest.raises(UsageError, match=r"is for the GPU 'gpu\.toml', b/two\.json for 'h200'"):
            load_subject(names)
        assert load_subject(names, gpu="gpu.toml")[0].gpu.slug == "gpu"

    def test_one_for_another_boundary_is_refused(self, desk: Path) -> None:
        names = [written("a/one.json"), written("b/two.json", replace(alternating(), boundary="one-shot"))]
        with pytest.raises(UsageError, match=r"is for the boundary 'periodic', b/two\.json for 'one-shot'"):
            load_subject(names)

    def test_any_that_names_no_trace_needs_one(self, desk: Path) -> None:
        names = [written("a/one.json"), written("b/two.json", trace=None)]
        with pytest.raises(InputError, match=r"b/two\.json: does not say which trace it is for"):
            load_subject(names)


class TestDigest:
    def changed(self, plan: Plan) -> dict[str, Plan]:
        """By field: a plan that differs in nothing else."""
        kind, *_ = plan.kinds
        return {
            "source": replace(plan, source="other"),
            "gpu": replace(plan, gpu="other"),
            "arms": replace(plan, arms=(replace(plan.arms[0], time_s=1.0), *plan.arms[1:])),
            "protocol": replace(plan, protocol=plan.protocol.with_timing(relaunch_ns=7)),
            "switching_ns": replace(plan, switching_ns={k: ns + 1 for k, ns in plan.switching_ns.items()}),
            "kinds": replace(plan, kinds={**plan.kinds, kind: replace(plan.kinds[kind], flops=1.0)}),
            "memsets": replace(plan, memsets=(not plan.memsets[0], *plan.memsets[1:])),
            "assumed": replace(plan, assumed=("this",)),
            "cap_w": replace(plan, cap_w=123.0),
        }

    def test_a_change_of_anything_in_the_plan_changes_it(self, scene: Scene) -> None:
        plan = make_plan(scene, {"per-kernel": alternating()}, protocol="lookahead")
        changed = self.changed(plan)
        assert set(changed) == {field.name for field in fields(Plan)}
        digests = {name: each.to_json()["sha256"] for name, each in changed.items()}
        assert len({plan.to_json()["sha256"], *digests.values()}) == 1 + len(changed), digests
        longer = replace(plan, memsets=(*plan.memsets, False))
        assert longer.to_json()["sha256"] != plan.to_json()["sha256"]

    @pytest.mark.parametrize("name", ["TIME_TOLERANCE", "ENERGY_TOLERANCE", "SWITCHING_TOLERANCE"])
    def test_a_change_of_a_tolerance_changes_it(
        self, scene: Scene, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plan = make_plan(scene, {}, protocol="drain")
        before = plan.to_json()["sha256"]
        monkeypatch.setattr(plans, name, 2 * getattr(plans, name))
        assert plan.to_json()["sha256"] != before

    def test_the_record_s_first_lines_hold_all_of_it_and_the_settings(
        self, tmp_path: Path, scene: Scene
    ) -> None:
        settings = Settings(seconds=0.15, max_settle_s=0.2, repeats=3, seed=5)
        with Record(tmp_path / "run") as record:
            bench(tmp_path / "gpu", scene, {"per-kernel": alternating()}).validate(settings, record)
        line = read_record(tmp_path / "run")[1]
        assert line.pop("kind") == "plan"
        digest = line.pop("sha256")
        assert {field.name for field in fields(Settings)} <= set(line)
        assert (line["seed"], line["tolerances"]["time"]) == (5, 0.02)
        assert line["switching_ns"]
        for name in ("seed", "switching_ns", "timing", "tolerances"):
            assert (
                hashlib.sha256(json.dumps({**line, name: 0}, sort_keys=True).encode()).hexdigest() != digest
            )
        assert hashlib.sha256(json.dumps(line, sort_keys=True).encode()).hexdigest() == digest
