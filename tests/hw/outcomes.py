"""What a run in each mode comes to under each scripted fault, in one line."""

from __future__ import annotations

from pathlib import Path

from kdvfs_hw.emulator.gpu import EmulatedGpu
from kdvfs_hw.runs.record import Record
from kdvfs_hw.runs.validate import Settings
from subject import alternating, bench

from kdvfs_sim.core.errors import KdvfsError
from kdvfs_sim.study.scene import Scene

SETTINGS = {
    "seconds": 0.12,
    "kernel_seconds": 0.1,
    "kernel_settle_s": 0.05,
    "max_settle_s": 0.2,
    "repeats": 3,
}
# these come upon a GPU that works, in the middle of a run; the others are there from the beginning
SUDDEN = ("lost", "unknown_error", "frozen_counter", "throttling", "foreign_process", "power_limit")


def outcome_of(folder: Path, scene: Scene, fault: str, mode: str) -> str:
    """``fault`` may have a ``=value``; the mode is observe, isolated or live. The verdict, or the error."""
    later = fault.partition("=")[0] in SUDDEN
    subject = bench(folder / "gpu", scene, {"per-kernel": alternating()}, *([] if later else [fault]))

    def script(gpu: EmulatedGpu) -> None:
        if later:
            gpu.script(fault, after_s=0.4)

    with Record(None) as record:
        try:
            outcome = subject.validate(Settings(modes=(mode,), **SETTINGS), record, before=script)
        except KdvfsError as error:
            line = "one line" if "\n" not in str(error) else "SEVERAL LINES"
            void = ", every reading void" if "readings are void" in str(error) else ""
            return f"{type(error).__name__}{void}: {line}, exit code {error.exit_code}"
    verdict = outcome.verdict
    words = [f"time {verdict.time}, energy {verdict.energy}"]
    if verdict.because:
        words.append(f"names {', '.join(verdict.because)}")
    if outcome.troubles.n_void:
        words.append("readings void")
    if outcome.exit_code:
        words.append(f"exit code {outcome.exit_code}")
    return "; ".join(words)
