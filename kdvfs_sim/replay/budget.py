"""The power that the dynamic governor allows a device at this moment, from what it drew before."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kdvfs_sim.core.governor import PowerBudget
    from kdvfs_sim.replay.states import States


class Allowance:
    """``limit_w`` holds until the next tick; the device has rested at ``row`` before 0 ns.

    Unknown power counts as that of the idle device, so it uses up nothing.
    """

    def __init__(self, budget: PowerBudget, states: States, row: int) -> None:
        assert states.cap_w is not None
        self.tick_ns = budget.tick_ns
        self._budget, self._states, self._cap_w = budget, states, states.cap_w
        self._burst_of = dict(budget.burst_of)
        self._most_w = budget.most * self._cap_w
        self._burst_w = self.limit_w = self._most_w
        rest_w = states.power_w((), row)
        self._rest_w = 0.0 if math.isnan(rest_w) else rest_w
        self._recent_w: deque[float] = deque([self._rest_w] * budget.n_ticks, maxlen=budget.n_ticks)
        self._since_ns = 0
        self._power_w, self._level_w = self._rest_w, budget.burst * self._cap_w
        self._drawn = self._level = 0.0  # integrals over this tick of power and of the burst level, W ns

    def draw(self, now: int, kinds: tuple[int, ...], row: int, stalled: bool) -> None:
        """From now on the device draws this."""
        self._pass(now)
        power_w = self._states.power_w(kinds, row, stalled)
        self._power_w = self._rest_w if math.isnan(power_w) else power_w
        shares = [self._burst_of.get(self._states.category(k), self._budget.burst) for k in kinds]
        self._level_w = min(shares, default=self._budget.burst) * self._cap_w

    def tick(self, now: int) -> bool:
        """Find the allowance of the next tick; says whether it is another one."""
        self._pass(now)
        budget, before_w = self._budget, self.limit_w
        power_w, level_w = self._drawn / self.tick_ns, self._level / self.tick_ns
        self._drawn = self._level = 0.0
        self._recent_w.append(power_w)
        mean_w = sum(self._recent_w) / budget.n_ticks
        self._burst_w = min(self._most_w, max(0.0, self._burst_w + budget.burst_gain * (level_w - power_w)))
        self.limit_w = min(
            self._burst_w,
            max(budget.least * self._cap_w, self._cap_w + budget.gain * (self._cap_w - mean_w)),
            before_w + budget.rise * self._cap_w,
        )
        return self.limit_w != before_w

    def _pass(self, now: int) -> None:
        length_ns = now - self._since_ns
        self._drawn += self._power_w * length_ns
        self._level += self._level_w * length_ns
        self._since_ns = now
