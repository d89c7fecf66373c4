"""What this machine's GPUs offer to this process, and the remedy for each no. Changes nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final

from kdvfs_hw.cuda_order import cuda_devices
from kdvfs_hw.devices import EMULATED, emulated_gpu, emulated_session, resolve, unfinished_runs
from kdvfs_hw.lock_record import NOTICE, Unfinished, in_use, remedy, unfinished_record
from kdvfs_hw.nvml_read import GpuIdentity, NvmlDevice, NvmlSession
from kdvfs_sim.core.device import Capability, Feature
from kdvfs_sim.core.errors import DeviceError, DriverError

MEANING: Final[dict[Feature, str]] = {
    Feature.READ_CLOCKS: "read clocks",
    Feature.LOCK_SM: "lock SM clock",
    Feature.LOCK_MEM: "lock memory clock",
    Feature.ENERGY_COUNTER: "energy counter",
    Feature.INSTANT_POWER: "instant power",
    Feature.AVERAGE_POWER: "average power",
    Feature.THROTTLE_REASONS: "throttle reasons",
    Feature.TEMPERATURE: "temperature",
    Feature.PROCESSES: "processes",
}

_SHOWN: Final = 4


@dataclass(frozen=True, kw_only=True)
class GpuFindings:
    """One GPU. With ``error`` set it cannot be used, and only its place in the list is known."""

    identity: GpuIdentity
    cuda_ordinal: int | None = None
    error: str | None = None
    capabilities: Mapping[Feature, Capability] | None = None
    sm_mhz: tuple[int, ...] = ()
    mem_mhz: tuple[int, ...] = ()
    power_limit_w: float | None = None
    persistence_mode: bool | None = None
    foreign_pids: tuple[int, ...] = ()
    unfinished: Unfinished | None = None


@dataclass(frozen=True, kw_only=True)
class Findings:
    """A machine. ``problem``: why no GPU can be read at all. ``unfinished``: runs that may have left clocks
    locked, on any GPU, real or emulated; ``unreadable``: records of runs that cannot be read."""

    software: Mapping[str, str]
    gpus: tuple[GpuFindings, ...] = ()
    problem: str | None = None
    cuda_problem: str | None = None
    unfinished: tuple[Unfinished, ...] = ()
    unreadable: tuple[str, ...] = ()

    @property
    def usable(self) -> bool:
        return any(gpu.error is None for gpu in self.gpus)


def examine(text: str | None = None) -> Findings:
    """All GPUs of this machine, or the one that ``text`` (as for ``--device``) names.

    A machine without GPU or driver is a finding, not an error. Raises UsageError for a malformed
    name, DeviceError for a GPU that is not there.
    """
    unfinished, unreadable = unfinished_runs()
    found = _examine(text, {run.uuid: run for run in unfinished})
    return replace(found, unfinished=unfinished, unreadable=unreadable)


def _examine(text: str | None, unfinished: Mapping[str, Unfinished]) -> Findings:
    if text is not None and text.startswith(EMULATED):
        emulated = emulated_gpu(text)
        with closing(emulated), emulated_session(emulated) as session:
            (identity,) = session.gpus()
            # one that is named by its folder keeps its record there, where nobody else would look
            mine = unfinished_record((emulated.folder,), emulated.uuid)
            found = _gpu(session, identity, {}, {emulated.uuid: mine} if mine else {})
            return Findings(software=session.software(), gpus=(found,))
    try:
        session = NvmlSession()
    except DriverError as error:
        return Findings(software={}, problem=f"{error.words}: {error.remedy}")
    with session:
        gpus = session.gpus()
        ordinals, cuda_problem = _ordinals(gpus)
        wanted = gpus if text is None else (resolve(text, gpus, os.environ),)
        return Findings(
            software=session.software(),
            gpus=tuple(_gpu(session, identity, ordinals, unfinished) for identity in wanted),
            problem=None if gpus else "the driver is there, but it sees no GPU: see nvidia-smi",
            cuda_problem=cuda_problem,
        )


def _ordinals(gpus: Sequence[GpuIdentity]) -> tuple[dict[str, int], str | None]:
    try:
        return {gpu.uuid: i for i, gpu in enumerate(cuda_devices(gpus, os.environ))}, None
    except DeviceError as error:
        return {}, str(error)


def _gpu(
    session: NvmlSession,
    identity: GpuIdentity,
    ordinals: Mapping[str, int],
    unfinished: Mapping[str, Unfinished],
) -> GpuFindings:
    mine = unfinished.get(identity.uuid)
    if identity.error is not None:
        return GpuFindings(identity=identity, error=identity.error, unfinished=mine)
    try:
        device = NvmlDevice(session, identity)
        capabilities = device.capabilities()
        can_list = capabilities[Feature.PROCESSES].support == "yes"
        return GpuFindings(
            identity=identity,
            cuda_ordinal=ordinals.get(identity.uuid),
            capabilities=capabilities,
            sm_mhz=tuple(sorted({sm for clocks in _supported(device).values() for sm in clocks})),
            mem_mhz=tuple(sorted(_supported(device))),
            power_limit_w=_optional(device.power_limit_w),
            persistence_mode=_optional(device.persistence_mode),
            foreign_pids=tuple(other.pid for other in device.foreign_processes()) if can_list else (),
            unfinished=mine,
        )
    except DriverError as error:
        return GpuFindings(identity=identity, error=str(error), unfinished=mine)


def _supported(device: NvmlDevice) -> dict[int, tuple[int, ...]]:
    return _optional(lambda: device.supported_clocks) or {}


def _optional(read: Any) -> Any:
    try:
        return read()
    except DeviceError:
        return None


def to_json(findings: Findings) -> dict[str, Any]:
    """The same as ``to_lines``, for programs."""
    return {
        "usable": findings.usable,
        "problem": findings.problem,
        "cuda_problem": findings.cuda_problem,
        "software": dict(findings.software),
        "notice": NOTICE,
        "gpus": [_gpu_json(gpu) for gpu in findings.gpus],
        "unfinished_runs": [_run_json(run) for run in findings.unfinished],
        "unreadable_records": list(findings.unreadable),
    }


def _run_json(run: Unfinished) -> dict[str, Any]:
    return {
        "uuid": run.uuid,
        "device": run.reference,
        "runner": run.runner_pid,
        "guardian": run.guardian_pid,
        "clocks": list(run.clocks),
        "reset": None if run.guardian_pid is not None else remedy(run),
    }


def _gpu_json(gpu: GpuFindings) -> dict[str, Any]:
    capabilities = gpu.capabilities or {}
    return {
        "uuid": gpu.identity.uuid,
        "name": gpu.identity.name,
        "pci_bus_id": gpu.identity.pci_bus_id,
        "cuda_ordinal": gpu.cuda_ordinal,
        "error": gpu.error,
        "capabilities": {
            feature.value: {"support": found.support, "words": found.words, "remedy": found.remedy}
            for feature, found in capabilities.items()
        },
        "sm_mhz": list(gpu.sm_mhz),
        "mem_mhz": list(gpu.mem_mhz),
        "power_limit_w": gpu.power_limit_w,
        "persistence_mode": gpu.persistence_mode,
        "foreign_pids": list(gpu.foreign_pids),
        "unfinished_run": None if gpu.unfinished is None else gpu.unfinished.runner_pid,
    }


def to_lines(findings: Findings) -> Iterator[str]:
    """A page for a person."""
    if findings.problem is not None:
        yield from (
            "No GPU can be read on this machine.",
            f"  {findings.problem}",
            "",
            "Everything but the verbs of kdvfs hw works without one. To try those, use an emulated GPU:",
            "  kdvfs hw doctor --device emulated:h200",
        )
    else:
        yield "  ".join(f"{name} {version}" for name, version in findings.software.items())
    if findings.cuda_problem is not None:
        yield f"CUDA ordinals: {findings.cuda_problem}"
    for gpu in findings.gpus:
        yield ""
        yield from _gpu_lines(gpu)
    shown = {gpu.identity.uuid for gpu in findings.gpus}
    for run in findings.unfinished:
        if run.uuid not in shown:
            yield ""
            yield f"another GPU here: {run.reference}"
            yield from _unfinished_lines(run)
    for problem in findings.unreadable:
        yield f"a run's record cannot be read, so clocks may be locked: {problem}"
    if findings.usable:
        yield ""
        yield f"Before clocks are changed, know that {NOTICE}"


def _gpu_lines(gpu: GpuFindings) -> Iterator[str]:
    identity = gpu.identity
    ordinal = "" if gpu.cuda_ordinal is None else f", cuda:{gpu.cuda_ordinal}"
    yield f"{identity.name or f'GPU {identity.index}'}  {identity.uuid}  {identity.pci_bus_id}{ordinal}"
    if gpu.error is not None:
        yield f"  cannot be used: {gpu.error}"
    for feature, found in (gpu.capabilities or {}).items():
        yield f"  {MEANING[feature]:18} {found.support:13} {found.words}"
        if found.remedy:
            yield f"  {'':32} -> {found.remedy}"
    if gpu.sm_mhz:
        first, last = gpu.sm_mhz[0], gpu.sm_mhz[-1]
        yield f"  SM clocks {first}..{last} MHz ({len(gpu.sm_mhz)}), memory {_list(gpu.mem_mhz)} MHz"
    if gpu.power_limit_w is not None:
        yield f"  power limit {gpu.power_limit_w:g} W"
    if gpu.persistence_mode is False:
        yield "  persistence mode is off: without a client the driver forgets settings (nvidia-smi -pm 1)"
    if gpu.foreign_pids:
        yield f"  in use by other processes: {_list(gpu.foreign_pids)}; measurements will be marked"
    if gpu.unfinished is not None:
        yield from _unfinished_lines(gpu.unfinished)


def _unfinished_lines(run: Unfinished) -> Iterator[str]:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.since_unix_s))
    if run.guardian_pid is not None:
        user = in_use(run.uuid, run.runner_pid, run.guardian_pid, run.since_unix_s)
        yield f"  controlled since {since}: {user}"
        return
    yield f"  CLOCKS MAY BE LOCKED by process {run.runner_pid}, which started {since} and did not finish"
    if run.clocks:
        more = f", and {len(run.clocks) - _SHOWN} more" if len(run.clocks) > _SHOWN else ""
        yield f"  at {'; '.join(run.clocks[:_SHOWN])}{more}; to release them:"
    yield f"    {remedy(run)}"


def _list(values: Sequence[int]) -> str:
    return ", ".join(str(value) for value in values)
