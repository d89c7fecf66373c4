"""What is asked: the budget, and the policies that compete within it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kdvfs_sim.core.checks import finite, one_of
from kdvfs_sim.core.errors import InputError, UsageError
from kdvfs_sim.core.problem import Aggregation, Granularity, Metrics, Minimize, Objective


def comparable(auto: Metrics) -> Metrics:
    """The AUTO run, if percentages of it say anything. Raises InputError where its energy is not known, or it
    takes no time or no energy."""
    if auto.energy_j is None:
        raise InputError(f"nothing to compare with: {auto.energy_reason}")
    for nothing, value in (("time", auto.time_s), ("energy", auto.energy_j)):
        if value <= 0:
            raise InputError(f"nothing to compare with: at AUTO the workload takes no {nothing}")
    return auto


SLACK_PCT: Final = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Relative to AUTO: at most ``slack_pct`` more time or, if given, at most ``energy_pct`` of its energy.

    Of time, without either, ``SLACK_PCT``; ``slack_pct`` is None under a budget of energy. Raises InputError
    for both, and for one that is not finite and at least 0.
    """

    slack_pct: float | None = None
    energy_pct: float | None = None

    def __post_init__(self) -> None:
        if self.energy_pct is not None:
            finite("Budget: energy_pct", self.energy_pct)
            if self.slack_pct is not None:
                raise InputError("Budget: give slack_pct or energy_pct, not both")
            return
        if self.slack_pct is None:
            object.__setattr__(self, "slack_pct", SLACK_PCT)
        finite("Budget: slack_pct", self.slack_pct)

    def objective(self, minimize: Minimize, base: Metrics) -> Objective:
        """What a plan for ``minimize`` is to do within this budget.

        Plans for ``energy`` keep the budget of time, those for another objective have none: EDP and ED²P
        weigh time against energy themselves. A budget of energy is kept by all, and plans for ``energy``
        minimize time within it. Raises InputError for a share of an energy that is not known.
        """
        if self.energy_pct is not None:
            if base.energy_j is None:
                raise InputError(
                    f"{self}: AUTO's energy is not known ({base.energy_reason or 'no reason given'})"
                )
            return Objective(
                minimize="time" if minimize == "energy" else minimize,
                max_energy_j=base.energy_j * self.energy_pct / 100,
            )
        if minimize != "energy":
            return Objective(minimize=minimize)
        assert self.slack_pct is not None
        return Objective(minimize="energy", max_time_s=base.time_s * (1 + self.slack_pct / 100))

    def __str__(self) -> str:
        if self.energy_pct is not None:
            return f"at most {self.energy_pct:g} % of AUTO's energy"
        return f"at most {self.slack_pct:g} % more time than AUTO"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a policy may choose, without the protocol."""

    granularity: Granularity
    aggregation: Aggregation = "global"
    minimize: Minimize = "energy"

    def __post_init__(self) -> None:
        one_of("Plan: granularity", self.granularity, Granularity)
        one_of("Plan: aggregation", self.aggregation, Aggregation)
        one_of("Plan: minimize", self.minimize, Minimize)

    @property
    def name(self) -> str:
        words: list[str] = [self.granularity]
        words += ["local"] if self.aggregation == "local" else []
        words += [self.minimize] if self.minimize != "energy" else []
        return " ".join(words)


PLANS: Final = (
    Plan(granularity="kind"),
    Plan(granularity="segment"),
    Plan(granularity="launch", aggregation="local"),
    Plan(granularity="launch"),
    Plan(granularity="launch", minimize="edp"),
    Plan(granularity="launch", minimize="ed2p"),
)
COMMON: Final = tuple(plan for plan in PLANS if plan.name in ("kind", "launch local", "launch"))


# always in the table, whatever else is asked for
BASELINES: Final = ("static", "static-mix", "power-limit", "power-limit and lock", "pass")
SURE: Final = "launch sure"


def plans_from(text: str) -> tuple[Plan, ...]:
    """``common``, ``all``, or names in the table separated by commas; what is there anyway adds nothing.

    Raises UsageError.
    """
    if text in ("common", "all"):
        return COMMON if text == "common" else PLANS
    by_name = {plan.name: plan for plan in PLANS}
    names = dict.fromkeys(name.strip() for name in text.split(","))
    for name in names:
        if name == SURE:
            raise UsageError(f"--policy {name!r}: it comes with --confidence PCT")
        if name not in by_name and name not in ("auto", *BASELINES):
            raise UsageError(
                f"--policy {name!r}: one of common, all, {', '.join(by_name)} is right; always there are "
                f"auto, {', '.join(BASELINES)}"
            )
    return tuple(by_name[name] for name in names if name in by_name)
