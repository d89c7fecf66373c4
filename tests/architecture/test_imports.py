"""``import kdvfs_sim`` is light, and so is ``kdvfs --help``; every public name has one home."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import kdvfs_sim
from kdvfs_sim.core import errors, protocols

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


def _annotations(value: Any) -> Iterator[str]:
    """What a function is given and gives back; of a class, its public methods."""
    methods = [each for name, each in vars(value).items() if name[0] != "_"] if inspect.isclass(value) else []
    for function in (value, *methods):
        if inspect.isfunction(function):
            yield from map(str, function.__annotations__.values())


CALLED = [name for name in kdvfs_sim.__all__ if inspect.isfunction(getattr(kdvfs_sim, name))]


@pytest.mark.parametrize("name", [*CALLED, "Scene", "FastEvaluator", "Schedule"])
def test_what_a_public_name_is_given_and_gives_back_is_public(name: str) -> None:
    value = getattr(kdvfs_sim, name)
    ours = {
        word
        for text in _annotations(value)
        for word in re.findall(r"[A-Z]\w+", text)
        if str(getattr(getattr(sys.modules[value.__module__], word, None), "__module__", "")).startswith(
            "kdvfs_sim."
        )
    }
    assert ours <= set(kdvfs_sim.__all__)


def test_every_error_and_every_extension_point_is_public() -> None:
    raised = [name for name, value in vars(errors).items() if inspect.isclass(value) and name[0] != "_"]
    points = [name for name, value in vars(protocols).items() if getattr(value, "_is_protocol", False)]
    assert len(points) > 5
    assert {*raised, *points, "TraceReader"} - {"Protocol"} <= set(kdvfs_sim.__all__)
