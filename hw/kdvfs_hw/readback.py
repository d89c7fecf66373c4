"""Success of a request is not its effect: whether the GPU runs at the clocks it was asked for.

Read under load: an idle GPU, or one at its power cap, may show neither that a lock holds nor that
it does not.
"""

from __future__ import annotations

from typing import Final

from kdvfs_sim.core.clocks import Clocks
from kdvfs_sim.core.device import Device, ObservedClocks
from kdvfs_sim.core.errors import ClocksNotReachedError, DeviceUnsupportedError

NEAR_MHZ: Final = 7  # half a step of 15 MHz


def await_clocks(
    device: Device,
    clocks: Clocks,
    *,
    timeout_s: float = 2.0,
    poll_s: float = 0.002,
) -> ObservedClocks:
    """Poll until the GPU is observed at ``clocks``; parts left to the driver are reached by any clock.

    The reading's ``returned_ns`` is when it was seen there, which is later than when it got there.
    Raises ClocksNotReachedError, with the driver's reasons, after ``timeout_s``.
    """
    started_ns = device.time.now_ns()
    while True:
        observed = device.observed_clocks()
        if observed.off_by_mhz(clocks) <= NEAR_MHZ:
            return observed
        waited_ns = device.time.now_ns() - started_ns
        if waited_ns >= timeout_s * 1e9:
            raise ClocksNotReachedError(
                device.uuid, str(clocks), str(observed), waited_ns * 1e-9, _reasons(device)
            )
        device.time.sleep_ns(round(poll_s * 1e9))


def _reasons(device: Device) -> str:
    try:
        return ", ".join(sorted(device.throttle_reasons().reasons))
    except DeviceUnsupportedError:
        return "not told by this driver"
