"""The sweep reader: what it takes, and the one line it says of what it does not take."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdvfs_sim.core.clocks import AUTO, Clocks
from kdvfs_sim.core.errors import InputError
from kdvfs_sim.gpu.fit.readings import merge_repeats, modes
from kdvfs_sim.gpu.fit.sweep import Sweep, read_sweep, sweep_from_rows

ROW = {"kernel": "gemm", "sm_mhz": "1410", "mem_mhz": "auto", "time_s": 1e-3, "power_w": 300.0}


def table(**changes: object) -> pl.DataFrame:
    """Two rows, the second changed; None drops a column."""
    changed = {**ROW, **changes}
    columns = [name for name, value in changed.items() if value is not None]
    return pl.DataFrame(
        [{n: ROW.get(n, changed[n]) for n in columns}, {n: changed[n] for n in columns}], strict=False
    )


def test_clocks_may_be_auto_and_are_kept_apart() -> None:
    sweep = sweep_from_rows(table(sm_mhz="AUTO", mem_mhz=" auto "))
    assert sweep.clocks == (Clocks(1410, AUTO), Clocks(AUTO, AUTO))
    assert not sweep.has_numeric
    with pytest.raises(InputError, match="every reading is at AUTO; a fit needs"):
        sweep.numeric()


def test_energy_gives_the_power_and_otherwise_a_check() -> None:
    sweep = sweep_from_rows(table(power_w=None, energy_j=0.3))
    assert sweep.rows["power_w"].to_list() == pytest.approx([300.0, 300.0])
    assert sweep_from_rows(table(energy_j=0.3 / 3600)).energy_factor == pytest.approx(1 / 3600)


def test_the_category_comes_from_the_name_unless_it_is_given() -> None:
    assert sweep_from_rows(table(kernel="flash_fwd")).categories == ("gemm", "attention")
    assert sweep_from_rows(table(category="copy")).categories == ("copy",)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"kernel": None}, "has no column 'kernel'; its columns are sm_mhz"),
        ({"time_s": None, "power_w": None}, "has neither time_s nor power_w"),
        ({"sm_mhz": "fast"}, "row 1, column 'sm_mhz': 'fast' is neither whole MHz nor auto"),
        ({"sm_mhz": "1410000"}, r"row 1, column 'sm_mhz': '1410000' is no clock .*kHz\?"),
        ({"sm_mhz": "-100"}, r"row 1, column 'sm_mhz': '-100' is no clock .*an offset\?"),
        ({"mem_mhz": "877.5"}, "row 1, column 'mem_mhz'"),
        ({"time_s": "soon"}, "row 1, column 'time_s': 'soon' is not a number"),
        ({"time_s": 0.0}, "row 1, column 'time_s': 0.0 is not possible"),
        ({"power_w": float("inf")}, "row 1, column 'power_w': inf is not possible"),
        ({"time_s": None, "energy_j": 1.0}, "has energy_j and no time_s"),
        ({"n": 1.5}, "row 0, column 'n': 1.5 is no number of launches"),
        ({"category": "gem"}, "row 0, column 'category': 'gem' is none of"),
        ({"kernel": ""}, "row 1, column 'kernel': '' is empty"),
    ],
)
def test_what_cannot_be_used_is_named_in_one_line(changes: dict[str, object], problem: str) -> None:
    rows = table(**changes)
    with pytest.raises(InputError, match=problem) as error:
        sweep_from_rows(rows, source="sweep.csv")
    assert str(error.value).startswith("sweep.csv: ")
    assert "\n" not in str(error.value)


def test_a_row_needs_a_time_or_a_power() -> None:
    rows = pl.DataFrame([ROW, {**ROW, "time_s": None, "power_w": None}])
    with pytest.raises(InputError, match="row 1 has neither a time nor a power"):
        sweep_from_rows(rows)
    one = sweep_from_rows(pl.DataFrame([ROW, {**ROW, "time_s": None}]))
    assert one.rows["time_s"].to_list() == [1e-3, None]


def test_files(tmp_path: Path) -> None:
    for name in ("s.csv", "s.parquet"):
        path = tmp_path / name
        table().write_csv(path) if name.endswith("csv") else table().write_parquet(path)
        assert read_sweep(path).rows.equals(sweep_from_rows(table()).rows)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 not")
    (tmp_path / "empty.csv").write_bytes(b"")
    for name in ("none.csv", "broken.parquet", "empty.csv", "sweep.txt"):
        with pytest.raises(InputError, match=name) as error:
            read_sweep(tmp_path / name)
        assert "\n" not in str(error.value)


@settings(max_examples=20)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([510, 600]), st.floats(0.5, 2.0)), min_size=1)
)
def test_merged_repeats_are_the_medians_of_their_cells(rows: list[tuple[str, int, float]]) -> None:
    frame = pl.DataFrame(
        [{"kernel": k, "sm_mhz": sm, "mem_mhz": 877, "time_s": t, "power_w": 100 * t} for k, sm, t in rows]
    )
    readings = merge_repeats(sweep_from_rows(frame))
    for k, kernel in enumerate(readings.kernels):
        for c, sm in enumerate(readings.sm_mhz):
            times = [t for name, mhz, t in rows if (name, mhz) == (kernel, sm)]
            assert readings.n_repeats[k, c] == len(times)
            expected = np.median(times) if times else np.nan
            np.testing.assert_allclose(readings.time_s[k, c], expected)
            np.testing.assert_allclose(readings.power_w[k, c], 100 * expected)


def test_the_lower_mode_keeps_the_power_that_goes_with_it() -> None:
    rows = [
        {**ROW, "mem_mhz": "877", "time_s": t, "power_w": w}
        for t, w in ((1.0, 100.0), (1.5, 60.0), (1.02, 99.0))
    ]
    readings = merge_repeats(sweep_from_rows(pl.DataFrame(rows)), "lower_mode")
    assert readings.time_s[0, 0] == pytest.approx(1.01)
    assert readings.power_w[0, 0] == pytest.approx(99.5)
    assert modes(np.array([1.0, 1.05, 1.09])).all()


def test_several_power_limits_at_one_pair_must_be_chosen_from() -> None:
    rows = [{**ROW, "mem_mhz": "877", "power_limit_w": w} for w in (200.0, 300.0)]
    with pytest.raises(InputError, match="several power limits"):
        merge_repeats(sweep_from_rows(pl.DataFrame(rows)))


def test_a_sweep_is_checked_when_built() -> None:
    with pytest.raises(InputError, match="columns are"):
        Sweep(rows=table())
    with pytest.raises(InputError, match="holds no reading"):
        Sweep(rows=sweep_from_rows(table()).rows.head(0))
