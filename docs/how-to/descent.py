"""An optimizer that keeps every law: descent from the best lock, each step judged by ``problem.evaluate``."""

from kdvfs_sim import Problem, Schedule, Solution
from kdvfs_sim.optimize.baselines import static_lock, static_mix


class Descent:
    def solve(self, problem: Problem, /, *, seed: int) -> Solution:
        chain, costs, objective = problem.chain, problem.costs, problem.objective
        rows = [row for row in range(costs.n_clocks) if costs.requestable[row]]
        answers = [static_lock(problem), static_mix(problem)]
        answers = [answer for answer in answers if answer.metrics is not None]
        if not answers:
            return Solution(status="infeasible", message="no lock keeps the budget")

        def value(answer: Solution) -> float:
            return objective.value(answer.metrics.time_s, answer.metrics.energy_j)

        lock = answers[0].schedule.requests[0].clocks
        plan, best = [costs.index(lock)] * len(chain), value(answers[0])
        groups = {(kind, i // 64) for i, kind in enumerate(chain.kind.tolist())}
        improved = True
        while improved:
            improved = False
            for kind, part in sorted(groups):
                for row in rows:
                    members = (i // 64 == part and k == kind for i, k in enumerate(chain.kind))
                    tried = [row if member else old for member, old in zip(members, plan, strict=True)]
                    answer = self.judged(problem, tried)
                    metrics = answer.metrics
                    if metrics.energy_j is None or not objective.allows(metrics.time_s, metrics.energy_j):
                        continue
                    if value(answer) < best * (1 - 1e-9):
                        plan, best, improved = tried, value(answer), True
                        answers.append(answer)
        found = min(answers, key=value)
        return Solution(
            status="feasible",
            schedule=found.schedule,
            metrics=found.metrics,
            alternate=found.alternate,
            share=found.share,
            seed=seed,
        )

    def judged(self, problem: Problem, plan: list[int]) -> Solution:
        schedule = Schedule.from_assignment(
            [problem.costs.clocks[row] for row in plan],
            stream=problem.chain.stream,
            device=problem.chain.device,
            protocol=problem.protocol.name,
            boundary=problem.boundary,
        )
        return Solution(status="feasible", schedule=schedule, metrics=problem.evaluate(schedule))
