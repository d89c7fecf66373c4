"""From the text of ``--device`` to one GPU, real or emulated, with its driver session."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kdvfs_hw.cuda_order import cuda_devices
from kdvfs_hw.lock_record import Unfinished, find_unfinished, state_folder, state_folders
from kdvfs_hw.nvml_read import GpuIdentity, NvmlDevice, NvmlSession
from kdvfs_sim.core.errors import DeviceError, UsageError

if TYPE_CHECKING:  # a process that works on a real GPU loads nothing of the emulator
    from kdvfs_hw.emulator.gpu import EmulatedGpu
    from kdvfs_hw.emulator.spec import DeviceSpec

EMULATED: Final = "emulated:"
FORMS: Final = "a UUID (GPU-...), cuda:N, pci:BUS_ID, or emulated:NAME[,FAULT[=VALUE]...]"


@dataclass(frozen=True, slots=True)
class OpenDevice:
    """A GPU ready to be read. ``reference`` opens the very same GPU in another process."""

    device: NvmlDevice
    reference: str
    emulated: EmulatedGpu | None = None

    @property
    def record_folder(self) -> Path:
        """Where it is noted that this GPU's clocks may be locked; an emulated GPU keeps its own."""
        return state_folder() if self.emulated is None else self.emulated.folder

    @property
    def record_folders(self) -> tuple[Path, ...]:
        """Where such a note may be, by whoever wrote it."""
        return state_folders() if self.emulated is None else (self.emulated.folder,)


@contextmanager
def open_device(text: str | None, *, spec: DeviceSpec | None = None) -> Iterator[OpenDevice]:
    """The GPU that ``text`` names; None is the only GPU that this process may use.

    ``spec``: what an emulated GPU of the catalogue should behave as, if not as the catalogue says.

    Raises UsageError for a malformed or ambiguous name, DeviceError where there is no such GPU.
    """
    if text is not None and text.startswith(EMULATED):
        gpu = emulated_gpu(text, spec)
        with closing(gpu), open_emulated(gpu) as opened:
            yield opened
        return
    with NvmlSession() as session:
        identity = resolve(text, session.gpus(), os.environ)
        yield OpenDevice(NvmlDevice(session, identity), identity.uuid)


@contextmanager
def open_emulated(gpu: EmulatedGpu) -> Iterator[OpenDevice]:
    """An emulated GPU behind the driver binding, on the GPU's own TimeSource."""
    with emulated_session(gpu) as session:
        (identity,) = session.gpus()
        yield OpenDevice(NvmlDevice(session, identity), f"{EMULATED}{gpu.folder}", gpu)


def emulated_session(*gpus: EmulatedGpu) -> NvmlSession:
    """A driver session in which these emulated GPUs, and no others, are found."""
    from kdvfs_hw.emulator.library import EmulatedLibrary

    return NvmlSession(EmulatedLibrary(gpus), time=gpus[0].time)


def resolve(text: str | None, gpus: tuple[GpuIdentity, ...], environment: Mapping[str, str]) -> GpuIdentity:
    """The one GPU of ``gpus`` that ``text`` names. Raises as ``open_device`` does."""
    if text is None:
        visible = cuda_devices(gpus, environment)
        if len(visible) == 1:
            return visible[0]
        if not visible:
            raise DeviceError(
                "CUDA shows no GPU to this process; see CUDA_VISIBLE_DEVICES and kdvfs hw doctor"
            )
        raise UsageError(f"{len(visible)} GPUs are visible: name one with --device, as {FORMS}")
    found: list[GpuIdentity]
    if text.startswith("GPU-"):
        found = [gpu for gpu in gpus if gpu.uuid.startswith(text)]
    elif text.startswith("pci:"):
        found = [gpu for gpu in gpus if _on_bus(gpu, text[4:])]
    elif re.fullmatch(r"cuda:\d+", text):
        found = list(cuda_devices(gpus, environment)[int(text[5:]) :][:1])
    else:
        raise UsageError(f"--device {text!r}: write {FORMS}")
    if len(found) > 1:
        raise UsageError(f"--device {text!r} fits {len(found)} GPUs: write the whole UUID")
    if not found:
        known = ", ".join(gpu.uuid or f"GPU {gpu.index} ({gpu.error})" for gpu in gpus) or "none"
        raise DeviceError(f"--device {text!r}: no such GPU; there are: {known}")
    return found[0]


def _on_bus(gpu: GpuIdentity, asked: str) -> bool:
    """``1b:00.0``, with a domain before it or not; bus ids are hexadecimal and padded as one likes."""
    match = re.fullmatch(r"(?:([0-9a-f]+):)?([0-9a-f]+):([0-9a-f]+)(?:\.0)?", asked.lower())
    if match is None:
        raise UsageError(f"--device pci:{asked}: write pci:[DOMAIN:]BUS:DEVICE.0, as in pci:1b:00.0")
    domain, bus, device = (None if part is None else int(part, 16) for part in match.groups())
    known_domain, *known = gpu.pci_order
    return gpu.error is None and known == [bus, device] and domain in (None, known_domain)


def emulated_gpu(text: str, spec: DeviceSpec | None = None) -> EmulatedGpu:
    """``emulated:h200``, ``emulated:h200,lock_ignored,clipped=1200`` or ``emulated:/a/folder``.

    A GPU named in the first two ways lives until the machine restarts, shared by all processes of
    this user; each set of faults, and each ``spec``, is a GPU of its own. Raises UsageError, UnknownGpuError.
    """
    from kdvfs_hw.emulator.gpu import EmulatedGpu

    name, *faults = text.removeprefix(EMULATED).split(",")
    if name.startswith(("/", ".", "~")):
        if faults:
            raise UsageError(
                f"--device {text!r}: faults are scripted when the GPU is made, not when it is opened"
            )
        return EmulatedGpu(Path(name).expanduser())
    from kdvfs_hw.emulator.catalogue import device_spec
    from kdvfs_hw.emulator.faults import parse_faults

    parse_faults(faults)
    if not name:
        raise UsageError(f"--device {text!r}: name a GPU of the catalogue (kdvfs gpus), as in emulated:h200")
    label = _label(text)
    if spec is not None:
        digest = hashlib.sha256(json.dumps(spec.to_json(), sort_keys=True).encode()).hexdigest()
        label += f"-{digest[:12]}"
    folder = _emulated_folder() / label
    return EmulatedGpu.create(folder, spec or device_spec(name), faults=faults)


def unfinished_runs() -> tuple[tuple[Unfinished, ...], tuple[str, ...]]:
    """Every GPU, real or emulated, that a run here may have left locked; and records that cannot be read."""
    try:
        emulated = tuple(_emulated_folder().glob("*"))
    except (DeviceError, OSError) as error:  # which must not hide the real ones
        found, problems = find_unfinished(state_folders())
        return found, (*problems, str(error))
    return find_unfinished((*state_folders(), *emulated))


def of_same_name(text: str, run: Unfinished) -> bool:
    """Whether a run's GPU is an emulated one of the name ``text``: with each ``spec`` it is another GPU."""
    folder = run.path.parent
    return folder.parent == _emulated_folder() and bool(
        re.fullmatch(re.escape(_label(text)) + "(-[0-9a-f]{12})?", folder.name)
    )


def _label(text: str) -> str:
    name, *faults = text.removeprefix(EMULATED).split(",")
    return re.sub(r"[^A-Za-z0-9.=_-]", "+", ",".join([name.lower(), *faults]))


def _emulated_folder() -> Path:
    return runtime_folder() / "emulated"


def runtime_folder() -> Path:
    """A folder of this user that a restart of the machine may empty: KDVFS_RUNTIME_DIR or the system's.

    Raises DeviceError if there is none that is this user's alone.
    """
    named = os.environ.get("KDVFS_RUNTIME_DIR") or os.environ.get("XDG_RUNTIME_DIR")
    if named:
        return Path(named) / "kdvfs"
    folder = Path(tempfile.gettempdir()) / f"kdvfs-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise DeviceError(
            f"{folder}: cannot be made ({error.strerror}); set KDVFS_RUNTIME_DIR to a folder of yours"
        ) from None
    if folder.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise DeviceError(f"{folder}: is not a folder of this user alone; remove it or set KDVFS_RUNTIME_DIR")
    return folder
