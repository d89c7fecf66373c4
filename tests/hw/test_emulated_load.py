"""An emulated GPU keeps up with a step of tiny kernels, and costs little to those who come to it later."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from kdvfs_hw.emulator import gpu as gpu_module
from kdvfs_hw.emulator.gpu import EmulatedGpu
from kdvfs_hw.emulator.history import Breakpoint, History
from kdvfs_hw.emulator.snapshot import NAME
from kdvfs_hw.emulator.state import State
from kdvfs_hw.workloads.emulated import EmulatedWorkload, Operation
from toy_gpu import toy_spec

from kdvfs_sim.core.errors import InputError
from kdvfs_sim.testing.fake_device import VirtualTime

MS = 1_000_000


def tiny(gpu: EmulatedGpu, n: int = 200) -> EmulatedWorkload:
    """Steps of many launches of 20 microseconds."""
    return EmulatedWorkload(gpu, [Operation(("gemm", "copy")[i % 2], 0.02) for i in range(n)])


def everything(state: State) -> dict[str, object]:
    own = {
        name: value for name, value in vars(state).items() if name not in ("n_events", "_steady", "history")
    }
    return {**own, "behaviour": None, "history": state.history.to_bytes()}


def test_a_step_of_many_kernels_is_one_record(tmp_path: Path) -> None:
    gpu = EmulatedGpu.create(tmp_path / "toy", toy_spec(), time=VirtualTime())
    work = tiny(gpu)
    begin = work.wait(work.launch(None, 0))
    before = gpu._requests.read(0)[1]
    ticket = work.launch(None, 5)
    assert len(gpu._requests.read(before)[0]) == 1
    assert work.wait(ticket) - begin == pytest.approx(5 * 100 * (0.02 * MS / 1.6 + 0.02 * MS), rel=0.01)
    with pytest.raises(InputError, match="nothing to launch"):
        gpu.launch_all([])


def test_a_look_goes_on_from_the_look_before(tmp_path: Path) -> None:
    """Not from the last request: then each would go through all that has happened since."""
    gpu = EmulatedGpu.create(tmp_path / "toy", toy_spec(), time=VirtualTime())
    work = tiny(gpu)
    work.launch(None, 50)
    gpu.time.sleep_ns(100 * MS)
    n_before = gpu.view().n_events
    gpu.time.sleep_ns(MS)
    assert gpu._ahead.n_events >= n_before - 1
    again = EmulatedGpu(gpu.folder, time=gpu.time)
    assert everything(again.view()) == everything(gpu.view())
    assert gpu._ahead.n_events - n_before < 200


def test_a_request_of_before_the_last_look_counts_as_it_always_did(tmp_path: Path) -> None:
    gpu = EmulatedGpu.create(tmp_path / "toy", toy_spec(), time=VirtualTime())
    tiny(gpu).launch(None, 50)
    gpu.time.sleep_ns(100 * MS)
    gpu.view()
    gpu._requests.append({"t": gpu.time.now_ns() - 50 * MS, "do": "set", "domain": "sm", "mhz": 1000})
    again = EmulatedGpu(gpu.folder, time=gpu.time)
    assert everything(gpu.view()) == everything(again.view())


@pytest.fixture
def much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EmulatedGpu:
    """A GPU that has done much, of which somebody has kept the state."""
    monkeypatch.setattr(gpu_module, "_SAVED_EVERY", 3000)
    monkeypatch.setattr(gpu_module, "_FAR_BEHIND", 1000)
    gpu = EmulatedGpu.create(tmp_path / "toy", toy_spec(), time=VirtualTime(), faults=["slower=1.05"])
    work = tiny(gpu)
    for i in range(60):
        gpu.request("sm", (1000, 1200, None)[i % 3])
        work.wait(work.launch(None, 1))
    work.launch(None, 3)
    gpu.request("mem", 1000)
    gpu.time.sleep_ns(MS)
    return gpu


def test_a_kept_state_is_the_state_that_the_journal_gives(much: EmulatedGpu) -> None:
    assert (much.folder / NAME).exists()
    kept = EmulatedGpu(much.folder, time=much.time)
    assert kept._fold.n_events < 6000 < much._fold.n_events
    (much.folder / NAME).unlink()
    whole = EmulatedGpu(much.folder, time=much.time)
    assert whole._fold.n_events > 10_000
    assert everything(kept.view()) == everything(whole.view()) == everything(much.view())


@pytest.mark.parametrize("damage", ["cut", "foreign", "later", "garbage"])
def test_a_kept_state_that_cannot_be_used_is_passed_over(much: EmulatedGpu, damage: str) -> None:
    path = much.folder / NAME
    data = path.read_bytes()
    path.write_bytes(
        {
            "cut": data[:100],
            "foreign": data.replace(b'"start_ns": ', b'"start_ns": 1', 1),
            "later": data.replace(b'"offset": ', b'"offset": 9999', 1),
            "garbage": b"\x00\xff\n[]",
        }[damage]
    )
    assert everything(EmulatedGpu(much.folder, time=much.time).view()) == everything(much.view())


def test_history_gives_back_every_number() -> None:
    points = [Breakpoint(i * 1000, i * 0.1, 100.0 + i % 7) for i in range(1000)]
    history = History(*points)
    copy = history.fork()
    copy.append(Breakpoint(2_000_000, 1.0, 1.0))
    assert (len(history), len(copy)) == (1000, 1001)
    for t_ns in (-5, 0, 1, 255_999, 256_000, 256_001, 600_500, 999_000, 3_000_000):
        before = [point for point in points if point.t_ns <= t_ns] or points[:1]
        expected = before[-1].energy_j + before[-1].power_w * (t_ns - before[-1].t_ns) * 1e-9
        assert history.energy_at(t_ns) == expected == History.from_bytes(history.to_bytes()).energy_at(t_ns)
    history.forget(600_500)
    assert 400 <= len(history) <= 1000 - 400
    assert history.energy_at(600_500) == 60.0 + points[600].power_w * 500 * 1e-9


def test_calls_of_a_gpu_that_lives_long_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_module, "_MAX_CALLS", 2000)
    gpu = EmulatedGpu.create(tmp_path / "toy", toy_spec())
    other = EmulatedGpu(gpu.folder)
    for i in range(500):
        (gpu, other)[i % 3 == 0].log_call("nvmlCall", (i,))
    found = [call["args"][0] for call in gpu.calls()]
    assert found[-1] == 499
    assert found == sorted(found)
    assert 20 < len(found) < 100
    assert sum(path.stat().st_size for path in gpu.folder.glob("calls*")) < 5000


@pytest.mark.soak
def test_who_comes_late_to_a_busy_gpu_does_not_wait_for_all_it_did(tmp_path: Path) -> None:
    gpu = EmulatedGpu.create(tmp_path / "toy", toy_spec())
    work = tiny(gpu)
    for _ in range(600):
        work.wait(work.launch(None, 1))
    begun_s = time.process_time()
    EmulatedGpu(gpu.folder).view()
    assert time.process_time() - begun_s < 1.5
