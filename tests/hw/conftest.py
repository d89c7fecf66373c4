"""Emulated GPUs for the tests of kdvfs_hw: everything goes through the real binding, nothing needs a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kdvfs_hw.devices import OpenDevice, open_emulated
from kdvfs_hw.emulator.gpu import EmulatedGpu
from toy_gpu import toy_spec

from kdvfs_sim.testing.fake_device import VirtualTime


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KDVFS_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("KDVFS_RUNTIME_DIR", str(tmp_path / "runtime"))


OpenToy = Callable[..., OpenDevice]


@pytest.fixture
def open_toy(tmp_path: Path) -> Iterator[OpenToy]:
    """Opens a toy GPU in virtual time; keyword arguments as in ``toy_spec``."""
    with ExitStack() as stack:

        def open_it(*faults: str, time: Any = None, **changes: Any) -> OpenDevice:
            gpu = EmulatedGpu.create(
                tmp_path / "toy", toy_spec(**changes), time=time or VirtualTime(), faults=faults
            )
            stack.callback(gpu.close)
            return stack.enter_context(open_emulated(gpu))

        yield open_it
