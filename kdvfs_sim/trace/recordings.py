"""Recordings that ship with the project, by name."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

_SUFFIX: Final = ".json.gz"
_PACKAGE: Final = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One entry of the manifest. ``chip`` is cold or settled: a cold chip runs faster."""

    name: str
    path: Path
    sha256: str
    description: str
    gpu: str
    driver: str
    clocks: str
    software: str
    chip: str


@cache
def shipped() -> Mapping[str, Recording]:
    """The shipped recordings by name: package data of an installed wheel, or ``traces`` of a checkout."""
    for folder in (_PACKAGE / "_recordings", _PACKAGE.parent / "traces"):
        manifest = folder / "manifest.toml"
        if manifest.is_file():
            content = tomllib.loads(manifest.read_text(encoding="utf-8"))
            entries = [{**content["common"], **entry} for entry in content["recording"]]
            return {
                entry["name"]: Recording(path=folder / f"{entry['name']}{_SUFFIX}", **entry)
                for entry in entries
            }
    return {}


def find_shipped(name: str) -> Recording | None:
    """The recording of this name, with or without ``.json.gz``; None if there is none."""
    return shipped().get(name.removesuffix(_SUFFIX))
