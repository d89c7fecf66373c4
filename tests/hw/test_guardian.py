"""However a run ends, the clocks are released. Real processes, real signals; looked at from a third one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import heed_every_signal, stop
from kdvfs_hw.devices import open_device
from kdvfs_hw.emulator.gpu import EmulatedGpu
from kdvfs_hw.guardian import ArmedGuardian, guarded_clocks
from kdvfs_hw.journal import Journal
from kdvfs_hw.lock_record import in_use, refuse_locked, unfinished_record
from kdvfs_hw.process_state import state_of
from toy_gpu import SET_SM, toy_spec

from kdvfs_sim.core.clocks import AUTO, AUTO_CLOCKS, Clocks
from kdvfs_sim.core.errors import DeviceError, InvariantError, UsageError

VICTIM = Path(__file__).with_name("victim.py")
WITHOUT_GUARDIAN = """
import sys, time
from kdvfs_hw.devices import open_device
with open_device("emulated:" + sys.argv[1]) as opened:
    name = "nvmlDeviceSetGpuLockedClocks"
    opened.device.ask(name, 1000, 1000, may_change=[name])
    print("locked", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[EmulatedGpu]:
    gpu = EmulatedGpu.create(tmp_path / "toy", toy_spec(host_call_ns=1_000_000, switching_ns=4_000_000))
    yield gpu
    gpu.close()


class Run:
    """A victim process on a GPU, and its guardian as the lock record names it."""

    def __init__(self, gpu: EmulatedGpu, mode: str) -> None:
        self.gpu = gpu
        self.process = subprocess.Popen(
            [sys.executable, VICTIM, gpu.folder, mode],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=heed_every_signal,
        )

    def wait_for(self, word: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == word:
                return
        raise AssertionError(f"{word!r} never came: {self.end()}")

    def end(self) -> str:
        """What it wrote to stderr, once it and its guardian have ended."""
        _, err = self.process.communicate(timeout=30)
        wait_for_guardians(self.gpu)
        return err


def records(gpu: EmulatedGpu) -> list[dict[str, object]]:
    journal = Journal(gpu.folder / f"{gpu.uuid}.locks.jsonl")
    try:
        return journal.read(0)[0]
    finally:
        journal.close()


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def wait_for_guardians(gpu: EmulatedGpu, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        pids = [int(str(record["guardian"])) for record in records(gpu) if record["event"] == "armed"]
        if not any(is_alive(pid) for pid in pids):
            return
        time.sleep(0.01)
    raise AssertionError("a guardian did not end")


def locks_seen_by_another_process(gpu: EmulatedGpu) -> str:
    script = "import sys; from pathlib import Path; from kdvfs_hw.emulator.gpu import EmulatedGpu; "
    script += "print(EmulatedGpu(Path(sys.argv[1])).locks())"
    return subprocess.check_output([sys.executable, "-c", script, gpu.folder], text=True).strip()


def test_without_a_guardian_a_killed_run_leaves_its_lock(toy: EmulatedGpu) -> None:
    process = subprocess.Popen([sys.executable, "-c", WITHOUT_GUARDIAN, toy.folder], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"locked\n"
    process.kill()
    process.communicate()
    assert locks_seen_by_another_process(toy) == "sm=1000,mem=auto"


@pytest.mark.parametrize("signal_name", ["SIGKILL", "SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT", "SIGABRT"])
def test_a_signal_ends_the_run_and_releases_its_clocks(toy: EmulatedGpu, signal_name: str) -> None:
    run = Run(toy, "loop")
    run.wait_for("locked")
    assert toy.locks() != AUTO_CLOCKS
    run.process.send_signal(signal.Signals[signal_name])
    run.end()
    assert run.process.returncode != 0
    assert locks_seen_by_another_process(toy) == "sm=auto,mem=auto"
    assert unfinished_record((toy.folder,), toy.uuid) is None


@pytest.mark.parametrize(
    ("mode", "word"),
    [("normal", ""), ("workload", "in the workload"), ("cleanup", "in clean-up"), ("exit", "")],
)
def test_an_end_from_within_releases_its_clocks(toy: EmulatedGpu, mode: str, word: str) -> None:
    run = Run(toy, mode)
    run.wait_for("locked")
    assert word in run.end()
    assert (run.process.returncode == 0) == (mode == "normal")
    assert locks_seen_by_another_process(toy) == "sm=auto,mem=auto"
    assert records(toy)[-1]["event"] == "released"
    assert records(toy)[-1]["outcome"] == "SM clock moved, memory clock moved"


def test_the_signals_of_the_runs_group_do_not_reach_the_guardian(toy: EmulatedGpu) -> None:
    run = Run(toy, "loop")
    run.wait_for("locked")
    guardian = int(str(records(toy)[0]["guardian"]))
    assert os.getsid(guardian) != os.getsid(run.process.pid)
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        os.kill(guardian, signal.Signals[name])
    time.sleep(0.1)
    assert is_alive(guardian)
    run.process.kill()
    run.end()
    assert toy.locks() == AUTO_CLOCKS


def test_a_hung_run_loses_its_clocks_and_is_told_when_it_wakes(toy: EmulatedGpu) -> None:
    run = Run(toy, "hang")
    run.wait_for("locked")
    run.process.send_signal(signal.SIGSTOP)
    deadline = time.monotonic() + 10
    while records(toy)[-1]["event"] != "released" and time.monotonic() < deadline:
        time.sleep(0.02)
    assert toy.locks() == AUTO_CLOCKS
    assert records(toy)[-1]["why"] == "no sign of life from the run for 1 s"
    run.process.send_signal(signal.SIGCONT)
    assert "the guardian has released the clocks: no sign of life" in run.end()
    assert locks_seen_by_another_process(toy) == "sm=auto,mem=auto"


def test_a_lock_made_after_the_guardian_gave_up_is_released_too(toy: EmulatedGpu) -> None:
    """The run was stopped between telling the guardian and calling the driver, and goes on later."""
    with open_device(f"emulated:{toy.folder}") as opened:
        guardian = ArmedGuardian(opened, toy.folder, lease_s=0.3)
        guardian.before(Clocks(1000, 1000))
        deadline = time.monotonic() + 10
        while records(toy)[-1]["event"] != "released" and time.monotonic() < deadline:
            time.sleep(0.02)
        opened.device.ask(SET_SM, 1000, 1000, may_change={SET_SM})
        assert toy.locks() == Clocks(1000, AUTO)
        with pytest.raises(DeviceError, match="no sign of life from the run"):
            guardian.after(Clocks(1000, AUTO))
        assert toy.locks() == AUTO_CLOCKS
        guardian.release()


def test_a_fork_that_outlives_the_run_does_not_keep_the_guardian_waiting(toy: EmulatedGpu) -> None:
    run = Run(toy, "fork")
    run.wait_for("locked")
    time.sleep(0.1)
    run.process.kill()
    run.process.wait()
    wait_for_guardians(toy, timeout_s=10)
    assert toy.locks() == AUTO_CLOCKS
    assert run.process.stdout is not None
    assert run.process.stderr is not None
    run.process.stdout.close()
    run.process.stderr.close()


def test_the_run_releases_by_itself_when_its_guardian_was_killed(toy: EmulatedGpu) -> None:
    with (
        open_device(f"emulated:{toy.folder}") as opened,
        guarded_clocks(opened, allowed=True) as control,
    ):
        control.request_clocks(Clocks(1000, 1000))
        os.kill(int(str(records(toy)[-2]["guardian"])), signal.SIGKILL)
        time.sleep(0.05)
        with pytest.raises(DeviceError, match="does not answer; the run has released the clocks"):
            control.request_clocks(Clocks(600, 1000))
        assert control.target is None
        assert toy.locks() == AUTO_CLOCKS


def test_both_killed_is_repaired_by_reset_and_a_new_run_is_refused_until_then(toy: EmulatedGpu) -> None:
    run = Run(toy, "loop")
    run.wait_for("locked")
    os.kill(int(str(records(toy)[0]["guardian"])), signal.SIGKILL)
    run.process.kill()
    run.end()
    assert toy.locks() != AUTO_CLOCKS
    left = unfinished_record((toy.folder,), toy.uuid)
    assert left is not None
    assert left.guardian_pid is None
    reference = f"emulated:{toy.folder}"
    with (
        open_device(reference) as opened,
        pytest.raises(DeviceError, match="kdvfs hw reset --device"),
        guarded_clocks(opened, allowed=True),
    ):
        pass
    from kdvfs_hw.reset import reset

    with pytest.raises(UsageError, match="--allow-clock-control"):
        reset(reference, allowed=False)
    assert toy.locks() != AUTO_CLOCKS
    (outcome,) = reset(reference, allowed=True)
    assert outcome.complete
    assert locks_seen_by_another_process(toy) == "sm=auto,mem=auto"
    assert unfinished_record((toy.folder,), toy.uuid) is None


def test_a_second_run_on_the_same_gpu_is_refused(toy: EmulatedGpu) -> None:
    run = Run(toy, "loop")
    run.wait_for("locked")
    with open_device(f"emulated:{toy.folder}") as opened:
        with (
            pytest.raises(DeviceError, match=f"another run controls this GPU \\(process {run.process.pid}"),
            guarded_clocks(opened, allowed=True),
        ):
            pass
        from kdvfs_hw.reset import reset
    with pytest.raises(DeviceError, match="another run controls this GPU"):
        reset(f"emulated:{toy.folder}", allowed=True)
    assert toy.locks() != AUTO_CLOCKS
    run.process.kill()
    run.end()
    assert toy.locks() == AUTO_CLOCKS


def test_a_run_that_is_refused_says_which_process_is_alive_and_what_to_do(toy: EmulatedGpu) -> None:
    def refusal() -> str:
        with open_device(f"emulated:{toy.folder}") as opened, pytest.raises(DeviceError) as refused:
            refuse_locked(opened.record_folders, toy.uuid)
        return str(refused.value)

    run = Run(toy, "loop")
    run.wait_for("locked")
    guardian = int(str(records(toy)[0]["guardian"]))
    assert f"(process {run.process.pid}: running; guardian {guardian}: running): wait for it" in refusal()
    stop(run.process.pid)
    assert f"process {run.process.pid}: stopped;" in refusal()
    stop(guardian)
    run.process.kill()
    run.process.wait()
    text = refusal()
    assert f"(process {run.process.pid}: has ended; guardian {guardian}: stopped)" in text
    assert f"kill -CONT {guardian}" in text
    assert f"kill -KILL {guardian}" in text
    from kdvfs_hw.reset import reset

    with pytest.raises(DeviceError, match=f"kill -CONT {guardian}"):
        reset(f"emulated:{toy.folder}", allowed=True)
    os.kill(guardian, signal.SIGCONT)
    run.end()
    assert toy.locks() == AUTO_CLOCKS
    assert unfinished_record((toy.folder,), toy.uuid) is None


def test_a_guardian_that_holds_its_gpu_has_not_ended() -> None:
    """Its number means nothing here: it lives in another container, and so does its run."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    text = in_use("GPU-1", ended.pid, ended.pid, time.time())
    assert "has ended" not in text
    assert text.count("not to be seen from here") == 2
    assert text.endswith("wait for it or stop it")


def test_a_process_that_came_later_is_not_the_one_of_the_record() -> None:
    assert state_of(os.getpid(), since_unix_s=time.time()) == "running"
    child = subprocess.Popen(["sleep", "30"])
    assert state_of(child.pid, since_unix_s=time.time() - 60) == "has ended"
    child.kill()
    child.wait()
    assert state_of(child.pid) == "has ended"


def test_control_needs_consent_and_ends_with_the_block(toy: EmulatedGpu) -> None:
    said: list[str] = []
    with open_device(f"emulated:{toy.folder}") as opened:
        with (
            pytest.raises(UsageError, match="--allow-clock-control"),
            guarded_clocks(opened, allowed=False),
        ):
            pass
        assert records(toy) == []
        with guarded_clocks(opened, allowed=True, say=said.append) as control:
            request = control.request_clocks(Clocks(1000, AUTO))
            assert request.n_calls == 2  # locks from before cannot be read, so AUTO is asked for too
            assert request.returned_ns - request.issued_ns >= 2_000_000
            assert control.request_clocks(Clocks(1000, AUTO)).n_calls == 0
            assert control.target == control.requested == Clocks(1000, AUTO)
        assert "must lock them again" in said[0]
        with pytest.raises(InvariantError, match="outlived its guardian"):
            control.request_clocks(Clocks(600, AUTO))
    assert toy.locks() == AUTO_CLOCKS


def end_at_random(tmp_path: Path, signals: list[str], seed: int) -> int:
    """Ends runs by these signals at random instants; returns how many had locked, or were about to."""
    rng = random.Random(seed)
    n_dirty = 0
    for i, name in enumerate(signals):
        gpu = EmulatedGpu.create(
            tmp_path / f"toy{i}", toy_spec(host_call_ns=1_000_000, switching_ns=4_000_000)
        )
        run = Run(gpu, "loop")
        if i % 2:  # as it starts, arms and asks for the first time; or in the middle of its requests
            time.sleep(rng.uniform(0.0, 0.8))
        else:
            run.wait_for("armed")
            time.sleep(rng.uniform(0.0, 0.2))
        run.process.send_signal(signal.Signals[name])
        run.end()
        wait_for_guardians(gpu)
        n_dirty += any(record["event"] == "locking" for record in records(gpu))
        assert gpu.locks() == AUTO_CLOCKS, f"{name} {i} of seed {seed}: {records(gpu)}"
        assert unfinished_record((gpu.folder,), gpu.uuid) is None
        gpu.close()
    return n_dirty


def test_kills_at_random_instants(tmp_path: Path) -> None:
    assert end_at_random(tmp_path, ["SIGKILL"] * 20, seed=1) > 0


def test_signals_at_random_instants(tmp_path: Path) -> None:
    assert end_at_random(tmp_path, ["SIGINT", "SIGTERM", "SIGHUP"] * 3, seed=3) > 0


@pytest.mark.soak
def test_five_hundred_kills_at_random_instants(tmp_path: Path) -> None:
    n_dirty = end_at_random(tmp_path, ["SIGKILL"] * 500, seed=2)
    print(f"\n500 SIGKILLs, {n_dirty} of them with clocks to release: 0 left locked")
    assert n_dirty > 100


@pytest.mark.soak
def test_three_hundred_signals_at_random_instants(tmp_path: Path) -> None:
    n_dirty = end_at_random(tmp_path, ["SIGINT", "SIGTERM", "SIGHUP"] * 100, seed=4)
    print(f"\n300 signals, {n_dirty} of them with clocks to release: 0 left locked")
    assert n_dirty > 50
