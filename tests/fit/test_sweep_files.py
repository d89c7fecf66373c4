"""Sweeps as files: the line that an editor shows, values that cannot be, and files that were cut."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kdvfs_sim.cli import main
from kdvfs_sim.core.errors import InputError
from kdvfs_sim.gpu.fit.diagnoses import diagnose
from kdvfs_sim.gpu.fit.sweep import read_sweep

HEAD = "kernel,sm_mhz,mem_mhz,time_s,power_w,n,sm_mhz_actual,power_limit_w,temperature_c\n"
GOOD = "gemm,1410,1593,0.001,300,1,1410,700,60\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "sweep.csv"
    path.write_bytes(text.encode())
    return path


def fit(*arguments: object) -> int:
    with pytest.raises(SystemExit) as end:
        main(["fit", *map(str, arguments)])
    return int(end.value.code or 0)


@pytest.mark.parametrize(
    ("column", "value", "right"),
    [
        ("time_s", "1e300", "1e-09 to 1e+06 s a launch is right"),
        ("time_s", "-0.001", "1e-09 to 1e+06 s a launch"),
        ("time_s", "1e-30", "1e-09 to 1e+06 s a launch"),
        ("time_s", "1e400", "1e-09 to 1e+06 s a launch"),
        ("power_w", "1e9", "0.001 to 1e+06 W is right"),
        ("power_w", "-300", "0.001 to 1e+06 W"),
        ("power_w", "0", "0.001 to 1e+06 W"),
        ("sm_mhz", "1e7", "50 to 20000 whole MHz"),
        ("sm_mhz", "nan", "50 to 20000 whole MHz"),
        ("mem_mhz", "-1593", "50 to 20000 whole MHz"),
        ("mem_mhz", "10000000", "50 to 20000 whole MHz"),
        ("sm_mhz_actual", "1e7", "1 to 20000 MHz is right"),
        ("power_limit_w", "1e9", "1 to 100000 W is right"),
        ("temperature_c", "5000", "-50 to 200 degrees Celsius is right"),
        ("n", "0", "launches is right"),
        ("n", "nan", "is no number of launches"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_its_line(
    tmp_path: Path, column: str, value: str, right: str
) -> None:
    names = HEAD.strip().split(",")
    cells = GOOD.strip().split(",")
    cells[names.index(column)] = value
    path = write(tmp_path, "# by hand\n" + HEAD + GOOD + "\n" + ",".join(cells) + "\n" + GOOD)
    with pytest.raises(InputError) as error:
        read_sweep(path)
    text = str(error.value)
    assert text.startswith(f"{path}: line 5, column {column!r}: ")  # comment, header, row, empty line
    assert right in text
    assert "\n" not in text


def test_an_energy_that_is_no_power_is_refused(tmp_path: Path) -> None:
    path = write(
        tmp_path, "kernel,sm_mhz,mem_mhz,time_s,energy_j\na,1410,1593,0.001,0.3\na,1410,1593,1e-9,9\n"
    )
    with pytest.raises(InputError, match=r"line 3, column 'energy_j': 9\.0 over time_s is no power"):
        read_sweep(path)


def test_lines_are_those_of_an_editor_where_a_name_has_a_line_break(tmp_path: Path) -> None:
    path = write(
        tmp_path, HEAD + '"void\ngemm",1410,1593,0.001,300,1,1410,700,60\r\n' + GOOD.replace("300", "-3")
    )
    with pytest.raises(InputError, match="line 4, column 'power_w'"):
        read_sweep(path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (HEAD + GOOD + "gemm,1410,15", r"line 3 has 3 cells; the header names 9 \(cut short\?"),
        (HEAD + GOOD + GOOD.strip() + ",7\n", "line 3 has 10 cells"),
        (HEAD.replace("power_w", "time_s") + GOOD, "line 1 names the column 'time_s' twice"),
        (HEAD + 'gemm,"1410,1593\n', "line 2 is not CSV text"),
        (HEAD, "holds no reading"),
        ("", "is empty"),
        ("\n\n", "is empty"),
    ],
)
def test_a_cut_or_ragged_file_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as error:
        read_sweep(write(tmp_path, text))
    assert "\n" not in str(error.value)


def test_every_cut_of_a_file_is_refused_or_warned_of(tmp_path: Path) -> None:
    whole = HEAD + GOOD + GOOD.replace("1410", "705")
    for n in range(len(HEAD) + len(GOOD) + 1, len(whole)):
        path = write(tmp_path, whole[:n])
        try:
            codes = {finding.code for finding in read_sweep(path).findings}
        except InputError:
            continue
        assert codes == {"no-final-line-break"} or codes == {"no-final-line-break", "missing-values"}
    assert read_sweep(write(tmp_path, whole)).findings == ()


def test_what_is_missing_is_said_with_its_lines(tmp_path: Path) -> None:
    rows = [GOOD, GOOD.replace("0.001", "nan"), GOOD.replace("0.001", ""), GOOD.replace(",300,", ",NaN,")]
    findings = {f.text: f for f in diagnose(read_sweep(write(tmp_path, HEAD + "".join(rows))))}
    assert set(findings) == {
        "2 of 4 readings have no time (empty or NaN): line 3, line 4",
        "1 of 4 readings have no power (empty or NaN): line 5",
    }
    assert {f.code for f in findings.values()} == {"missing-values"}
    with pytest.raises(InputError, match="line 2 has neither a time nor a power"):
        read_sweep(write(tmp_path, HEAD + "gemm,1410,1593,nan,nan,1,1410,700,60\n"))


def test_a_column_that_nobody_filled_is_not_missing_in_every_row(tmp_path: Path) -> None:
    assert read_sweep(write(tmp_path, HEAD + GOOD.replace(",300,", ",,"))).findings == ()


def sweep_of(*lines: str) -> str:
    return "kernel,sm_mhz,mem_mhz,time_s,power_w\n" + "".join(f"{line}\n" for line in lines)


def test_the_error_of_a_kernel_read_once_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, sweep_of("gemm,1410,1593,0.001,300"))
    assert fit(path, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    (kernel,) = document["kernels"]
    for name, reason in (
        ("time", "3 coefficients fit 1 clock pair"),
        ("power", "coefficients fit 1 clock pair"),
    ):
        assert (kernel[name], kernel[f"{name}_margin_pct"]) == (None, None)
        assert reason in kernel[f"{name}_reason"]
        assert (document[name]["n_readings"], document[name]["p95_pct"]) == (0, None)
        assert "unknown" in document[name]["reason"]
    assert fit(path) == 0
    page = capsys.readouterr().out
    assert "time, p4+c: error unknown" in page
    assert "margin p95 0" not in page


def test_a_kernel_read_once_beside_others_has_no_error_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    swept = [f"gemm,{sm},1593,{1.41 / sm},{sm / 5}" for sm in (600, 705, 855, 1005, 1155, 1305, 1410)]
    assert fit(write(tmp_path, sweep_of(*swept, "copy,1410,1593,0.001,300")), "--json") == 0
    document = json.loads(capsys.readouterr().out)
    gemm, copy = document["kernels"]
    assert gemm["time"]["n_readings"] == 7
    assert gemm["time_margin_pct"] is not None
    assert (copy["time"], copy["time_margin_pct"]) == (None, None)
    assert document["time"]["n_readings"] == 7
    assert gemm["follows_clock"] == pytest.approx(1.0, abs=0.02)
    assert "few clocks" in copy["compute_share_reason"]


@pytest.mark.parametrize(("memory", "kind"), [((1593,), "assumed"), ((810, 1593), "measured")])
def test_shares_are_measured_only_where_memory_clocks_tell_them_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], memory: tuple[int, ...], kind: str
) -> None:
    rows = [
        f"gemm,{sm},{mem},{0.6 / sm + 0.5 / mem + 1e-4},{sm / 5 + mem / 50}"
        for mem in memory
        for sm in (600, 705, 855, 1005, 1155, 1305, 1410)
    ]
    assert fit(write(tmp_path, sweep_of(*rows)), "--json") == 0
    (kernel,) = json.loads(capsys.readouterr().out)["kernels"]
    assert kernel["compute_share_kind"] == kind
    assert ("one memory clock" in kernel["compute_share_reason"]) == (kind == "assumed")
    assert fit(tmp_path / "sweep.csv") == 0
    assert ("compute share assumed" in capsys.readouterr().out) == (kind == "assumed")


def test_what_follows_the_clock_is_the_slope_of_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        f"{name},{sm},1593,{share * 1.41 / sm + (1 - share) * 1e-3},{sm / 5}"
        for name, share in (("all", 1.0), ("half", 0.5), ("none", 0.0))
        for sm in (600, 705, 855, 1005, 1155, 1305, 1410)
    ]
    assert fit(write(tmp_path, sweep_of(*rows)), "--json") == 0
    kernels = json.loads(capsys.readouterr().out)["kernels"]
    found = {kernel["kernel"]: kernel["follows_clock"] for kernel in kernels}
    assert found == {
        "all": pytest.approx(1.0, abs=0.05),
        "half": pytest.approx(0.5, abs=0.1),
        "none": pytest.approx(0.0, abs=0.05),
    }
