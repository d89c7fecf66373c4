"""The shipped readings of one H200: what the tool says of them must not change unnoticed."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kdvfs_hw.characterize.clock_moves import ClockScope, find_moves, read_scope
from kdvfs_hw.measure.counter import Edge, Period, energy_between, find_period
from kdvfs_hw.runs.compare import compare_record, comparison_lines
from kdvfs_hw.runs.record import read_record

from kdvfs_sim.core.errors import InputError
from kdvfs_sim.gpu.operators import read_operators

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "docs" / "validation" / "h200"
SCOPES = ROOT.parent / "shared" / "h200" / "scopes.tgz"


@pytest.mark.parametrize(
    ("name", "n_kernels", "time_pct", "energy_pct", "answer"),
    [
        ("layer", 46, -0.80, -0.39, "agrees"),
        ("model", 718, -0.80, -0.12, "agrees"),
        ("decode", 80, -21.59, -49.92, "disagrees"),
    ],
)
def test_a_step_follows_from_its_kernels(
    name: str, n_kernels: int, time_pct: float, energy_pct: float, answer: str
) -> None:
    found = compare_record(RECORDS / name)
    assert found.n_kernels == n_kernels
    assert found.verdict.overall == answer
    assert found.time.error_pct == pytest.approx(time_pct, abs=0.02)
    assert found.energy.error_pct == pytest.approx(energy_pct, abs=0.02)
    assert any("simply added up" in line for line in comparison_lines(found))


def test_the_steps_own_readings_play_no_part_in_its_prediction(tmp_path: Path) -> None:
    before = compare_record(RECORDS / "layer")
    text = (RECORDS / "layer" / "record.jsonl").read_text()
    steps = [line for line in text.splitlines() if line.startswith('{"kind":"step"')]
    assert len(steps) == 5
    for step in steps:
        text = text.replace(step, step.replace('"time_s":0.01', '"time_s":0.03'))
    (tmp_path / "record.jsonl").write_text(text)
    after = compare_record(tmp_path)
    assert after.time.predicted == before.time.predicted
    assert after.energy.predicted == before.energy.predicted
    assert after.time.answer == "disagrees"


def test_a_record_without_kernels_says_what_it_needs() -> None:
    with pytest.raises(InputError, match="observe --kernels"):
        compare_record(RECORDS / "decode_eager")


def test_the_layer_has_45_kernels_all_read_and_none_impossibly_fast() -> None:
    lines = read_record(RECORDS / "layer")
    parts = {line["part"]: line for line in lines if line["kind"] == "part"}
    assert sum(line["op_class"] == "kernel" for line in parts.values()) == 45
    read = [line for line in lines if line["kind"] == "kernel"]
    assert {line["part"] for line in read} == set(parts)
    assert all(line["energy_window"]["n_periods"] >= 5 for line in read)
    rates = [parts[line["part"]]["flops"] / line["time_s"] for line in read if parts[line["part"]]["flops"]]
    assert min(rates) > 500e12
    assert max(rates) < 989e12  # the datasheet's dense bf16


def test_what_observe_writes_is_what_fit_reads() -> None:
    readings = read_operators(RECORDS / "layer" / "kernels.csv")
    assert len(readings) == 46
    assert {reading.category for reading in readings} >= {"gemm", "attention", "normalization", "optimizer"}
    assert all(reading.power_w > 100 for reading in readings)


def windows(name: str) -> list[dict[str, Any]]:
    """The stretches between two updates of the counter that the record took energy over."""
    lines = read_record(RECORDS / name)
    return [line for line in lines if line.get("energy_window") and line["energy_window"]["energy_j"]]


def on_a_grid(t_ns: np.ndarray, about_ns: float) -> tuple[float, np.ndarray]:
    """The period of instants that are about that many, or multiples of it, apart; how far each is off."""
    order = np.argsort(t_ns)
    k, period, near = np.zeros(len(t_ns)), about_ns, t_ns[order] - t_ns.min()
    for i in range(1, len(near)):
        k[i] = k[i - 1] + round((near[i] - near[i - 1]) / period)
        if i > 3:
            period = float(np.polyfit(k[: i + 1], near[: i + 1], 1)[0])
    off = np.empty_like(near)
    off[order] = near - np.polyval(np.polyfit(k, near, 1), k)
    return period, off


@pytest.mark.parametrize("name", ["layer", "model", "decode", "decode_eager"])
def test_the_counters_period_is_found_in_what_was_seen_of_it_on_a_real_gpu(name: str) -> None:
    """A record of then keeps of each window the update it began with. Those, over minutes, lie on one grid;
    how far each was seen from it is the blur of real reads, in which the period has to be found."""
    seen = np.array([line["energy_window"]["begin_ns"] for line in windows(name)])
    period_ns, blur_ns = on_a_grid(seen, 100e6)
    (characterized,) = [
        line for line in read_record(RECORDS / "characterize") if line["kind"] == "energy_counter"
    ]
    assert period_ns == pytest.approx(characterized["found"]["period_ms"] * 1e6, rel=2e-4)
    assert float(np.std(blur_ns)) < 4e6
    width_ns = round(2 * float(np.max(np.abs(blur_ns))))
    updates = [round(i * period_ns + blur) for i, blur in enumerate(np.tile(blur_ns, 30)[:60])]
    half = width_ns // 2
    edges = [Edge(early_ns=t - half, late_ns=t + half, energy_mj=i) for i, t in enumerate(updates)]
    # one read that waited, as reads of this driver do, shows an update anywhere in most of a period
    late = edges[20]
    edges[20] = Edge(early_ns=late.early_ns - 85_000_000, late_ns=late.late_ns, energy_mj=late.energy_mj)
    for some in (edges, edges[:10], edges[15:40], edges[::2]):
        found = find_period(some)
        assert found is not None
        n_whole = round(found.period_ns / period_ns)
        assert n_whole == (2 if len(some) == 30 else 1)  # every other update, evenly: nothing tells
        assert found.period_ns == pytest.approx(n_whole * period_ns, rel=0.012)


def test_a_window_of_another_length_than_its_energy_is_not_taken() -> None:
    """While the model was read, the period was taken for 53.9 ms for a while: 26 windows of whole "periods"
    are 1 to 4 % longer or shorter than the stretch between the two updates they were taken from."""
    wrong = []
    for line in windows("model"):
        window = line["energy_window"]
        length_ns = window["end_ns"] - window["begin_ns"]
        n_real = round(length_ns / 100e6)
        if abs(n_real * 100e6 / length_ns - 1) < 0.005:
            continue
        wrong.append(line)
        edges = [
            Edge(
                early_ns=round(window["begin_ns"]) + i * 100_000_000 - 2_500_000,
                late_ns=round(window["begin_ns"]) + i * 100_000_000 + 2_500_000,
                energy_mj=round(1000 * window["energy_j"] * i / n_real),
            )
            for i in range(n_real + 1)
        ]
        taken = Period(period_ns=length_ns / window["n_periods"], jitter_ns=2_000_000.0, n_edges=50)
        again = energy_between(edges, taken, edges[0].early_ns, edges[-1].late_ns, min_periods=1)
        if again.power_w is not None:
            assert again.power_w == pytest.approx(window["energy_j"] / (n_real * 0.1), rel=0.006)
    assert len(wrong) == 26


@pytest.mark.parametrize(
    ("name", "time_pct", "energy_pct"),
    [("layer", -0.79, -0.42), ("model", -0.26, -0.38), ("decode", -21.59, -49.92)],
)
def test_the_answers_stay_when_every_window_is_given_its_length(
    tmp_path: Path, name: str, time_pct: float, energy_pct: float
) -> None:
    lines = read_record(RECORDS / name)
    for line in lines:
        window = line.get("energy_window")
        if window and window["energy_j"]:
            real_s = round((window["end_ns"] - window["begin_ns"]) / 100e6) * 0.1
            line["power_w"] = window["energy_j"] / real_s
            line["energy_j"] = line["power_w"] * line["time_s"]
    (tmp_path / "record.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    found = compare_record(tmp_path)
    assert found.verdict.overall == compare_record(RECORDS / name).verdict.overall
    assert found.time.error_pct == pytest.approx(time_pct, abs=0.02)
    assert found.energy.error_pct == pytest.approx(energy_pct, abs=0.02)


def shipped_scope(name: str) -> ClockScope:
    data = gzip.decompress((RECORDS / "characterize" / f"scope_{name}.csv.gz").read_bytes())
    table = np.loadtxt(io.BytesIO(data), delimiter=",", skiprows=1)
    return ClockScope(t_ns=table[:, 0].astype(np.int64), sm_mhz=table[:, 1])


def test_the_chips_own_moves_are_found_in_the_shipped_scope() -> None:
    moves = find_moves(shipped_scope("bursts"))
    assert moves.n_falls == 37
    assert moves.fall_ns == pytest.approx(100_000)
    assert moves.rise_ns is not None
    assert moves.rise_ns <= 40_000
    assert (moves.high_mhz, moves.settled_mhz) == (pytest.approx(1980, abs=2), pytest.approx(1815, abs=2))


@pytest.mark.skipif(not SCOPES.exists(), reason="earlier scopes are not beside this checkout")
def test_and_in_earlier_scopes_where_a_copy_shows_none() -> None:
    found = {}
    with tarfile.open(SCOPES) as archive:
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            data = np.load(io.BytesIO(file.read()))
            found[member.name] = find_moves(
                ClockScope(t_ns=(data["t"] * 1e6).astype(np.int64), sm_mhz=data["f"])
            )
    assert found["scope_copy.npz"].n_falls == 0
    for share in ("0.0", "0.1", "0.3", "1.0"):
        moves = found[f"scope_gemm_p{share}.npz"]
        assert moves.n_falls > 400
        assert moves.fall_ns is not None
        assert 80_000 <= moves.fall_ns <= 200_000


def test_timer_and_cycles_become_clocks() -> None:
    words = [
        v for i in range(6) for v in (1000 + 20_000 * i, 7 + 30_000 * min(i, 3) + 20_000 * max(0, i - 3))
    ]
    scope = read_scope([*words[:4], *words[2:]])  # a sample seen twice is no time
    assert scope.sm_mhz.tolist() == [1500.0, 1500.0, 1500.0, 1000.0, 1000.0]
    assert scope.t_ns.tolist() == [20_000, 40_000, 60_000, 80_000, 100_000]


def test_made_up_moves_are_found_with_their_lengths() -> None:
    clock: list[float] = []
    for _ in range(20):
        clock += (
            [1980.0] * 50
            + list(np.linspace(1980, 1500, 7))
            + [1500.0] * 100
            + list(np.linspace(1500, 1980, 4))
        )
    scope = ClockScope(t_ns=np.arange(len(clock)) * 20_000, sm_mhz=np.array(clock))
    moves = find_moves(scope)
    assert (moves.n_falls, moves.n_rises) == (20, 20)
    assert moves.fall_ns == pytest.approx(120_000, abs=20_000)
    assert moves.rise_ns == pytest.approx(60_000, abs=20_000)
    still = ClockScope(t_ns=scope.t_ns, sm_mhz=np.full(len(clock), 1980.0))
    assert find_moves(still).fall_ns is None
