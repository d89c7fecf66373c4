"""What ships: the fitted parameters, the cost table made from them, and the iteration as a trace."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.core.files import atomic_write
from kdvfs_sim.gpu.gpt3xl_3080ti.calls import CALLS, order
from kdvfs_sim.gpu.gpt3xl_3080ti.other_sizes import OtherSizes
from kdvfs_sim.gpu.gpt3xl_3080ti.surface import CLOCKS, Board, Floats, Kernels, Rows
from kdvfs_sim.gpu.tables import read_cost_table
from kdvfs_sim.trace.assemble import assemble

if TYPE_CHECKING:
    from kdvfs_sim.core.costs import CostTable
    from kdvfs_sim.trace.table import Trace

NAME: Final = "gpt3xl_3080ti_paper"
GPU: Final = "rtx-3080-ti"
DEVICE_NAME: Final = "NVIDIA GeForce RTX 3080 Ti"
BOARD_FILE: Final = "board.toml"
KERNELS_FILE: Final = "kernels.csv"
COSTS_FILE: Final = "costs.parquet"
RESIDUALS_FILE: Final = "residuals.csv"
_FITTED: Final = ("auto_sm_mhz", "sm_time", "memory_time", "fixed_time", "clock_w", "work_w", "traffic_w")


@dataclass(frozen=True, kw_only=True, eq=False)
class Shipped:
    """Parameters of the fit and the published numbers that a transfer starts from."""

    board: Board
    kernels: Kernels
    auto_time_s: Floats
    n_calls: Rows
    chosen: Rows
    other_sizes: OtherSizes


def write_parameters(shipped: Shipped, folder: Path, sources: dict[str, tuple[str, str]]) -> None:
    """``board.toml`` and ``kernels.csv``. ``sources``: kind and source by number, "" for the others."""
    import tomli_w

    numbers = asdict(shipped.board) | asdict(shipped.other_sizes)
    document = {}
    for name, value in numbers.items():
        kind, source = sources.get(name, sources[""])
        document[name] = {"value": float(f"{value:.7g}"), "source": source, "kind": kind}
    with atomic_write(folder / BOARD_FILE) as file:
        tomli_w.dump(document, file)
    table = pl.DataFrame(
        {
            "kernel": [call.name for call in CALLS],
            "n_calls": shipped.n_calls,
            "auto_time_s": shipped.auto_time_s,
            "auto_power_w": shipped.kernels.cap_w,
            "table1_clocks": [str(CLOCKS[row]) for row in shipped.chosen],
            **{name: getattr(shipped.kernels, name) for name in _FITTED},
        }
    )
    with atomic_write(folder / KERNELS_FILE) as file:
        file.write(b"# kind: paper up to table1_clocks, assumed (fitted) from auto_sm_mhz on\n")
        table.with_columns(pl.col(pl.Float64).round_sig_figs(7)).write_csv(file)


@cache
def load(folder: Path | None = None) -> Shipped:
    """The shipped parameters, or those that the generator wrote to a folder."""
    board: dict[str, Any] = {
        name: entry["value"] for name, entry in tomllib.loads(_text(BOARD_FILE, folder)).items()
    }
    elsewhere = {field.name: board.pop(field.name) for field in fields(OtherSizes)}
    table = pl.read_csv(_text(KERNELS_FILE, folder).encode(), comment_prefix="#")
    return Shipped(
        board=Board(**board),
        kernels=Kernels(
            cap_w=table["auto_power_w"].to_numpy(), **{name: table[name].to_numpy() for name in _FITTED}
        ),
        auto_time_s=table["auto_time_s"].to_numpy(),
        n_calls=table["n_calls"].to_numpy(),
        chosen=np.array([CLOCKS.index(Clocks.parse(text)) for text in table["table1_clocks"]]),
        other_sizes=OtherSizes(**elsewhere),
    )


@cache
def cost_table() -> CostTable:
    """46 kinds by ID over 66 clock pairs: printed at AUTO and at Table 1's clocks, fitted elsewhere."""
    return read_cost_table(Path(str(files(__package__).joinpath(COSTS_FILE))))


@cache
def trace() -> Trace:
    """One iteration, 897 calls back to back, at the published times: no gaps, no optimizer, one stream.

    The first 15 kernels are the forward pass; the loss's softmax and all gradients the backward one.
    """
    kinds = np.array(order())
    duration_ns = np.rint(load().auto_time_s * 1e9).astype(np.int64)[kinds]
    passes = np.where([CALLS[kind].forward for kind in kinds], 0, 1)
    return assemble(
        source=NAME,
        kinds=[call.kind() for call in CALLS],
        ops={
            "kind": kinds,
            "device": np.zeros_like(kinds),
            "stream": np.zeros_like(kinds),
            "start_ns": np.cumsum(duration_ns) - duration_ns,
            "duration_ns": duration_ns,
            "pass": passes,
        },
        device_names={0: DEVICE_NAME},
        format="published",
    )


def _text(name: str, folder: Path | None) -> str:
    where = files(__package__) if folder is None else folder
    return where.joinpath(name).read_text(encoding="utf-8")
