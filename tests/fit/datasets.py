"""Published clock sweeps as sweeps of ours: what each file calls its columns, and which unit they hide."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl

from kdvfs_sim.gpu.fit.sweep import Sweep, sweep_from_rows

SHARED: Final = Path(__file__).resolve().parents[2].parent / "shared"
DATA: Final = SHARED / "dvfs_data"


def _csv(path: str) -> pl.DataFrame:
    return pl.read_csv(DATA / path, infer_schema_length=None)


def nv_dvfs(name: str) -> Sweep:
    """Older files give milliseconds as ``time/ms``, the 2022 profiles as ``time``."""
    table = _csv(f"nv_dvfs_benchmark/{name}")
    if "appName" in table.columns:
        names = ["appName", "kernel", "argNo"]
        columns = {"sm_mhz": "coreF", "mem_mhz": "memF", "time_ms": "time/ms", "power_w": "power/W"}
    else:
        names = ["benchmark", "kernel", "argNo"]
        columns = {
            "sm_mhz": "core_frequency",
            "mem_mhz": "memory_frequency",
            "time_ms": "time",
            "power_w": "average_power",
        }
    present = {ours: theirs for ours, theirs in columns.items() if theirs in table.columns}
    rows = table.select(
        kernel=pl.concat_str(names, separator="/"), **{k: pl.col(v) for k, v in present.items()}
    )
    return sweep_from_rows(rows.with_columns(time_s=pl.col("time_ms") * 1e-3), source=name)


def a100_spec() -> Sweep:
    table = _csv("ghazanfar_a100_v100/GA100-dvfs-accel-dcgm.csv")
    rows = table.select(
        kernel="application",
        sm_mhz="sm_app_clock",
        mem_mhz=pl.lit(1593),
        time_s="run_time",
        power_w="power_usage",
        sm_mhz_actual="sm_clock",
        temperature_c="gpu_temp",
    )
    return sweep_from_rows(rows, source="A100 SPEC ACCEL")


def a100_hpc() -> Sweep:
    """The run time of DGEMM and STREAM is in another file, in milliseconds."""
    parts = []
    for name in ("GROMACS", "LAMMPS", "LSTM", "NAMD", "dgemm", "stream"):
        part = _csv(f"ghazanfar_a100_v100/GA100-dvfs-{name}-dcgm.csv").select(
            kernel="application", sm_mhz="sm_app_clock", time_s="run_time", power_w="power_usage"
        )
        if name in ("dgemm", "stream"):
            timed = _csv(f"ghazanfar_a100_v100/GA100-dvfs-{name}-perf.csv").select(
                sm_mhz="dvfs", time_s=pl.col("kernel_runtime") * 1e-3
            )
            part = part.drop("time_s").join(timed, on="sm_mhz", maintain_order="left")
        parts.append(part.select("kernel", "sm_mhz", "time_s", "power_w"))
    return sweep_from_rows(pl.concat(parts).with_columns(mem_mhz=pl.lit(1593)), source="A100 HPC")


def v100_power_only() -> Sweep:
    """Power alone: all 21 applications carry the same run time at each clock."""
    return sweep_from_rows(_v100_aggregated().drop("time_s"), source="V100 aggregated, power")


def v100_merged_times() -> Sweep:
    """The same file with the times that a merge spoilt."""
    return sweep_from_rows(_v100_aggregated(), source="V100 aggregated")


def _v100_aggregated() -> pl.DataFrame:
    return _csv("ghazanfar_a100_v100/GV100-aggregated_POWER_ONLY_times_invalid.csv").select(
        kernel="application",
        sm_mhz="sm_app_clock",
        mem_mhz=pl.lit(877),
        time_s="run_time",
        power_w="power_usage",
    )


def v100_dgemm_stream() -> Sweep:
    parts = [
        _csv(f"ghazanfar_a100_v100/GV100-dvfs-{name}-perf.csv").select(
            kernel=pl.lit(name),
            sm_mhz="dvfs",
            mem_mhz=pl.lit(877),
            time_s=pl.col("kernel_runtime") * 1e-3,
        )
        for name in ("dgemm", "stream")
    ]
    return sweep_from_rows(pl.concat(parts), source="V100 DGEMM and STREAM")


def perseus(gpu: str, stages: tuple[int, ...] = (0, 7)) -> Sweep:
    """Energy per micro-batch. Stages 1 to 6 repeat stage 0 byte for byte."""
    parts = []
    for model in ("bloom", "gpt3-175b"):
        table = _csv(f"perseus_sosp24/{model}+{gpu}_bf16.csv").filter(pl.col("stage").is_in(stages))
        parts.append(
            table.select(
                kernel=pl.concat_str([pl.lit(model), "stage", "instruction"], separator="/"),
                sm_mhz="frequency",
                mem_mhz=pl.lit(1593 if gpu.startswith("a100") else 7251),
                time_s="time",
                energy_j="energy",
            )
        )
    return sweep_from_rows(pl.concat(parts), source=f"Perseus {gpu}")


def zyj_v100() -> Sweep:
    """Performance relative to the top clock; its inverse is a relative time."""
    performance, power = (
        _csv(f"zyj_v100/dataset_{name}.csv").unpivot(index="frequency(MHz)")
        for name in ("performance", "power")
    )
    table = performance.join(power, on=["frequency(MHz)", "variable"], suffix="_power", maintain_order="left")
    rows = table.select(
        kernel="frequency(MHz)",
        sm_mhz=pl.col("variable").cast(pl.Int64),
        mem_mhz=pl.lit(877),
        time_s=1.0 / pl.col("value"),
        power_w="value_power",
    )
    return sweep_from_rows(rows, source="V100 33 applications")


def giordano() -> Sweep:
    """Energy already in J (the origin has W h)."""
    table = _csv("giordano_a100/a100_core_clock_powercap.csv")
    rows = table.select(
        kernel="app",
        sm_mhz="core_mhz",
        mem_mhz=pl.lit(1215),
        time_s="time_s",
        energy_j="energy_j",
        power_limit_w="power_cap_w",
    )
    return sweep_from_rows(rows, source="A100 under power limits")


def giordano_300w() -> Sweep:
    return giordano().where_rows(pl.col("power_limit_w") == 300)


def mertside(gpu: str, workload: str) -> Sweep:
    """Whole processes, three runs at each clock, in the order in which they ran."""
    table = _csv("mertside_llm_apps/v100_a100_h100_app_runs.csv").filter(
        (pl.col("gpu") == gpu) & (pl.col("workload") == workload)
    )
    memory = {"V100": 877, "A100": 1215, "H100": 2619}[gpu]
    rows = table.sort("run_id").select(
        kernel="workload", sm_mhz="core_mhz", mem_mhz=pl.lit(memory), time_s="time_s", power_w="power_w"
    )
    return sweep_from_rows(rows, source=f"{gpu} {workload}")


def dlbench_apps(*names: str) -> Sweep:
    """Whole training runs; two files give offsets instead of clocks."""
    parts = []
    for name in names:
        table = _csv(f"dlbench_dvfs/{name}.csv")
        offset = min(table["coreF"]) < 0  # type: ignore[type-var]
        parts.append(
            table.select(
                kernel=pl.lit(name),
                sm_mhz=pl.col("coreF") + (1800 if offset else 0),
                mem_mhz=pl.col("memF") + (4500 if offset else 0),
                time_s="time/s",
                power_w="power/W",
            )
        )
    return sweep_from_rows(pl.concat(parts), source="DNN training runs")


def dlbench_kernels(name: str) -> Sweep:
    table = _csv(f"dlbench_dvfs/{name}.csv")
    rows = table.select(kernel="kernel", sm_mhz="coreF", mem_mhz="memF", time_s="aver_time", n="count")
    return sweep_from_rows(rows, source=name)


def dlbench_conv() -> Sweep:
    rows = _csv("dlbench_dvfs/dvfs-conv.csv").select(
        kernel="appName", sm_mhz="coreF", mem_mhz="memF", time_s=pl.col("time/us") * 1e-6, power_w="power/W"
    )
    return sweep_from_rows(rows, source="cuDNN convolutions")


def a4000() -> Sweep:
    """Milliseconds; the clock was read during the timing runs."""
    text = (DATA / "kerneltuner_a4000" / "synthetic_fp32_cache_NVIDIA_RTX_A4000.json").read_text()
    rows = [
        {
            "kernel": "fp32_kernel",
            "sm_mhz": entry["nvml_gr_clock"],
            "mem_mhz": "auto",
            "time_s": entry["time"] * 1e-3,
            "power_w": entry["nvml_power"],
            "sm_mhz_actual": entry["core_freq"],
            "n": len(entry["times"]),
        }
        for entry in json.loads(text)["cache"].values()
    ]
    return sweep_from_rows(pl.DataFrame(rows).with_columns(mem_mhz=pl.lit(7001)), source="A4000 FP32")


def l4() -> Sweep:
    rows = _csv("l4_cholesky_lu/slurm-174558_runs.csv").select(
        kernel="bench", sm_mhz="freq_mhz", mem_mhz=pl.lit(6251), time_s="duration_s"
    )
    return sweep_from_rows(rows, source="L4 LU and Cholesky")


def gpu_power_model(name: str) -> Sweep:
    """Power alone, three header lines before the columns; idle rows have only zero utilisations.

    Rows carry no kernel name in most files: equal utilisations are one kernel.
    """
    head, *lines = (DATA / "gpupowermodel" / f"{name}.csv").read_text().splitlines()[3:]
    n_utilisations = len(head.split(","))
    rows = []
    for line in lines:
        cells = line.split(",")
        label = cells.pop(0) if len(cells) == n_utilisations + 4 else ""
        power, sm, mem, *use = cells
        rows.append(
            {
                "kernel": f"{label} {' '.join(use)}".strip(),
                "sm_mhz": int(float(sm)),
                "mem_mhz": int(float(mem)),
                "power_w": float(power),
            }
        )
    return sweep_from_rows(pl.DataFrame(rows), source=name)


@dataclass(frozen=True)
class Dataset:
    """One set of the tables: how to read it, and what has to be known about it.

    ``above_mhz``: lower requests were not what the GPU ran at.
    """

    name: str
    read: Callable[[], Sweep]
    above_mhz: int = 0
    merge: str = "median"

    def sweep(self) -> Sweep:
        sweep = self.read()
        return sweep.where_rows(pl.col("sm_mhz") >= self.above_mhz) if self.above_mhz else sweep


DATASETS: Final = {
    d.name: d
    for d in (
        Dataset("GTX 980 low", lambda: nv_dvfs("gtx980-low-dvfs-real-small-workload-Performance-Power.csv")),
        Dataset(
            "GTX 980 high", lambda: nv_dvfs("gtx980-high-dvfs-real-small-workload-Performance-Power.csv")
        ),
        Dataset("GTX 1080 Ti", lambda: nv_dvfs("gtx1080ti-dvfs-real-Performance-Power.csv")),
        Dataset("RTX 2070 S", lambda: nv_dvfs("gtx2070s-dvfs-real-Performance-Power.csv")),
        Dataset("Titan X Pascal", lambda: nv_dvfs("titanx-dvfs-real-Performance.csv")),
        Dataset("P100", lambda: nv_dvfs("p100-dvfs-real-Performance-Power.csv")),
        Dataset("V100 2019", lambda: nv_dvfs("v100-dvfs-real-Performance-Power.csv")),
        Dataset("V100 2022 real", lambda: nv_dvfs("v100-dvfs-real-profile.csv"), above_mhz=802),
        Dataset("V100 2022 micro", lambda: nv_dvfs("v100-dvfs-microbenchmark-profile.csv"), above_mhz=802),
        Dataset("V100 zyj", zyj_v100),
        Dataset("A100 SPEC", a100_spec),
        Dataset("A100 HPC", a100_hpc),
        Dataset("A100 giordano", giordano_300w),
        Dataset("A100 SXM Perseus", lambda: perseus("a100_sxm")),
        Dataset("A40 Perseus", lambda: perseus("a40")),
        Dataset("H100 llama", lambda: mertside("H100", "llama")),
        Dataset(
            "Titan X apps",
            lambda: dlbench_apps("titanX-googlenet-logs-v2", "titanX-vgg-logs-v2", "titanX-caffe-vgg"),
        ),
        Dataset("GTX 1080 Ti googlenet", lambda: dlbench_apps("gtx1080Ti-googlenet")),
        Dataset("GTX 980 resnet", lambda: dlbench_apps("gtx980-resnet")),
        Dataset("Titan X caffe", lambda: dlbench_apps("titanX-caffe-googlenet", "titanX-caffe-resnet")),
        Dataset("Titan X fc", lambda: dlbench_apps("titanX-caffe-fc")),
        Dataset("Titan X googlenet kernels", lambda: dlbench_kernels("titanX-googlenet-logs-v2-segment")),
        Dataset("Titan X vgg kernels", lambda: dlbench_kernels("titanX-vgg-logs-v2-segment")),
        Dataset("cuDNN convolutions", dlbench_conv),
        Dataset("V100 DGEMM, STREAM", v100_dgemm_stream, above_mhz=802),
        Dataset("V100 aggregated", v100_power_only),
        Dataset("RTX A4000", a4000),
        Dataset("L4", l4, merge="lower_mode"),
        Dataset("Titan X Maxwell micro", lambda: gpu_power_model("gtxtitanx_maxwell_micro_named")),
        Dataset("Titan X Maxwell apps", lambda: gpu_power_model("gtxtitanx_maxwell_real_apps")),
        Dataset("Titan Xp micro", lambda: gpu_power_model("titanxp_pascal_micro")),
        Dataset("Titan V micro", lambda: gpu_power_model("titanv_volta_micro")),
        Dataset("K40c micro", lambda: gpu_power_model("k40c_kepler_micro")),
        Dataset("GTX 980 micro", lambda: gpu_power_model("gtx980_maxwell_micro")),
        Dataset("RX 580X micro", lambda: gpu_power_model("rx580x_polaris_micro")),
    )
}
