"""What can go wrong with a device, as data: on which call, and how."""

from __future__ import annotations

from hypothesis import strategies as st

from kdvfs_sim.testing.fake_device import FAULTS, DeviceFault


@st.composite
def device_faults(draw: st.DrawFn, *, max_faults: int = 3) -> tuple[DeviceFault, ...]:
    """Scripts of faults for ``FakeDevice``: in force from one call of the device on, for some calls or for
    good."""
    names = draw(st.lists(st.sampled_from(sorted(FAULTS)), max_size=max_faults, unique=True))
    return tuple(
        DeviceFault(
            name=name,
            n_calls_before=draw(st.integers(0, 20)),
            n_calls=draw(st.none() | st.integers(1, 10)),
        )
        for name in names
    )
