"""What ``study switching --out-dir`` leaves behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from kdvfs_sim.core.files import atomic_write, refuse_foreign, remove_stale, says_format
from kdvfs_sim.core.version import __version__
from kdvfs_sim.report.switching_page import FORMAT, study_json
from kdvfs_sim.report.switching_plot import is_html_plot, is_png_plot, plots_lack, write_plots
from kdvfs_sim.study.switching_study import SwitchingStudy

STUDY: Final = "study.json"
PNG: Final = "study.png"
HTML: Final = "study.html"


def check_targets(folder: Path) -> None:
    """Raise InputError if one of the files would replace a file of another kind: before any work."""
    refuse_foreign(folder / STUDY, lambda path: says_format(path, FORMAT), "a study")
    refuse_foreign(folder / PNG, is_png_plot, "a picture of a study")
    refuse_foreign(folder / HTML, is_html_plot, "a plot of a study")


def write_study(folder: str | Path, study: SwitchingStudy) -> tuple[list[Path], list[Path]]:
    """Write the files; without what plots need only the JSON, and remove the plots of an earlier study.

    Returns the paths written and removed. Raises InputError like ``check_targets``.
    """
    folder = Path(folder)
    check_targets(folder)
    with atomic_write(folder / STUDY) as file:
        file.write(
            (json.dumps({"kdvfs_version": __version__, **study_json(study)}, indent=1) + "\n").encode()
        )
    plots = [folder / PNG, folder / HTML]
    if plots_lack() is not None:
        return [folder / STUDY], remove_stale(plots)
    write_plots(study, *plots)
    return [folder / STUDY, *plots], []
