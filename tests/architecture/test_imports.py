"""``import kdvfs_sim`` is light, and so is ``kdvfs --help``; every public name has one home."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import kdvfs_sim

HEAVY = (
    "numpy",
    "polars",
    "numba",
    "scipy",
    "simpy",
    "msgspec",
    "altair",
    "vl_convert",
    "hypothesis",
    "pynvml",
    "rich",
    "typer",
)


def _loaded_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in result.stdout.split()}


def test_importing_the_package_loads_no_heavy_module() -> None:
    assert _loaded_after("import kdvfs_sim").isdisjoint(HEAVY)


def test_help_loads_no_numeric_module() -> None:
    heavy = set(HEAVY) - {"typer", "rich"}
    statement = "from kdvfs_sim.cli.app import build; build()"
    assert _loaded_after(statement).isdisjoint(heavy)


@pytest.mark.parametrize("name", sorted(kdvfs_sim.__all__))
def test_a_public_name_is_the_object_of_its_home(name: str) -> None:
    if name == "__version__":
        return
    value = getattr(kdvfs_sim, name)
    home = importlib.import_module(kdvfs_sim._HOME[name])
    assert getattr(home, name) is value


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = kdvfs_sim.nothing
