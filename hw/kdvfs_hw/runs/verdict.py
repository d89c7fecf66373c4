"""The verdict: predictions against readings, and which part of a prediction did not hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from kdvfs_hw.measure.statistics import Answer, Interval, interval, judge

TIME_TOLERANCE: Final = 0.02
ENERGY_TOLERANCE: Final = 0.05
SWITCHING_TOLERANCE: Final = 0.5  # latencies scatter by more than kernels do


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """One prediction and what was read. ``error_pct``: the prediction against the mean read."""

    part: str
    name: str
    unit: str
    predicted: float | None
    measured: Interval | None
    tolerance: float
    answer: Answer
    note: str = ""

    @property
    def error_pct(self) -> float | None:
        if self.predicted is None or self.measured is None:
            return None
        return 100 * (self.predicted / self.measured.mean - 1)

    def to_json(self) -> dict[str, Any]:
        found = self.measured
        return {
            "part": self.part,
            "name": self.name,
            "unit": self.unit,
            "predicted": self.predicted,
            "measured": None if found is None else found.mean,
            "low": None if found is None else found.low,
            "high": None if found is None else found.high,
            "n": 0 if found is None else found.n,
            "error_pct": self.error_pct,
            "tolerance_pct": 100 * self.tolerance,
            "answer": self.answer,
            "note": self.note,
        }

    def __str__(self) -> str:
        head = f"{self.part}, {self.name}: {self.answer}"
        if self.predicted is None:
            return f"{head} (no prediction{': ' if self.note else ''}{self.note})"
        if self.measured is None:
            return f"{head} (predicted {self.predicted:.5g} {self.unit}; {self.note or 'too few readings'})"
        m = self.measured
        return (
            f"{head}: predicted {self.predicted:.5g} {self.unit}, read {m.mean:.5g} {self.unit} "
            f"({m.low:.5g} to {m.high:.5g} {self.unit}, {m.n} readings), {self.error_pct:+.2f} %"
        )


def quantity(
    part: str,
    name: str,
    unit: str,
    predicted: float | None,
    values: Sequence[float | None],
    tolerance: float,
    note: str = "",
) -> Quantity:
    """Judge readings against a prediction; unknown readings are left out."""
    found = interval([value for value in values if value is not None])
    return Quantity(
        part=part,
        name=name,
        unit=unit,
        predicted=predicted,
        measured=found,
        tolerance=tolerance,
        answer=judge(found, predicted, tolerance),
        note=note,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``time`` and ``energy``: over all parts; ``because``: the parts that decided, where not all agree."""

    quantities: tuple[Quantity, ...]

    def _over_all(self, name: str) -> Answer:
        answers = [each.answer for each in self.quantities if each.name == name]
        if "disagrees" in answers:
            return "disagrees"
        if not answers or "not enough data" in answers:
            return "not enough data"
        return "agrees"

    @property
    def time(self) -> Answer:
        return self._over_all("time")

    @property
    def energy(self) -> Answer:
        return self._over_all("energy")

    @property
    def overall(self) -> Answer:
        """Everything asked about, the switching included."""
        answers = {each.answer for each in self.quantities}
        if "disagrees" in answers:
            return "disagrees"
        return "agrees" if answers == {"agrees"} else "not enough data"

    @property
    def because(self) -> tuple[str, ...]:
        """What did not hold, from cause to effect: a later part inherits an earlier one's error."""
        wrong = [each for each in self.quantities if each.answer == "disagrees"]
        parts = list(dict.fromkeys(each.part for each in wrong))
        for cause in ("kernels", "switching"):
            found = [part for part in parts if part.startswith(cause)]
            if found:
                return tuple(found)
        return tuple(parts)

    def doubted(self, reason: str) -> Verdict:
        """The same where readings may be wrong: what disagrees with them may be right."""
        return Verdict(
            quantities=tuple(
                replace(each, answer="not enough data", note=reason) if each.answer == "disagrees" else each
                for each in self.quantities
            )
        )

    def to_json(self) -> Mapping[str, Any]:
        return {
            "overall": self.overall,
            "time": self.time,
            "energy": self.energy,
            "because": list(self.because),
            "quantities": [each.to_json() for each in self.quantities],
        }

    def lines(self) -> list[str]:
        """For people: the answer first."""
        head = [f"verdict: {self.overall} (time {self.time}, energy {self.energy})"]
        if self.because:
            head.append(f"what does not hold: {', '.join(self.because)}")
        return [*head, *(f"  {each}" for each in self.quantities)]
