"""The switching study as a picture: PNG, and a page that answers to the pointer."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kdvfs_sim.core.errors import UsageError
from kdvfs_sim.core.files import atomic_write
from kdvfs_sim.study.switching_study import SwitchingStudy

if TYPE_CHECKING:
    import altair

INSTALL = "pip install 'kdvfs-sim[plots]'"
# what tells our plots from others: a comment in front; a text chunk behind the header (PNG 1.2, 4.2.3)
_HTML_MARK: Final = b"<!-- kdvfs-switching-study -->\n"
_PNG_TEXT: Final = b"tEXtSoftware\0kdvfs-switching-study"
_PNG_HEADER: Final = 8 + 12 + 13  # signature, and the chunk IHDR


def plots_lack() -> str | None:
    """What plots need and is missing, with the line that installs it; None where nothing is."""
    try:
        import altair
        import vl_convert
    except ImportError as error:
        return f"plots need {error.name}: {INSTALL}"
    del altair, vl_convert
    return None


def write_plots(study: SwitchingStudy, png: str | Path, html: str | Path) -> None:
    """One figure twice; the HTML file holds all it needs. Raises UsageError where a package is missing."""
    png, html = Path(png), Path(html)
    lack = plots_lack()
    if lack is not None:
        raise UsageError(lack)
    chart = figure(study)
    for path, kind in ((png, "png"), (html, "html")):
        with atomic_write(path) as file:
            _save(chart, file, kind)


def _save(chart: altair.LayerChart | altair.FacetChart, file: Any, kind: str) -> None:
    import vl_convert

    spec = chart.to_dict()
    if kind == "png":
        picture = vl_convert.vegalite_to_png(spec, scale=2)
        file.write(picture[:_PNG_HEADER] + _png_mark() + picture[_PNG_HEADER:])
    else:
        file.write(_HTML_MARK + vl_convert.vegalite_to_html(spec, bundle=True).encode())


def is_png_plot(path: Path) -> bool:
    """Was this picture written by ``write_plots``?"""
    return _has(path, _PNG_HEADER, _png_mark())


def is_html_plot(path: Path) -> bool:
    """Was this page written by ``write_plots``?"""
    return _has(path, 0, _HTML_MARK)


def _png_mark() -> bytes:
    """A whole chunk: the length of its data, type and data, and their checksum."""
    return struct.pack(">I", len(_PNG_TEXT) - 4) + _PNG_TEXT + struct.pack(">I", zlib.crc32(_PNG_TEXT))


def _has(path: Path, offset: int, mark: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(offset + len(mark))[offset:] == mark
    except OSError:
        return False


def figure(study: SwitchingStudy) -> altair.LayerChart | altair.FacetChart:
    """Energy against latency: a line for each protocol, the levels without switching, GPUs as bands."""
    import altair as alt

    rows = pl.DataFrame(
        [
            {
                "latency_ms": row.scenario.switching_ns * 1e-6,
                "energy_pct": row.energy_pct,
                "protocol": row.protocol,
                "at best": row.lower_bound_pct,
                "changes": row.n_switches,
            }
            for row in study.rows
            if not row.scenario.name
        ],
        schema_overrides={"at best": pl.Float64},  # also where no row has one
    )
    levels = pl.DataFrame(
        [{"what": name, "energy_pct": energy} for name, (_, energy) in study.baselines.items()]
    )
    latency = alt.X(
        "latency_ms:Q", scale=alt.Scale(type="log"), title="switching latency (ms); the call returns at once"
    )
    energy = alt.Y("energy_pct:Q", title="energy against AUTO (%)", scale=alt.Scale(zero=False))
    layers = [
        alt.Chart(levels).mark_rule(strokeDash=[4, 4]).encode(y=energy, tooltip=["what", "energy_pct"]),
        alt.Chart(levels).mark_text(align="left", dy=-6, x=4).encode(y=energy, text="what"),
        alt.Chart(rows)
        .mark_line(point=True)
        .encode(
            x=latency,
            y=energy,
            color=alt.Color("protocol:N", title="protocol"),
            tooltip=list(rows.columns),
        ),
    ]
    curves = alt.layer(*layers)
    if study.gpus:
        curves = alt.layer(_bands(study, latency), curves).resolve_scale(color="independent")
    return curves.properties(width=640, height=380, title=f"{study.workload} on {study.gpu}, {study.budget}")


def _bands(study: SwitchingStudy, latency: altair.X) -> altair.Chart:
    import altair as alt

    facts = [(gpu.title, gpu.need("switching.sm.switching_ns")) for gpu in study.gpus]
    bands = pl.DataFrame(
        [
            {
                "GPU": name,
                "latency_ms": fact.at("low") * 1e-6,
                "to_ms": fact.at("high") * 1e-6,
                "nominal_ms": fact.value * 1e-6,
                "kind": fact.kind,
            }
            for name, fact in facts
        ]
    )
    chart: altair.Chart = (
        alt.Chart(bands)
        .mark_rect(opacity=0.13)
        .encode(
            x=latency,
            x2="to_ms:Q",
            color=alt.Color("GPU:N", title="range of"),
            tooltip=list(bands.columns),
        )
    )
    return chart
