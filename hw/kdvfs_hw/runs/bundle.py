"""A validation to be run by somebody else: everything it needs in one folder, and the command."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Final

from kdvfs_hw.runs.plan import Plan
from kdvfs_sim.core.errors import InputError
from kdvfs_sim.core.files import atomic_write
from kdvfs_sim.core.schedule import Schedule
from kdvfs_sim.core.schedule_file import write_schedule
from kdvfs_sim.core.version import __version__
from kdvfs_sim.gpu.catalogue import write_gpu
from kdvfs_sim.gpu.facts import GpuFacts
from kdvfs_sim.trace.parquet import write_parquet
from kdvfs_sim.trace.table import Trace

PLAN: Final = "plan.json"
_PAGE: Final = """# An experiment on one GPU

It runs `{workload}` and compares what it reads with a prediction made beforehand (`plan.json`).

What it changes: in modes `isolated` and `live`, the GPU's SM and memory clocks, within the driver's own
list; a guardian process releases them on every way out, also if the run is killed. Nothing else. It needs
root (in a container the capability SYS_ADMIN), and a GPU that nobody else uses meanwhile. Locks that you
had set before are not given back: the driver cannot tell them.

1. Python 3.11 or newer: `python3 -m venv env && env/bin/pip install -r requirements.txt`
2. Look, change nothing: `./run.sh doctor`
3. Read at the driver's own clocks, change nothing: `./run.sh observe`
4. The whole experiment: `./run.sh control`
5. Send back the folders `result-*`.

If a run and its guardian were both killed: `./run.sh reset`.
"""

_RUN: Final = """#!/bin/sh
# one of: doctor, observe, control, reset
set -eu
cd "$(dirname "$0")"
export PYTHONPATH="$PWD/code"
hw() {{ "${{PYTHON:-env/bin/python}}" -m kdvfs_hw "$@"; }}
: "${{GPU:=}}"
stamp=$(date -u +%Y%m%dT%H%M%SZ)
case "${{1:-}}" in
  doctor) hw doctor ${{GPU:+--device "$GPU"}} ;;
  observe) hw validate {schedules} --trace trace.parquet --gpu gpu.toml --mode observe \\
      ${{GPU:+--device "$GPU"}} {workload} --out-dir "result-observe-$stamp" ;;
  control) hw validate {schedules} --trace trace.parquet --gpu gpu.toml --mode isolated --mode live \\
      ${{GPU:+--device "$GPU"}} {workload} --protocol {protocol} --allow-clock-control \\
      --out-dir "result-control-$stamp" ;;
  reset) hw reset --allow-clock-control ${{GPU:+--device "$GPU"}} ;;
  *) echo "usage: ./run.sh doctor|observe|control|reset (GPU=... names a GPU)" >&2; exit 2 ;;
esac
"""


def write_bundle(
    folder: Path,
    *,
    plan: Plan,
    trace: Trace,
    schedules: Mapping[str, Schedule],
    gpu: GpuFacts,
    workload: str,
) -> Sequence[Path]:
    """Write the experiment into a new folder, which appears whole or not at all; its files.

    Raises InputError if the folder is not empty or cannot be written, or a schedule has the plan's name.
    """
    if Path(PLAN).stem in schedules:
        raise InputError(
            f"a schedule named {Path(PLAN).stem!r} would be replaced by the bundle's {PLAN}: rename it"
        )
    folder = Path(os.path.realpath(folder))
    with _whole(folder) as draft:
        names = []
        for name, schedule in schedules.items():
            names.append(f"./{name}.json")  # a name may begin with a hyphen
            about = {"trace": "trace.parquet", "gpu": "gpu.toml"}
            write_schedule(schedule, draft / names[-1], about=about)
        write_parquet(trace, draft / "trace.parquet")
        write_gpu(gpu, draft / "gpu.toml")
        texts = {
            PLAN: json.dumps({"kdvfs_version": __version__, **plan.to_json()}, indent=1) + "\n",
            "requirements.txt": "\n".join(_requirements()) + "\n",
            "README.md": _PAGE.format(workload=workload),
            "run.sh": _RUN.format(
                schedules=shlex.join(names),
                workload=shlex.quote(f"--workload={workload}"),
                protocol=plan.protocol.name,
            ),
        }
        for name, text in texts.items():
            with atomic_write(draft / name) as file:
                file.write(text.encode())
        (draft / "run.sh").chmod(0o755)
        for package in ("kdvfs_sim", "kdvfs_hw"):
            _copy_package(package, draft / "code" / package)
    return sorted(path for path in folder.iterdir())


@contextmanager
def _whole(folder: Path) -> Iterator[Path]:
    """A draft that becomes ``folder`` once all is written, and is gone if that fails; InputError then."""
    try:
        if folder.exists() and any(folder.iterdir()):
            raise InputError(f"{folder}: is not empty; name a new folder for the bundle")
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".part", dir=folder.parent))
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror})") from None
    try:
        yield draft
        draft.chmod(0o755)
        draft.rename(folder)  # over an empty folder, if there is one
    except (OSError, shutil.Error) as error:
        words = getattr(error, "strerror", None) or "its packages could not be copied"
        raise InputError(f"{folder}: cannot be written ({words})") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _copy_package(name: str, target: Path) -> None:
    import importlib

    origin = importlib.import_module(name).__file__
    assert origin is not None
    skip = shutil.ignore_patterns("__pycache__", "*.nbi", "*.nbc", "_recordings")
    shutil.copytree(Path(origin).parent, target, ignore=skip)


def _requirements() -> list[str]:
    """What this package needs, without its extras."""
    try:
        found = requires("kdvfs-sim") or []
    except PackageNotFoundError:
        found = []
    return [line for line in found if "extra ==" not in line] or ["kdvfs-sim"]
