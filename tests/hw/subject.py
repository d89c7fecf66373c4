"""A small experiment: two kernels, a GPU of seven clocks, virtual time, a control that needs no guardian."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from kdvfs_hw.devices import OpenDevice, open_emulated
from kdvfs_hw.emulator.gpu import EmulatedGpu
from kdvfs_hw.emulator.sensors import Sensors
from kdvfs_hw.guardian import preflight
from kdvfs_hw.nvml_control import GuardedClockControl
from kdvfs_hw.runs.plan import Plan, make_plan
from kdvfs_hw.runs.record import Record
from kdvfs_hw.runs.subject import emulated_spec, emulated_workload
from kdvfs_hw.runs.validate import Outcome, Settings, validate
from kdvfs_hw.timing import ThreadedVirtualTime

import kdvfs_sim.gpu
from kdvfs_sim.core.clocks import AUTO, Clocks
from kdvfs_sim.core.errors import DeviceError, KdvfsError
from kdvfs_sim.core.schedule import ClockRequest, Schedule
from kdvfs_sim.study.scene import Scene, build_scene
from kdvfs_sim.trace.readers import read_trace

PRODUCT_MHZ, COPY_MHZ = 1380, 1080
SENSORS = Sensors(counter_period_ns=20_000_000, counter_read_ns=1_000_000, instant_period_ns=20_000_000)


def write_subject(
    folder: Path, *, switching_ms: float = 4.0, call_ms: float = 0.5, kernel_ms: float = 25.0
) -> None:
    """``gpu.toml``: the catalogue's H200, seven SM clocks, known switching. ``step.csv``: four launches."""
    text = (Path(kdvfs_sim.gpu.__file__).parent / "catalogue" / "h200.toml").read_text()
    call, switching = (
        f"value = {ms * 1e6:.0f}, low = {ms * 1e6:.0f}, high = {ms * 1e6:.0f}"
        for ms in (call_ms, switching_ms)
    )
    for old, new in (
        ("first = 345, last = 1980, step = 15,", "first = 1080, last = 1980, step = 150,"),
        ("value = 4_500_000, low = 4_000_000, high = 13_000_000", call),
        ("value = 25_000_000, low = 6_000_000, high = 100_000_000", switching),
    ):
        assert old in text
        text = text.replace(old, new)
    head, copy = text.split("[category.copy]")
    flat = "compute_share = { value = 0.02, low = 0.01, high = 0.03"
    copy = re.sub(r"compute_share = \{ value = [0-9.]+, low = [0-9.]+, high = [0-9.]+", flat, copy, count=1)
    (folder / "gpu.toml").write_text(f"{head}[category.copy]{copy}")
    rows = ["name,start_ns,duration_ns,stream,category"]
    for i in range(4):
        name, category = (("product", "gemm"), ("stream", "copy"))[i % 2]
        rows.append(f"{name},{i * kernel_ms * 1e6:.0f},{kernel_ms * 1e6:.0f},7,{category}")
    (folder / "step.csv").write_text("\n".join(rows) + "\n")


def build(folder: Path, **changes: float) -> Scene:
    write_subject(folder, **changes)
    return build_scene(read_trace(str(folder / "step.csv")), gpu=str(folder / "gpu.toml"))


def alternating(lead_ns: int = 4_000_000, kernel_ns: int = 25_000_000) -> Schedule:
    """Every kernel at its own clock, each change asked for so early that it lands on the boundary."""
    product, copy = Clocks(PRODUCT_MHZ, AUTO), Clocks(COPY_MHZ, AUTO)
    requests = tuple(
        ClockRequest(
            clocks=copy if i % 2 == 0 else product, launch=i, offset_ns=kernel_ns - lead_ns, stream=7
        )
        for i in range(4)
    )
    return Schedule(requests=requests, protocol="lookahead")


def check_rights(opened: OpenDevice) -> None:
    """The pre-flight of a controlled run, but for its last demand: wall time, for the guardian."""
    try:
        preflight(opened, opened.record_folder)
    except DeviceError as error:
        if "needs wall time" not in str(error):
            raise


class NoGuard:
    """Virtual time has no guardian process; nothing here outlives the test."""

    def before(self, clocks: Clocks, /) -> None: ...

    def after(self, held: Clocks | None, /) -> None: ...


@dataclass(frozen=True)
class Bench:
    """One emulated GPU in virtual time, its workload, and a plan for it."""

    scene: Scene
    plan: Plan
    gpu: EmulatedGpu

    def validate(
        self,
        settings: Settings,
        record: Record | None = None,
        *,
        before: Callable[[EmulatedGpu], None] = lambda _: None,
        say: Callable[[str], None] = lambda _: None,
    ) -> Outcome:
        with open_emulated(self.gpu) as opened:
            observing = settings.modes == ("observe",)
            if not observing:
                check_rights(opened)
            control = None if observing else GuardedClockControl(opened.device, NoGuard())
            before(self.gpu)
            work = emulated_workload(self.scene, self.gpu)
            record = record or Record(None)
            try:
                return validate(opened.device, self.plan, work, record, settings, control=control, say=say)
            finally:
                if control is not None:
                    with suppress(KdvfsError):  # what a guardian would do; some faults refuse it
                        control.reset_clocks()


def bench(
    folder: Path, scene: Scene, schedules: dict[str, Schedule], *faults: str, protocol: str = "lookahead"
) -> Bench:
    spec = replace(emulated_spec(scene), sensors=SENSORS)
    gpu = EmulatedGpu.create(folder, spec, time=ThreadedVirtualTime(), faults=faults)
    return Bench(scene, make_plan(scene, schedules, protocol=protocol), gpu)
