"""How the emulated GPU's sensors blur what really happened.

Defaults: one H200 (energy counter every 100 ms, 5 ms a read; instant power over about 25 ms every
100 ms, as measured on H100 cards; average power over 1 s).
"""

from __future__ import annotations

from dataclasses import dataclass

from kdvfs_hw.emulator.state import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensors:
    """Update periods, windows, read costs and gain of the energy counter and the power readings.

    ``lag_ns``: an update becomes readable this long after the instant it is about. ``gain``
    multiplies energy and power alike: a sensor that is off is off in both.
    """

    counter_period_ns: int = 100_000_000
    counter_read_ns: int = 5_000_000
    lag_ns: int = 2_000_000
    instant_period_ns: int = 100_000_000
    instant_window_ns: int = 25_000_000
    average_period_ns: int = 20_000_000
    average_window_ns: int = 1_000_000_000
    gain: float = 1.0

    def energy_mj(self, state: State, start_ns: int) -> int:
        """The counter as it reads now, in a device whose driver was loaded at ``start_ns``."""
        edge_ns = self._edge(state.t_ns, start_ns, self.counter_period_ns)
        frozen, backward = state.fault("frozen_counter"), state.fault("backward_counter")
        if frozen:
            edge_ns = min(edge_ns, self._edge(frozen.from_ns, start_ns, self.counter_period_ns))
        energy_j = state.energy_at(edge_ns) * self._gain(state)
        if backward and (edge_ns - start_ns) // self.counter_period_ns % 2:
            energy_j -= backward.value
        return max(0, int(energy_j * 1000))

    def instant_mw(self, state: State, start_ns: int) -> int:
        """Mean power over the short window that ended at the last update."""
        return self._mean_mw(state, start_ns, self.instant_period_ns, self.instant_window_ns)

    def average_mw(self, state: State, start_ns: int) -> int:
        """Mean power over the long window that ended at the last update."""
        return self._mean_mw(state, start_ns, self.average_period_ns, self.average_window_ns)

    def _mean_mw(self, state: State, start_ns: int, period_ns: int, window_ns: int) -> int:
        edge_ns = self._edge(state.t_ns, start_ns, period_ns)
        used_j = state.energy_at(edge_ns) - state.energy_at(edge_ns - window_ns)
        return round(used_j / (window_ns * 1e-9) * self._gain(state) * 1000)

    def _edge(self, t_ns: int, start_ns: int, period_ns: int) -> int:
        n_periods = max(0, t_ns - self.lag_ns - start_ns) // period_ns
        return start_ns + n_periods * period_ns

    def _gain(self, state: State) -> float:
        fault = state.fault("counter_gain")
        return self.gain * (fault.value if fault else 1.0)
