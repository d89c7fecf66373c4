"""What a device runs at and draws in one nanosecond: for ``reference``, which steps through them."""

from __future__ import annotations

from kdvfs_sim.core.costs import CostTable


def effective(costs: CostTable, kinds: list[int], row: int) -> int:
    """The row at which kernels of these kinds run beside each other when ``row`` is asked for.

    The highest, at the memory clock of the one that is held lowest, at which idle power and what each adds
    meet the cap; the lowest if none does.
    """
    if not kinds:
        return row
    if len(kinds) == 1:
        return int(costs.effective[kinds[0], row])
    key = [pair.sort_key[::-1] for pair in costs.clocks]
    lowest = min((int(costs.effective[kind, row]) for kind in kinds), key=lambda e: key[e])
    if costs.cap_w is None:
        return lowest
    below = [
        e
        for e in range(costs.n_clocks)
        if costs.clocks[e].mem_mhz == costs.clocks[lowest].mem_mhz and key[e] <= key[lowest]
    ]
    below.sort(key=lambda e: key[e], reverse=True)
    return next((e for e in below if not power_w(costs, kinds, e) > costs.cap_w), below[-1])


def power_w(costs: CostTable, kinds: list[int], row: int) -> float:
    """What a device draws that runs kernels of these kinds at an effective row, idle without any."""
    if len(kinds) == 1:
        return float(costs.power_w[kinds[0], row])
    total_w = costs.idle_power_w[row]
    for kind in kinds:
        total_w = total_w + (costs.power_w[kind, row] - costs.idle_power_w[row])
    return float(total_w)
