"""``kdvfs fit``: the page, the JSON, the entry written, and one line for every mistake."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from kdvfs_sim.cli import main
from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.core.kinds import KernelKind
from kdvfs_sim.gpu.catalogue import load_gpu, write_gpu
from kdvfs_sim.gpu.facts import Fact
from kdvfs_sim.gpu.model import analytic_model
from kdvfs_sim.trace.categories import category_of

from .synthetic import sweep
from .test_entry import MEM_MHZ, swept


@pytest.fixture
def a100(tmp_path: Path) -> Path:
    path = tmp_path / "a100.csv"
    swept(at=(705, 855, 1005, 1155, 1305, 1410), noise=0.002).rows.write_csv(path)
    return path


def run(*args: object) -> int:
    with pytest.raises(SystemExit) as end:
        main([str(arg) for arg in args])
    return int(end.value.code or 0)


def test_the_page_says_what_was_found(a100: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("fit", a100, "--suggest", 3, "--slack", "2%") == 0
    page = capsys.readouterr().out
    assert "30 readings of 5 kernels at 6 clock pairs" in page
    assert "time, p4+c: error" in page
    assert "at most 2 % slower" in page
    assert "nothing is left to read." in page


def test_the_json_is_all_there_is_on_stdout(
    a100: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = tmp_path / "mine.toml"
    assert run("fit", a100, "--gpu", "a100", "-o", entry, "--suggest", 4, "--margin", "p95", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["n_kernels"] == 5
    assert document["margin"] == "p95"
    assert document["time"]["median_pct"] < 1
    assert [len(document[name]) for name in ("kernels", "choices", "suggestions")] == [5, 5, 4]
    assert all(f"mem={MEM_MHZ}" in row["clocks"] for row in document["suggestions"])
    fact = load_gpu(entry).need("latency.residual_p95")
    assert (fact.source, fact.kind) == ("kdvfs fit of a100.csv", "measured")


def test_an_entry_is_written_that_replay_takes(
    a100: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = tmp_path / "mine.toml"
    assert run("fit", a100, "--gpu", "a100", "-o", entry) == 0
    assert "written" in capsys.readouterr().err
    assert run("gpus", entry) == 0
    assert "my_gemm_kernel" in capsys.readouterr().out


def test_repeats_are_held_back_from_the_choice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "repeats.parquet"
    sweep(n_kernels=3, n_repeats=3, noise=0.002).rows.write_parquet(path)
    assert run("fit", path, "--slack", "5%", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["held_out"]) == 3
    for choice, held in zip(document["choices"], document["held_out"], strict=True):
        assert held["energy_pct"] == pytest.approx(choice["energy_pct"], abs=1.5)


def test_findings_are_shown_and_do_not_stop_the_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mw.csv"
    sweep(n_kernels=2).rows.with_columns(power_w=pl.col("power_w") * 1000).write_csv(path)
    assert run("fit", path) == 0
    assert "unit-mix-up: the median power is" in capsys.readouterr().out


def test_a_sweep_of_times_alone_has_no_choices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "times.csv"
    sweep(n_kernels=2).rows.drop("power_w").write_csv(path)
    assert run("fit", path, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["power"] is None
    assert document["choices"] == []


@pytest.mark.parametrize("at", [(1410,), (1170, 1410)])
def test_the_first_readings_of_a_plan_are_enough_to_go_on(
    at: tuple[int, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "first.csv"
    swept(at=at, noise=0.002).rows.write_csv(path)
    entry = tmp_path / "first.toml"
    assert run("fit", path, "--gpu", "a100", "--suggest", 5, "--slack", "5%", "-o", entry, "--json") == 0
    wanted = json.loads(capsys.readouterr().out)["suggestions"]
    assert len(wanted) == 5
    assert all(row["gain_pct"] > 0 and row["clocks"] != f"sm=1410,mem={MEM_MHZ}" for row in wanted)
    assert load_gpu(entry).kernel_patterns


@pytest.mark.parametrize(
    ("args", "code", "problem"),
    [
        (["none.csv"], 3, "none.csv: No such file"),
        (["{sweep}", "--gpu", "none"], 3, "none"),
        (["{sweep}", "-o", "x.toml"], 2, "-o needs --gpu NAME"),
        (["{sweep}", "--slack", "fast"], 2, "--slack 'fast' is not a percentage"),
        (["{sweep}", "--margin", "95"], 2, "margin '95': p50 to p99 is right"),
        (
            ["{sweep}", "--gpu", "h200", "-o", "{folder}/x.toml"],
            3,
            "measured at memory clock 1593 MHz; NVIDIA H200",
        ),
        (["{sweep}", "--power-limit", "300"], 3, "no reading is left"),
        (["{sweep}", "--suggest", "0"], 2, "--suggest"),
        (["{sweep}", "--gpu", "a100", "-o", "{folder}/x.json"], 3, "ends in .toml"),
    ],
)
def test_mistakes_are_one_line(
    args: list[str], code: int, problem: str, a100: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("fit", *(arg.format(sweep=a100, folder=tmp_path) for arg in args)) == code
    output = capsys.readouterr()
    lines = [line for line in output.err.splitlines() if line.startswith("kdvfs:")]
    assert len(lines) == 1
    assert problem in lines[0]
    assert "Traceback" not in output.err


@pytest.fixture
def not_reached(tmp_path: Path) -> Path:
    """Requests below 802 MHz ran far slower than asked for."""
    path = tmp_path / "low.csv"
    rows = swept(at=(510, 600, 705, 855, 1005, 1155, 1305, 1410), noise=0.002).rows
    slower = pl.when(pl.col("sm_mhz") < 802).then((802 / pl.col("sm_mhz")).pow(2)).otherwise(1.0)
    rows.with_columns(time_s=pl.col("time_s") * slower).write_csv(path)
    return path


def test_a_fit_that_says_little_warns_and_names_the_remedy_that_mends_it(
    not_reached: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("fit", not_reached) == 0
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 1
    assert "requests up to 705 MHz gave less than that" in warnings[0]
    assert warnings[0].endswith("leave those out with --min-sm-mhz 855")
    assert run("fit", not_reached, "--min-sm-mhz", 855, "--json") == 0
    output = capsys.readouterr()
    assert "warning" not in output.err
    document = json.loads(output.out)
    assert document["warning"] == ""
    assert document["residual_p95"] < 0.01
    assert all(int(text.partition(",")[0].removeprefix("sm=")) >= 855 for text in document["clocks"])


def test_a_fit_without_a_remedy_names_its_findings(
    not_reached: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noisy = tmp_path / "noisy.csv"
    swept(at=(705, 855, 1005, 1155, 1305, 1410), noise=0.2).rows.write_csv(noisy)
    assert run("fit", noisy) == 0
    assert "warning: a reading in 20 takes over" in capsys.readouterr().err


@pytest.mark.parametrize("exponent", [1.0, 4.0])
def test_the_margin_printed_is_the_one_that_optimize_adds(
    exponent: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep_file, base, entry = tmp_path / "s.csv", tmp_path / "base.toml", tmp_path / "mine.toml"
    swept(at=(705, 855, 1005, 1155, 1305, 1410), noise=0.02).rows.write_csv(sweep_file)
    gpu = load_gpu("a100")
    form = Fact(value=exponent, source="test", kind="assumed")
    write_gpu(gpu.with_facts({"latency.exponent": form}), base)
    assert run("fit", sweep_file, "--gpu", base, "-o", entry) == 0
    late = load_gpu(entry).need("latency.residual_p95").value
    assert f"margin p95 {100 * late:.1f} %" in capsys.readouterr().out
    assert run("fit", sweep_file, "--gpu", base, "--json") == 0
    assert json.loads(capsys.readouterr().out)["residual_p95"] == pytest.approx(late)


def of_another_board(path: Path) -> Path:
    """Power whose part beyond 60 W follows the work rate alone: the A100's entry has more idle power."""
    rng = np.random.default_rng(0)
    rows = []
    for name, share, watts in (("gemm_qkv", 0.95, 330.0), ("softmax", 0.3, 220.0), ("gelu", 0.2, 230.0)):
        for mhz in (705, 855, 1005, 1155, 1305, 1410):
            slower = ((share * 1410 / mhz) ** 4 + (1 - share) ** 4) ** 0.25 / (
                share**4 + (1 - share) ** 4
            ) ** 0.25
            voltage = (1 + 0.12 * max(mhz - 1100, 0) / 310) / 1.12
            power_w = (60 + (watts - 60) * voltage**2 / slower) * np.exp(0.002 * rng.normal())
            rows.append((name, mhz, MEM_MHZ, 4e-4 * slower, power_w))
    columns = ["kernel", "sm_mhz", "mem_mhz", "time_s", "power_w"]
    pl.DataFrame(rows, schema=columns, orient="row").write_csv(path)
    return path


def test_what_the_entry_says_of_the_sweep_stands_beside_the_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep_file, entry = of_another_board(tmp_path / "s.csv"), tmp_path / "mine.toml"
    assert run("fit", sweep_file, "--gpu", "a100", "-o", entry, "--json") == 0
    output = capsys.readouterr()
    document = json.loads(output.out)
    # priced here as a cost table prices: by the entry alone
    rows, gpu = pl.read_csv(sweep_file), load_gpu(entry)
    errors = []
    for (name,), read in rows.group_by("kernel", maintain_order=True):
        kind = KernelKind(name=str(name), category=category_of(str(name)))
        model = analytic_model(gpu, [kind], [4e5], recorded=Clocks(1410, MEM_MHZ))
        for mhz, power_w in read.select("sm_mhz", "power_w").rows():
            errors.append(100 * abs(power_w / model.busy_power_w(kind, Clocks(mhz, MEM_MHZ)) - 1))
    priced = document["entry"]
    assert priced["power"]["median_pct"] == pytest.approx(np.median(errors), rel=1e-6)
    assert priced["power"]["p95_pct"] == pytest.approx(np.quantile(errors, 0.95), rel=1e-6)
    assert priced["power"]["p95_pct"] > 2 * document["power"]["p95_pct"]
    assert priced["time"]["p95_pct"] < 0.5
    assert "gemm_qkv" in priced["held"]
    assert f"warning: {priced['warning']}" in output.err
    assert run("fit", sweep_file, "--gpu", "a100", "-o", entry) == 0
    page = capsys.readouterr().out
    said = f"power error {priced['power']['median_pct']:.2f}/{priced['power']['p95_pct']:.1f} %"
    assert f"the entry made of it: time error 0.00/0.0 %, {said} (median/p95)" in page
    assert "work_share at its end, 0 or 1, by the entry's idle power and voltage: gemm_qkv" in page


def test_an_entry_that_fits_its_board_is_not_warned_of(
    a100: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("fit", a100, "--gpu", "a100", "-o", tmp_path / "mine.toml", "--json") == 0
    output = capsys.readouterr()
    assert "warning" not in output.err
    assert json.loads(output.out)["entry"]["power"]["p95_pct"] < 1
    assert run("fit", a100, "--gpu", "a100", "--json") == 0
    assert json.loads(capsys.readouterr().out)["entry"] is None


@pytest.mark.parametrize(
    ("column", "factor", "problem"),
    [
        ("power_w", 1000.0, "no entry is made of it: unit-mix-up: the median power is"),
        ("power_w", 1 / 1000, "no entry is made of it: unit-mix-up: the median power is"),
        (
            "power_w",
            4.0,
            "NVIDIA A100 SXM4 80 GB takes at most 500 W: another GPU, or power_w in another unit",
        ),
        ("sm_mhz", 2.0, "measured at SM clock 2010 MHz; NVIDIA A100 SXM4 80 GB lists 210 to 1410"),
    ],
)
def test_no_entry_is_made_of_what_the_gpu_cannot_do(
    column: str, factor: float, problem: str, a100: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = pl.read_csv(a100)
    wrong, entry = tmp_path / "wrong.csv", tmp_path / "mine.toml"
    rows.filter(pl.col("sm_mhz") >= 1005).with_columns(
        (pl.col(column) * factor).cast(rows.schema[column])
    ).write_csv(wrong)
    assert run("fit", wrong, "--gpu", "a100", "-o", entry) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert problem in line
    assert not entry.exists()


def test_clocks_that_the_gpu_lacks_are_refused_without_an_entry_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s.csv"
    swept(at=(705, 1005, 1410)).rows.with_columns(sm_mhz=pl.col("sm_mhz") + 600).write_csv(path)
    assert run("fit", path, "--gpu", "a100") == 3
    assert "measured at SM clock 1605 MHz" in capsys.readouterr().err


def test_a_compressed_sweep_is_fitted_as_the_plain_one(
    a100: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = tmp_path / "a100.csv.gz"
    packed.write_bytes(gzip.compress(a100.read_bytes()))
    pages = []
    for path in (a100, packed):
        assert run("fit", path, "--json") == 0
        pages.append({**json.loads(capsys.readouterr().out), "sweep": ""})
    assert pages[0] == pages[1]
    packed.write_bytes(packed.read_bytes()[:-9])
    assert run("fit", packed) == 3
    assert "a100.csv.gz: is cut off or damaged" in capsys.readouterr().err
