"""From the text of ``--workload`` to a workload."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, Final

from kdvfs_hw.devices import OpenDevice
from kdvfs_hw.workloads.base import CallableWorkload, Workload
from kdvfs_sim.core.errors import UsageError

FORMS: Final = (
    "gpt3xl-layer, gpt3xl-model or gpt3xl-decode, with sizes as in gpt3xl-layer,batch=4, or MODULE:ATTRIBUTE"
)
_TORCH: Final = ("gpt3xl-layer", "gpt3xl-model", "gpt3xl-decode")


def workload_from(text: str) -> Workload:
    """``gpt3xl-layer[,SIZE=N...]``, or ``module:attribute``: a Workload, a function that makes one, or any
    function, which then is the step.

    Raises UsageError for another text, for a missing package, and for sizes that are none.
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
    module, colon, attribute = text.partition(":")
    if not colon:
        raise UsageError(f"--workload {text!r}: write {FORMS}")
    return _adapted(_load(text, module, attribute), text)


def for_emulated(opened: OpenDevice) -> Workload | None:
    """What an emulated GPU runs if nothing is named: matrix products and copies; None for a real GPU."""
    if opened.emulated is None:
        return None
    from kdvfs_hw.workloads.emulated import default_workload

    return default_workload(opened.emulated)


def _load(text: str, module: str, attribute: str) -> Any:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as python -m does: people keep such a file where they work
    try:
        found: Any = importlib.import_module(module)
        for name in attribute.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"--workload {text!r}: {error}") from None
    return found


def _adapted(found: Any, text: str) -> Workload:
    if isinstance(found, type) or getattr(found, "makes_workload", False):
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
