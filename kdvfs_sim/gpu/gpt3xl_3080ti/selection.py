"""How much of a saving is luck: the best of many noisy measurements is not as good as it looks."""

from __future__ import annotations

from typing import Final

import numpy as np

from kdvfs_sim.core.clocks import AUTO, Auto, Clocks
from kdvfs_sim.gpu.gpt3xl_3080ti.policies import Iteration
from kdvfs_sim.gpu.gpt3xl_3080ti.published import Published
from kdvfs_sim.gpu.gpt3xl_3080ti.surface import CLOCKS, Floats

N_DRAWS: Final = 100


def repeat_noise(published: Published) -> tuple[float, float]:
    """Relative deviation of one measured time and one energy from their mean.

    From the pass sweeps: with the memory at 5001 MHz or more the requests 1890 and 2100 MHz give the same
    clocks, so eight pairs of cells are repeats.
    """
    pairs = [
        tuple(CLOCKS.index(Clocks(sm, clocks.mem_mhz)) for sm in (1890, 2100))
        for clocks in CLOCKS
        if clocks.sm_mhz is AUTO and (isinstance(clocks.mem_mhz, Auto) or clocks.mem_mhz >= 5001)
    ]

    def deviation(*sweeps: Floats) -> float:
        squares = [np.log(sweep[a] / sweep[b]) ** 2 / 2.0 for sweep in sweeps for a, b in pairs]
        return float(np.sqrt(np.mean(squares)))

    return (
        deviation(published.forward_time, published.backward_time),
        deviation(published.forward_energy, published.backward_energy),
    )


def selection_bias(
    true: Iteration, time_noise: float, energy_noise: float, *, n_draws: int = N_DRAWS, seed: int = 0
) -> tuple[float, float]:
    """Per cent by which time and energy come out worse, measured again, than they did when chosen.

    The strict policy over all kernels chooses on noisy copies of ``true``; ``true`` says what it got.
    """
    rng = np.random.default_rng(seed)
    excess = np.zeros((n_draws, 2))
    for draw in excess:
        noisy = Iteration(
            time=true.time * (1.0 + time_noise * rng.standard_normal(true.time.shape)),
            energy=true.energy * (1.0 + energy_noise * rng.standard_normal(true.energy.shape)),
            row=true.row,
        )
        choice = noisy.in_total()
        draw[:] = np.subtract(true.percent(choice), noisy.percent(choice))
    time_pct, energy_pct = excess.mean(axis=0)
    return float(time_pct), float(energy_pct)
