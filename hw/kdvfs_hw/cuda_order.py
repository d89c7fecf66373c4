"""Which GPU a CUDA ordinal means: mapped from the environment to a UUID, or refused, never assumed.

Rules: CUDA programming guide, environment variables CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kdvfs_hw.nvml_read import GpuIdentity
from kdvfs_sim.core.errors import DeviceError


def cuda_devices(gpus: Sequence[GpuIdentity], environment: Mapping[str, str]) -> tuple[GpuIdentity, ...]:
    """The GPUs that CUDA shows to a process with this environment, by ordinal.

    Raises DeviceError where the ordinal cannot be told: CUDA's default order is fastest first,
    which is only known here if all GPUs are of one model.
    """
    usable = [gpu for gpu in gpus if gpu.error is None]
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return _ordered(usable, environment)
    shown: list[GpuIdentity] = []
    for entry in (part.strip() for part in visible.split(",")):
        gpu = _named(entry, usable, environment)
        if gpu is None:
            break  # CUDA shows only what comes before an invalid entry
        if gpu in shown:
            raise DeviceError(
                f"CUDA_VISIBLE_DEVICES={visible} names {gpu.uuid} twice: CUDA then shows no GPU"
            )
        shown.append(gpu)
    return tuple(shown)


def _ordered(gpus: Sequence[GpuIdentity], environment: Mapping[str, str]) -> tuple[GpuIdentity, ...]:
    by_bus = tuple(sorted(gpus, key=lambda gpu: gpu.pci_order))
    order = environment.get("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    models = sorted({gpu.name for gpu in gpus})
    if order != "PCI_BUS_ID" and len(models) > 1:
        raise DeviceError(
            f"CUDA orders these GPUs by speed ({', '.join(models)}), which the driver library does not tell: "
            "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name the GPU by its UUID"
        )
    return by_bus


def _named(entry: str, gpus: Sequence[GpuIdentity], environment: Mapping[str, str]) -> GpuIdentity | None:
    if entry.startswith("MIG-"):
        raise DeviceError(
            f"CUDA_VISIBLE_DEVICES names the instance {entry}: clocks and energy are of the whole GPU, "
            "so an instance can be neither measured nor controlled; name a GPU by its UUID"
        )
    if entry.startswith("GPU-"):
        matches = [gpu for gpu in gpus if gpu.uuid.startswith(entry)]
        return matches[0] if len(matches) == 1 else None
    if not entry.isascii() or not entry.isdigit():
        return None
    ordered = _ordered(gpus, environment)
    return ordered[int(entry)] if int(entry) < len(ordered) else None
