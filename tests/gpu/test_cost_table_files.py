"""Cost tables from measured numbers, and as files."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paper_tables import kernel_costs, pass_costs

from kdvfs_sim.core.clocks import AUTO, AUTO_CLOCKS, Clocks
from kdvfs_sim.core.costs import CostTable
from kdvfs_sim.core.errors import InputError
from kdvfs_sim.core.kinds import CATEGORIES, KernelKind
from kdvfs_sim.core.parquet import write_sealed
from kdvfs_sim.gpu.build import cost_table
from kdvfs_sim.gpu.catalogue import load_gpu
from kdvfs_sim.gpu.tables import cost_table_from_rows, read_cost_table, write_cost_table

ARRAYS = ("duration_ns", "power_w", "effective", "idle_power_w", "requestable")
SWEEP = "kernel,sm_mhz,mem_mhz,time_s,power_w\ng,auto,auto,1.0,300\ng,1410,auto,1.2,200\nc,auto,auto,2,250\n"


def assert_same(a: CostTable, b: CostTable) -> None:
    assert (a.kinds, a.clocks, a.recorded, a.cap_w, a.assumed, a.source) == (
        b.kinds,
        b.clocks,
        b.recorded,
        b.cap_w,
        b.assumed,
        b.source,
    )
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    np.testing.assert_array_equal(a.recorded_effective, b.recorded_effective)


def edit_head(path: Path, name: str, value: object) -> None:
    """Change a field of a file's head, ... takes it out; the seal of a Parquet file is made anew."""
    is_csv = path.suffix == ".csv"
    first, _, rest = path.read_text().partition("\n") if is_csv else ("", "", "")
    head = json.loads(first[1:] if is_csv else pl.read_parquet_metadata(path)["kdvfs"]) | {name: value}
    if value is ...:
        del head[name]
    if is_csv:
        path.write_text(f"# {json.dumps(head)}\n{rest}")
        return
    table = pl.read_parquet(path)
    with path.open("wb") as file:
        write_sealed(table, file, {"kdvfs": json.dumps(head)})


@pytest.fixture(params=[".csv", ".parquet"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / f"costs{request.param}"


class TestFiles:
    def test_a_modelled_table_comes_back_equal(self, path: Path) -> None:
        kinds = [KernelKind(name='k "1", #2', category=c) for c in CATEGORIES]  # names may repeat
        costs = cost_table(
            load_gpu("rtx-3080-ti"), kinds, np.geomspace(1e3, 1e9, 9), sm_clocks=[210, 1410, 2100]
        )
        write_cost_table(costs, path)
        assert_same(read_cost_table(path), costs)

    def test_another_power_limit_keeps_the_recording_s_clocks(self, path: Path) -> None:
        kinds = [KernelKind(name="g", category="gemm"), KernelKind(name="c", category="copy")]
        costs = cost_table(load_gpu("h200"), kinds, [1e6, 1e5], power_limit_w=400)
        write_cost_table(costs, path)
        back = read_cost_table(path)
        assert_same(back, costs)
        np.testing.assert_array_equal(back.ratio, costs.ratio)

    def test_unknown_stays_unknown(self, path: Path, shared: Path) -> None:
        costs, _ = kernel_costs(shared)
        assert np.isnan(costs.duration_ns).any()
        write_cost_table(costs, path)
        assert_same(read_cost_table(path), costs)

    def test_the_file_says_who_wrote_it(self, path: Path, shared: Path) -> None:
        write_cost_table(pass_costs(shared), path)
        if path.suffix == ".csv":
            head = json.loads(path.read_text().splitlines()[0].removeprefix("#"))
        else:
            head = json.loads(pl.read_parquet_metadata(path)["kdvfs"])
        assert head["format"] == "kdvfs-cost-table"
        assert head["schema_version"] == 1
        assert head["kdvfs_version"]
        assert head["source"].startswith("arXiv 2601.08539")

    @pytest.mark.parametrize(
        ("name", "value", "says"),
        [
            ("cap_w", "350", r"cap_w"),
            ("cap_w", -1, r"cap_w"),
            ("cap_w", [350], r"cap_w"),
            ("assumed", "abc", r"assumed"),
            ("assumed", None, r"assumed"),
            ("assumed", [1], r"assumed"),
            ("recorded", 5, r"recorded"),
            ("recorded", None, r"recorded"),
            ("recorded", "sm=fast", r"sm='fast' is neither"),
            ("recorded_effective", "sm=1410", r"recorded_effective"),
            ("recorded_effective", [5], r"recorded_effective"),
            ("recorded_effective", ["sm=1,mem=1"], r"recorded_effective"),
            ("recorded_effective", [], r"recorded_effective"),
            ("recorded_effective", ["fast", "fast"], r"fast"),
            ("source", 7, r"source"),
            ("source", ..., r"source"),
        ],
    )
    def test_a_head_that_was_edited_by_hand_is_refused_with_its_field(
        self, path: Path, name: str, value: object, says: str
    ) -> None:
        kinds = [KernelKind(name=n, category="gemm") for n in "ab"]
        costs = cost_table(load_gpu("h200"), kinds, [1e6, 1e5], sm_clocks=[1410], power_limit_w=400)
        write_cost_table(costs, path)
        edit_head(path, name, value)
        with pytest.raises(InputError, match=says) as error:
            read_cost_table(path)
        assert str(error.value).startswith(f"{path}: its head is wrong (")
        assert "\n" not in str(error.value)
        write_cost_table(costs, path)  # still a cost table: it may be written again
        assert_same(read_cost_table(path), costs)

    @pytest.mark.parametrize("value", ["maybe", "2", "-1", "yes"])
    def test_requestable_is_true_or_false(self, tmp_path: Path, value: str) -> None:
        path = tmp_path / "costs.csv"
        head, *rows = (
            f"{row},{truth}"
            for row, truth in zip(SWEEP.splitlines(), ("requestable", "true", "0", value), strict=True)
        )
        path.write_text("\n".join([head, *rows, ""]))
        with pytest.raises(
            InputError, match=rf"line 4, column 'requestable': '?{value}'? is neither true nor false"
        ):
            read_cost_table(path)
        path.write_text(path.read_text().replace(f",{value}\n", ",TRUE\n"))
        costs = read_cost_table(path)
        assert costs.requestable[costs.index(Clocks(1410, AUTO))] == np.False_

    @pytest.mark.parametrize("clock", ["\u00b2", "\uff11\uff14\uff11\uff10", "1_410"])
    def test_a_clock_has_digits_only(self, tmp_path: Path, clock: str) -> None:
        path = tmp_path / "costs.csv"
        path.write_text(SWEEP.replace("1410", clock))
        with pytest.raises(InputError, match=r"line 3, column 'sm_mhz'"):
            read_cost_table(path)

    def test_a_column_of_lists_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "costs.parquet"
        table = pl.read_csv(SWEEP.encode())
        table.with_columns(kernel=pl.concat_list("kernel")).write_parquet(path)
        with pytest.raises(InputError, match=r"column 'kernel' holds List\(String\)"):
            read_cost_table(path)

    def test_an_unknown_version_is_refused(self, tmp_path: Path, shared: Path) -> None:
        path = tmp_path / "costs.csv"
        write_cost_table(pass_costs(shared), path)
        path.write_text(path.read_text().replace('"schema_version": 1', '"schema_version": 7'))
        with pytest.raises(InputError, match="schema_version is 7; this kdvfs reads 1"):
            read_cost_table(path)

    def test_a_foreign_file_is_not_replaced(self, path: Path, shared: Path) -> None:
        path.write_text("my notes\n")
        with pytest.raises(InputError, match="exists and is not a cost table"):
            write_cost_table(pass_costs(shared), path)
        assert path.read_text() == "my notes\n"

    def test_a_plain_sweep_is_read(self, path: Path) -> None:
        plain = pl.read_csv(SWEEP.encode())
        plain.write_csv(path) if path.suffix == ".csv" else plain.write_parquet(path)
        costs = read_cost_table(path)
        assert costs.kinds == ("g", "c")
        assert costs.clocks == (AUTO_CLOCKS, Clocks(1410, AUTO))
        assert costs.ratio[0].tolist() == pytest.approx([1.0, 1.2])
        assert math.isnan(costs.ratio[1, 1])
        assert np.isnan(costs.idle_power_w).all()
        assert (costs.effective == [0, 1]).all()
        assert read_cost_table(path, recorded=Clocks(1410, AUTO)).recorded == 1

    @pytest.mark.parametrize("suffix", [".csv", ".parquet"])
    def test_a_missing_file_is_said_in_one_line(self, tmp_path: Path, suffix: str) -> None:
        with pytest.raises(InputError, match="No such file") as error:
            read_cost_table(tmp_path / f"none{suffix}")
        assert "\n" not in str(error.value)

    def test_a_damaged_file_is_said_in_one_line(self, tmp_path: Path) -> None:
        path = tmp_path / "costs.parquet"
        write_cost_table(cost_table_from_rows(pl.read_csv(SWEEP.encode())), path)
        path.write_bytes(path.read_bytes()[:-40])
        with pytest.raises(InputError) as error:
            read_cost_table(path)
        assert "\n" not in str(error.value)

    def test_other_suffixes_are_refused(self, tmp_path: Path) -> None:
        costs = cost_table_from_rows(pl.read_csv(SWEEP.encode()))
        with pytest.raises(InputError, match=r"ends in \.parquet or \.csv"):
            write_cost_table(costs, tmp_path / "costs.json")
        with pytest.raises(InputError, match=r"a cost table is a \.parquet or \.csv file"):
            read_cost_table(tmp_path / "costs.json")


numbers = st.floats(1e-9, 1e9)


@given(
    cells=st.dictionaries(
        st.tuples(
            st.sampled_from("abc"), st.sampled_from(["auto", "1410", "210"]), st.sampled_from(["auto", "877"])
        ),
        st.tuples(numbers, numbers),
        min_size=1,
        max_size=18,
    )
)
def test_any_set_of_points_becomes_a_table(cells: dict[tuple[str, str, str], tuple[float, float]]) -> None:
    cells[("a", "auto", "auto")] = (1.0, 2.0)
    rows = pl.DataFrame(
        [(k, s, m, t, e) for (k, s, m), (t, e) in cells.items()],
        schema=["kernel", "sm_mhz", "mem_mhz", "time_s", "energy_j"],
        orient="row",
    )
    costs = cost_table_from_rows(rows)
    assert int(np.isfinite(costs.duration_ns).sum()) == len(cells)
    for (kernel, sm, mem), (time_s, energy_j) in cells.items():
        i, j = costs.kinds.index(kernel), costs.index(Clocks.parse(f"sm={sm},mem={mem}"))
        assert costs.duration_ns[i, j] == pytest.approx(time_s * 1e9)
        assert costs.power_w[i, j] == pytest.approx(energy_j / time_s)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("time_s", "time", r"has no column time_s or duration_ns; its columns are kernel"),
        ("power_w", "watts", r"has no column power_w or energy_j"),
        ("kernel", "name", r"has no column 'kernel'"),
        ("1.2,200", "fast,200", r"line 3, column 'time_s': 'fast' is not a number"),
        ("1.2,200", "-1.2,200", r"line 3, column 'time_s': -1\.2 is not possible"),
        ("1.2,200", "0,200", r"line 3, column 'time_s': 0\.0 is not possible"),
        ("1.2,200", "1.2,inf", r"line 3, column 'power_w': inf is not possible"),
        ("g,1410", "g,1410.5", r"line 3, column 'sm_mhz': '1410\.5' is neither whole MHz nor auto"),
        ("g,1410", "g,10000000", r"line 3, column 'sm_mhz': '10000000' is neither whole MHz nor auto"),
        ("g,1410", "g,1410,7", r"line 3 has 6 cells; the header names 5"),
        ("g,1410", "g,", r"line 3, column 'sm_mhz' is empty"),
        ("g,1410", "g,auto", r"line 3 repeats line 2 \(g at sm=auto,mem=auto\)"),
        ("auto,auto", "1980,auto", r"has no row for the recorded clocks sm=auto,mem=auto"),
    ],
)
def test_a_bad_row_is_located(tmp_path: Path, old: str, new: str, says: str) -> None:
    path = tmp_path / "sweep.csv"
    assert old in SWEEP
    path.write_text(SWEEP.replace(old, new))
    with pytest.raises(InputError, match=says) as error:
        read_cost_table(path)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def test_a_table_that_may_be_cut_says_what_it_takes_for_granted(tmp_path: Path) -> None:
    path = tmp_path / "sweep.csv"
    path.write_text(SWEEP.rstrip() + "\n")
    assert read_cost_table(path).assumed == ()
    path.write_text(SWEEP.rstrip())
    assert read_cost_table(path).assumed == (
        "the last line of sweep.csv, which no line break ends, is whole",
    )


class TestPublishedNumbers:
    """The paper's own arithmetic, from these cost tables alone (its Table 2, to 0.02 points)."""

    def test_passes(self, shared: Path) -> None:
        costs = pass_costs(shared)
        assert costs.duration_ns.shape == (2, 66)
        time_s = costs.duration_ns * 1e-9
        energy_j = time_s * costs.power_w
        assert time_s[:, costs.auto].sum() == pytest.approx(1.0)
        assert energy_j[:, costs.auto].sum() == pytest.approx(1.0)

        def percent(*rows: int) -> tuple[float, float]:
            kinds = range(2)
            return (
                100 * (sum(time_s[k, r] for k, r in zip(kinds, rows, strict=True)) - 1),
                100 * (sum(energy_j[k, r] for k, r in zip(kinds, rows, strict=True)) - 1),
            )

        fits = time_s <= time_s[:, [costs.auto]]
        local = [int(np.where(fits[k], energy_j[k], np.inf).argmin()) for k in range(2)]
        assert percent(*local) == pytest.approx((-0.20, -1.98), abs=0.02)
        total_time = time_s[0][:, None] + time_s[1][None, :]
        total_energy = energy_j[0][:, None] + energy_j[1][None, :]

        def best(slack: float) -> tuple[float, float]:
            flat = int(np.where(total_time <= 1.0 + slack, total_energy, np.inf).argmin())
            return percent(*divmod(flat, costs.n_clocks))

        assert best(0.0) == pytest.approx((-0.10, -2.07), abs=0.02)
        assert best(0.006) == pytest.approx((0.09, -9.66), abs=0.02)
        product = [int((energy_j[k] * time_s[k]).argmin()) for k in range(2)]
        assert percent(*product) == pytest.approx((10.21, -25.42), abs=0.02)
        static = np.where(time_s.sum(axis=0) <= 1.006, energy_j.sum(axis=0), np.inf)
        assert costs.clocks[int(static.argmin())] == Clocks(AUTO, 9501)
        assert percent(*[int(static.argmin())] * 2) == pytest.approx((0.04, -9.62), abs=0.02)

    def test_kernels(self, shared: Path) -> None:
        costs, counts = kernel_costs(shared)
        assert costs.n_kinds == 46
        weights = np.array(counts)
        assert sorted(set(counts)) == [1, 24]
        time_s = costs.duration_ns * 1e-9
        energy_j = time_s * costs.power_w
        auto = weights @ time_s[:, costs.auto], weights @ energy_j[:, costs.auto]
        assert auto == pytest.approx((5.358, 1815.8), rel=1e-3)
        known = np.isfinite(time_s)
        known[:, costs.auto] &= known.sum(axis=1) == 1  # two kernels stay at AUTO
        chosen = known.argmax(axis=1)
        kinds = np.arange(46)
        time_pct = 100 * (weights @ time_s[kinds, chosen] / auto[0] - 1)
        energy_pct = 100 * (weights @ energy_j[kinds, chosen] / auto[1] - 1)
        assert (time_pct, energy_pct) == pytest.approx((0.0, -15.64), abs=0.02)


def test_effective_clocks_must_have_a_row(tmp_path: Path) -> None:
    costs = cost_table_from_rows(pl.read_csv(SWEEP.encode()))
    path = tmp_path / "costs.csv"
    write_cost_table(replace(costs, effective=np.zeros_like(costs.effective)), path)
    assert (read_cost_table(path).effective == 0).all()
    path.write_text(path.read_text().replace('"auto","auto",NaN', '"900","auto",NaN'))
    with pytest.raises(InputError, match=r"costs\.csv: line 3: effective clocks sm=900,mem=auto have no row"):
        read_cost_table(path)
