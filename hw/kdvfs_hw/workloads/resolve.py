"""From the text of ``--workload`` to a workload."""

from __future__ import annotations

import sys
from typing import Any, Final

from kdvfs_hw.devices import OpenDevice
from kdvfs_hw.workloads.base import CallableWorkload, Workload, blamed
from kdvfs_sim.core.errors import UsageError
from kdvfs_sim.core.objects import load_object

FORMS: Final = (
    "gpt3xl-layer, gpt3xl-model or gpt3xl-decode, with sizes as in gpt3xl-layer,batch=4, or MODULE:ATTRIBUTE,"
    " or FILE.py:ATTRIBUTE"
)
_TORCH: Final = ("gpt3xl-layer", "gpt3xl-model", "gpt3xl-decode")


def workload_from(text: str) -> Workload:
    """``gpt3xl-layer[,SIZE=N...]``, ``module:attribute`` or ``file.py:attribute``: a Workload, a function
    that makes one, or any function, which then is the step.

    Raises UsageError for another text, for a missing package, and for sizes that are none; PluginError where
    the code named fails.
    """
    name, *options = text.split(",")
    if name in _TORCH:
        pairs = [option.partition("=") for option in options]
        wrong = next((key for key, equals, _ in pairs if not equals), None)
        if wrong is not None:
            raise UsageError(f"--workload {text!r}: write {wrong}=NUMBER")
        try:
            from kdvfs_hw.workloads.gpt3xl import gpt3xl
        except ImportError as error:
            raise UsageError(
                f"workload {name} needs PyTorch ({error}); install it with: pip install torch"
            ) from None
        return gpt3xl(name, {key: value for key, _, value in pairs})
    module, colon, attribute = text.rpartition(":")
    if not colon or not attribute:
        raise UsageError(f"--workload {text!r}: write {FORMS}")
    return _adapted(_load(text, module, attribute), text)


def for_emulated(opened: OpenDevice) -> Workload | None:
    """What an emulated GPU runs if nothing is named: matrix products and copies; None for a real GPU."""
    if opened.emulated is None:
        return None
    from kdvfs_hw.workloads.emulated import default_workload

    return default_workload(opened.emulated)


def _load(text: str, place: str, attribute: str) -> Any:
    try:
        return load_object(place, attribute)
    except UsageError as error:
        raise UsageError(f"--workload {text!r}: {error}") from None


def _adapted(found: Any, text: str) -> Workload:
    if isinstance(found, type) or getattr(found, "makes_workload", False):
        with blamed(text):
            found = found()
    if hasattr(found, "launch") and hasattr(found, "wait"):
        workload: Workload = found
        return workload
    if callable(found):
        return CallableWorkload(found, name=text, synchronize=_torch_synchronize())
    raise UsageError(f"--workload {text!r}: is neither a workload nor a function")


def _torch_synchronize() -> Any:
    """Waits for the GPU if the function uses PyTorch: its kernels go on when it returns."""

    def synchronize() -> None:
        torch: Any = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.synchronize()

    return synchronize
