"""The catalogue: every number has a source, bad files give one line, files come back equal."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from kdvfs_sim.core.clocks import AUTO
from kdvfs_sim.core.errors import InputError, UnknownGpuError
from kdvfs_sim.gpu.catalogue import gpu_names, load_gpu, match_device, write_gpu
from kdvfs_sim.gpu.facts import KERNEL_FIELDS, MEANINGS, Fact, check_path, rows, unit_of

EXPECTED = {
    "a100-sxm-80gb",
    "b200",
    "h100-sxm",
    "h200",
    "quadro-rtx-6000",
    "rtx-3080-ti",
    "rtx-4090",
    "rtx-5090",
    "v100",
}
# what every entry gives or says why it cannot; the rest of MEANINGS applies to some GPUs only
REQUIRED = {
    path
    for path in MEANINGS
    if not path.startswith(("latency.", "switching.memory.", "governor.", "clocks.swept_"))
} - {
    "clocks.auto_ceiling_mhz",
    "power.memory_w",
    "switching.sm.up_ns",
    "switching.sm.down_ns",
}
CATEGORIES_MODELLED = (
    "gemm",
    "attention",
    "elementwise",
    "reduction",
    "normalization",
    "copy",
    "optimizer",
    "other",
)


def test_the_named_gpus_are_there() -> None:
    assert set(gpu_names()) == EXPECTED


@pytest.mark.parametrize("slug", sorted(EXPECTED))
class TestEntry:
    def test_clock_table_is_measured_or_from_a_datasheet(self, slug: str) -> None:
        gpu = load_gpu(slug)
        assert gpu.sm.kind in ("measured", "datasheet")
        assert len(gpu.sm.values_mhz) > 60
        default = next(clock for clock in gpu.memory if clock.mhz == gpu.default_memory_mhz)
        assert default.kind in ("measured", "datasheet")
        assert default.requestable

    def test_every_number_has_source_and_kind_and_is_known_or_says_why_not(self, slug: str) -> None:
        gpu = load_gpu(slug)
        for row in rows(gpu):
            assert len(row.source) > 15, f"{row.name}: {row.source!r} is no source"
            assert row.kind in ("measured", "datasheet", "paper", "assumed", "unknown")
        missing = REQUIRED - set(gpu.facts) - set(gpu.unknown)
        assert not missing
        if len(gpu.memory) > 1:
            assert gpu.get("switching.memory.switching_ns") is not None

    def test_an_assumed_number_has_a_range_or_is_minor(self, slug: str) -> None:
        gpu = load_gpu(slug)
        for path, fact in gpu.facts.items():
            if fact.kind == "assumed" and path.startswith(("voltage.", "switching.", "protocol.")):
                assert fact.at("low") < fact.value < fact.at("high"), path

    def test_every_category_is_modelled(self, slug: str) -> None:
        gpu = load_gpu(slug)
        for category in CATEGORIES_MODELLED:
            for name in KERNEL_FIELDS:
                assert gpu.get(f"category.{category}.{name}") is not None, (category, name)
        assert gpu.get("category.communication.power_w") is not None
        assert gpu.get("category.communication.compute_share") is None

    def test_operating_points_are_within_the_cap_and_the_clocks(self, slug: str) -> None:
        gpu = load_gpu(slug)
        for path, fact in gpu.facts.items():
            if path.startswith(("category.", "kernel.")) and path.endswith("power_w"):
                assert fact.value <= gpu.need("power.limit_w").value, path
            if path.startswith(("category.", "kernel.")) and path.endswith("sm_mhz"):
                assert fact.value <= gpu.auto_ceiling_mhz, path

    def test_written_and_read_back_equal(self, slug: str, tmp_path: Path) -> None:
        gpu = load_gpu(slug)
        write_gpu(gpu, tmp_path / f"{slug}.toml")
        assert load_gpu(tmp_path / f"{slug}.toml") == gpu

    def test_no_short_key_is_left_as_a_source(self, slug: str) -> None:
        text = files("kdvfs_sim.gpu").joinpath("catalogue", f"{slug}.toml").read_text()
        sources = set(re.findall(r'source = "([^"]*)"', text))
        head = text.split("[clocks]")[0]
        for source in sources:
            assert f"\n{source} = " in head, f"{source!r} is not explained in [sources]"


@pytest.mark.parametrize(
    ("device_name", "slug"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("Tesla V100-DGXS-32GB", "v100"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GeForce RTX 3080 Ti", "rtx-3080-ti"),
        ("NVIDIA A100-SXM4-40GB", None),
        ("Tesla V100-PCIE-16GB", None),
        ("NVIDIA GeForce RTX 3080 Ti Laptop GPU", None),
        ("NVIDIA H200 NVL", None),
        ("AMD Instinct MI300X VF", None),
        ("", None),
    ],
)
def test_device_names_as_recorded(device_name: str, slug: str | None) -> None:
    assert match_device(device_name) == slug


@pytest.mark.parametrize("name", ["h200", "H200", "NVIDIA H200", "nvidia_h200"])
def test_names_are_read_loosely(name: str) -> None:
    assert load_gpu(name).slug == "h200"


def test_the_start_of_a_name_is_enough_if_it_is_unique() -> None:
    assert load_gpu("rtx3080ti").slug == load_gpu("rtx 3080").slug == "rtx-3080-ti"
    with pytest.raises(UnknownGpuError):
        load_gpu("rtx")


def test_an_unknown_gpu_lists_the_names() -> None:
    with pytest.raises(UnknownGpuError) as error:
        load_gpu("gtx9999")
    assert "gtx9999" in str(error.value)
    assert all(slug in str(error.value) for slug in EXPECTED)
    assert "\n" not in str(error.value)


def test_the_untried_memory_clock_of_the_h200_is_flagged_and_not_offered() -> None:
    gpu = load_gpu("h200")
    untried = next(clock for clock in gpu.memory if clock.mhz == 2201)
    assert not untried.requestable
    assert "no lock" in untried.note
    assert {pair.mem_mhz for pair in gpu.clock_table()} == {3201, AUTO}
    assert {pair.mem_mhz for pair in gpu.clock_table(untested=True)} == {2201, 3201, AUTO}


def test_memory_405_of_the_3080_ti_goes_with_low_sm_clocks_only() -> None:
    table = load_gpu("rtx-3080-ti").clock_table()
    assert max(p.sm_mhz for p in table if p.mem_mhz == 405 and isinstance(p.sm_mhz, int)) == 420


def test_half_megahertz_steps_are_listed_rounded_down() -> None:
    assert load_gpu("v100").sm.values_mhz[:4] == (135, 142, 150, 157)
    assert len(load_gpu("b200").sm.values_mhz) == 247
    assert {1597, 1117, 1965} <= set(load_gpu("b200").sm.values_mhz)


GOOD = files("kdvfs_sim.gpu").joinpath("catalogue", "h200.toml").read_text()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('format = "kdvfs-gpu"', 'format = "toml"', r"format is 'toml'; 'kdvfs-gpu' is right"),
        ("schema_version = 1", "schema_version = 2", r"schema_version is 2; 1 is right"),
        ("limit_w = { value = 700,", "limit_w = { value = -1,", r"power\.limit_w\.value is -1; a finite"),
        ("limit_w = { value = 700,", "limit_w = { value = inf,", r"power\.limit_w\.value is inf; a finite"),
        (
            "limit_w = { value = 700,",
            f"limit_w = {{ value = {10**400},",
            r"power\.limit_w\.value is 10+; a fin",
        ),
        (
            "limit_w = { value = 700,",
            "limit_w = { value = 7e200,",
            r"limit_w\.value is 7e\+200; 0 to 1e\+06 W is right",
        ),
        (
            "idle_w = { value = 119, low = 111,",
            "idle_w = { value = 119, low = nan,",
            r"idle_w\.low is nan; a fin",
        ),
        (
            "knee_mhz = { value = 1290,",
            "knee_mhz = { value = 0,",
            r"knee_mhz\.value is 0; 1 to 1e\+06 MHz is",
        ),
        (
            "tensor_flop_per_clock = { value = 540_672",
            "tensor_flop_per_clock = { value = 0",
            r"is 0; 1 to 1e\+12",
        ),
        (
            "low = 0.0, high = 0.04, source",
            "low = 0.0, high = 1.5, source",
            r"fixed_share\.high is 1\.5; 0 to 1 ",
        ),
        ("step = 15, source", "step = nan, source", r"clocks\.sm_mhz\.step is nan; a finite number"),
        ("step = 15, source", "step = inf, source", r"clocks\.sm_mhz\.step is inf; a finite number"),
        ("step = 15, source", "step = 1e-9, source", r"by 1e-09; an ascending range"),
        ("last = 1980", "last = 1_000_000_000_000", r"to 1e\+12 by 15; an ascending range of MHz"),
        (
            "value = 3201, source",
            "value = 3_201_000_000, source",
            r"memory clock 3201000000: a clock is 1 to",
        ),
        ("schema_version = 1", f"schema_version = {'9' * 5000}", r"is not TOML \(Exceeds the limit"),
        ("schema_version = 1", f"schema_version = {'[' * 50_000}", r"is not TOML \(it is nested too deeply"),
        (
            "limit_w = { value = 700,",
            'limit_w = { value = "700",',
            r"power\.limit_w\.value is '700'; a number",
        ),
        (
            'limit_w = { value = 700, source = "nvml",',
            "limit_w = { value = 700,",
            r"power\.limit_w\.source is None",
        ),
        ("limit_w = { value = 700,", "limit_w = { valu = 700,", r"power\.limit_w\.valu: no such key"),
        (
            'limit_w = { value = 700, source = "nvml", kind = "measured" }',
            "limit_w = 700",
            r"power\.limit_w is 700; a",
        ),
        (
            'value = 700, source = "nvml", kind = "measured"',
            'value = 700, source = "nvml", kind = "seen"',
            "'seen'",
        ),
        ("limit_min_w = {", "limit_low_w = {", r"limit_low_w: no such number; did you mean power\.limit"),
        ("[category.gemm]", "[category.matmul]", r"category\.matmul\.\w+: no category 'matmul'"),
        ("first = 345", "first = 0", r"clocks\.sm_mhz runs from 0 to 1980"),
        (
            'step = 15, source = "nvml", kind = "measured"',
            'step = 15, source = "nvml", kind = "assumed"',
            r"clocks\.sm_mhz: kind is 'assumed'; a clock table must be measured or from a datasheet",
        ),
        (
            "value = 3201, source",
            "value = 3201.5, source",
            r"clocks\.memory_mhz\.value is 3201\.5; whole MHz",
        ),
        ("[power]", "[power", r"is not TOML"),
        ('name = "NVIDIA H200"', "name = 200", r"name is 200; a text is right"),
    ],
)
def test_a_bad_file_gives_one_line_with_file_key_and_value(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    assert old in GOOD
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(InputError, match=says) as error:
        load_gpu(path)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def test_a_missing_file_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.toml: No such file"):
        load_gpu(tmp_path / "none.toml")


def test_a_foreign_file_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text("[project]\n")
    with pytest.raises(InputError, match="exists and is not a GPU entry"):
        write_gpu(load_gpu("h200"), path)
    assert path.read_text() == "[project]\n"
    with pytest.raises(InputError, match=r"ends in \.toml"):
        write_gpu(load_gpu("h200"), tmp_path / "gpu.json")


def test_a_fit_may_add_numbers_and_they_survive_the_file(tmp_path: Path) -> None:
    fact = Fact(value=0.42, source="fitted to 12 points", kind="measured", low=0.4, high=0.44)
    path = "kernel.void at::native::my_kernel<3.5>*.compute_share"
    gpu = load_gpu("b200").with_facts({path: fact, "sensor.period_ns": fact})
    assert "sensor.period_ns" not in gpu.unknown
    write_gpu(gpu, tmp_path / "b200.toml")
    assert load_gpu(tmp_path / "b200.toml") == gpu
    assert gpu.kernel_patterns == ("void at::native::my_kernel<3.5>*",)


def test_an_unknown_number_is_refused_with_its_reason() -> None:
    gpu = load_gpu("b200")
    assert gpu.get("sensor.period_ns") is None
    with pytest.raises(
        InputError, match=r"b200: sensor\.period_ns is unknown \(no measurement on any Blackwell"
    ):
        gpu.need("sensor.period_ns")
    with pytest.raises(InputError, match="no such number"):
        gpu.get("sensor.periode_ns")


@pytest.mark.parametrize(
    "facts",
    [
        {"value": 1.0, "source": "", "kind": "measured"},
        {"value": 1.0, "source": "a board", "kind": "guessed"},
        {"value": 1.0, "source": "a board", "kind": "measured", "low": 2.0},
        {"value": float("nan"), "source": "a board", "kind": "measured"},
    ],
)
def test_a_fact_without_source_kind_or_order_is_refused(facts: dict[str, object]) -> None:
    with pytest.raises(InputError):
        Fact(**facts)  # type: ignore[arg-type]


def test_units_come_from_names() -> None:
    for path in MEANINGS:
        check_path(path)
    assert unit_of("power.limit_w") == "W"
    assert unit_of("clocks.ceiling_mhz") == "MHz"
    assert unit_of("switching.sm.host_call_ns") == "ns"
    assert unit_of("rates.dram_bytes_per_clock") == "B/clock"
    assert unit_of("voltage.rise") == unit_of("rates.n_sm") == ""


def test_an_entry_is_no_name_of_one() -> None:
    with pytest.raises(InputError, match="GPU is a GpuFacts; a name, or the path of an entry, is right"):
        load_gpu(load_gpu("h200"))  # type: ignore[arg-type]
