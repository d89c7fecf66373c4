"""The order of what happens within one nanosecond: the priority of an event."""

from __future__ import annotations

from typing import Final

from simpy.events import EventPriority

CLOCKS: Final = EventPriority(0)  # landings, stalls beginning, governor steps
ENDS: Final = EventPriority(1)
STARTS: Final = EventPriority(2)
REQUESTS: Final = EventPriority(3)

NEVER: Final = 1 << 62
