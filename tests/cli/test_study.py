"""``kdvfs study switching`` end to end, on two long stretches of unlike kernels."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from .conftest import Outcome


def stretches(path: Path) -> Path:
    rows = ["name,start_ns,duration_ns,category"]
    rows += [f"{name},{i * 2_000_000},2000000,{name}" for i, name in enumerate(["gemm"] * 4 + ["copy"] * 4)]
    path.write_text("\n".join(rows) + "\n")
    return path


def test_a_study_prints_json_and_leaves_its_files(kdvfs: Callable[..., Outcome], tmp_path: Path) -> None:
    outcome = kdvfs(
        "study", "switching", stretches(tmp_path / "t.csv"), "--gpu", "h200", "--protocol", "lookahead",
        "--iterations", "1", "--slack", "2%", "--workers", "1", "--json", "--out-dir", tmp_path / "out",
    )  # fmt: skip
    assert outcome.code == 0, outcome.stderr
    document = json.loads(outcome.stdout)
    assert {row["gpu"] for row in document["rows"]} == {None, "h200"}
    written = json.loads((tmp_path / "out" / "study.json").read_text())
    assert written["rows"] == document["rows"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "study.html", "study.json", "study.png",
    ]  # fmt: skip
    assert document["sentences"][-1] == "Not validated on hardware."
