"""The fault table of runs: every scripted fault x mode -> what a run comes to. Printed in the reference docs.

The normal run checks a few rows; all of them: ``pytest -m soak tests/hw/test_fault_table.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from kdvfs_hw.emulator.faults import FAULTS
from outcomes import SUDDEN, outcome_of
from subject import build

from kdvfs_sim.study.scene import Scene

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "hardware-faults.md"
MODES: Final = ("observe", "isolated", "live")

AGREES: Final = "time agrees, energy agrees"
NO_ENERGY: Final = "time agrees, energy not enough data"
VOID: Final = "DeviceError, every reading void: one line, exit code 6"
LOST: Final = "DeviceLostError: one line, exit code 6"
REFUSED: Final = "DevicePermissionError: one line, exit code 6"
STRANGER: Final = "DeviceError: one line, exit code 6"
UNSUPPORTED: Final = "DeviceUnsupportedError: one line, exit code 6"
NOT_KEPT: Final = "time not enough data, energy not enough data; readings void; exit code 6"
TABLE: Final[dict[str, tuple[str, str, str]]] = {
    "no_permission": (AGREES, REFUSED, REFUSED),
    "no_permission=1": (AGREES, REFUSED, REFUSED),
    "no_lock": (AGREES, UNSUPPORTED, UNSUPPORTED),
    "no_mem_lock": (AGREES, AGREES, AGREES),
    "mig": (VOID, UNSUPPORTED, UNSUPPORTED),
    "no_energy": (NO_ENERGY, NO_ENERGY, NO_ENERGY),
    "no_power": (AGREES, AGREES, AGREES),
    "no_reasons": (AGREES, AGREES, AGREES),
    "no_persistence": (AGREES, AGREES, AGREES),
    "lock_ignored": (AGREES, NOT_KEPT, NOT_KEPT),
    "clipped=1230": (AGREES, NOT_KEPT, NOT_KEPT),
    "lock_lost=0.035": (AGREES, NOT_KEPT, NOT_KEPT),
    "reset_ignored": (
        AGREES,
        "time not enough data, energy disagrees; names kernels of auto",
        "time agrees, energy disagrees; names live auto",
    ),
    "mem_moves_sm": (AGREES, AGREES, AGREES),  # nothing here locks the memory clock
    "frozen_counter": (NO_ENERGY, NO_ENERGY, NO_ENERGY),
    "backward_counter=30": (NO_ENERGY, NO_ENERGY, NO_ENERGY),
    "counter_gain=1.1": (
        "time agrees, energy disagrees; names step at auto",
        "time agrees, energy disagrees; names kernels of auto, kernels of per-kernel",
        "time agrees, energy disagrees; names live auto, live per-kernel",
    ),
    "lost": (LOST, LOST, LOST),
    "unknown_error": (LOST, LOST, LOST),
    "throttling": (VOID, VOID, VOID),
    "foreign_process": (VOID, STRANGER, STRANGER),
    "power_limit": (VOID, VOID, VOID),
    "slower=1.03": (  # 1.05 would be on the very edge of what energy is allowed
        "time disagrees, energy agrees; names step at auto",
        "time disagrees, energy agrees; names kernels of auto, kernels of per-kernel",
        "time disagrees, energy agrees; names live auto, live per-kernel",
    ),
    "slow_switching=10": (AGREES, AGREES, "time disagrees, energy agrees; names switching"),
}

HEAD: Final = """# What a run comes to when something is wrong

Each line was produced on an emulated GPU with one scripted fault (`--device emulated:h200,FAULT`),
by `kdvfs hw validate` in one mode; `tests/hw/test_fault_table.py` makes this page and checks it. In
every case the message is one line, and the clocks are the driver's again at the end, or `kdvfs hw
doctor` says that they may not be (`tests/hw/test_faults.py`, `test_guardian.py`).

*Agrees* in a line means that the fault does not touch that mode.
Faults that come in the middle of a run: SUDDEN_NAMES.

"""


def page() -> str:
    lines = [HEAD.replace("SUDDEN_NAMES", ", ".join(f"`{name}`" for name in SUDDEN))]
    lines.append("| fault | " + " | ".join(MODES) + " |\n|---|---|---|---|\n")
    for fault, outcomes in TABLE.items():
        lines.append(f"| `{fault}` | " + " | ".join(outcomes) + " |\n")
    return "".join(lines)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return build(tmp_path_factory.mktemp("subject"))


def test_every_fault_is_in_the_table_and_the_page_is_the_table() -> None:
    assert {fault.partition("=")[0] for fault in TABLE} == set(FAULTS)
    assert PAGE.read_text() == page(), "write it again: python tests/hw/test_fault_table.py"


@pytest.mark.parametrize(
    ("fault", "mode"),
    [
        ("no_permission=1", "isolated"),
        ("lock_ignored", "isolated"),
        ("lost", "isolated"),
        ("lost", "observe"),
        ("mig", "observe"),
    ],
)
def test_some_rows(tmp_path: Path, scene: Scene, fault: str, mode: str) -> None:
    assert outcome_of(tmp_path, scene, fault, mode) == TABLE[fault][MODES.index(mode)]


@pytest.mark.soak
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fault", list(TABLE))
def test_every_row(tmp_path: Path, scene: Scene, fault: str, mode: str) -> None:
    assert outcome_of(tmp_path, scene, fault, mode) == TABLE[fault][MODES.index(mode)]


if __name__ == "__main__":
    PAGE.write_text(page())
