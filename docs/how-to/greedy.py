"""An optimizer as one writes it first: least energy, by its own estimate of time and energy."""

import numpy as np

from kdvfs_sim import Problem, Schedule, Solution


class Greedy:
    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        chain, costs, limit_s = problem.chain, problem.costs, problem.objective.max_time_s
        if problem.objective.minimize != "energy" or limit_s is None:
            return Solution(status="not applicable", message="only energy under a time budget")
        # launches x clocks
        time_s = chain.duration_ns[:, None] * costs.ratio[chain.kind] * 1e-9
        energy_j = time_s * costs.request_power_w[chain.kind]
        every, gaps_s = np.arange(len(chain)), chain.lag_ns.sum() * 1e-9
        # the clocks of least energy, then the launch that gains most time goes faster, until all fits
        row = energy_j.argmin(axis=1)
        while time_s[every, row].sum() + gaps_s > limit_s:
            gain_s = time_s[every, row] - time_s.min(axis=1)
            if gain_s.max() <= 0:
                return Solution(status="infeasible", message="not even the fastest clocks are fast enough")
            row[gain_s.argmax()] = time_s[gain_s.argmax()].argmin()
        schedule = Schedule.from_assignment(
            [costs.clocks[r] for r in row],
            stream=chain.stream,
            device=chain.device,
            protocol=problem.protocol.name,
            boundary=problem.boundary,
        )
        return Solution(status="feasible", schedule=schedule, metrics=problem.evaluate(schedule))
