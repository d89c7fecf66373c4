"""Try a law on generated cases, and say in words and in code where it breaks."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis.errors import Flaky, Unsatisfiable
from hypothesis.strategies import nothing

from kdvfs_sim.core.objects import theirs, words
from kdvfs_sim.testing.law import Broken, Kind, Law, NoCase, Raised, laws_of
from kdvfs_sim.testing.notation import as_code

Outcome: TypeAlias = Literal["held", "broken", "known", "not judged"]
EXAMPLES = 100


class _Silent(BaseException):
    """Enough cases that say nothing; no Exception, or Hypothesis would look for the smallest of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one law.

    ``held``: in all ``n_judged`` cases. ``broken``: ``found`` says how, ``case`` is the smallest case, as
    code. ``known``: broken, with a reason given beforehand. ``not judged``: no case said anything, ``found``
    says why. In ``n_raised`` further cases the plug-in raised, ``raised`` says what: to a law that is not
    about exceptions they say nothing. ``seed`` and ``n_examples`` repeat the run.
    """

    law: Law
    outcome: Outcome
    n_judged: int
    n_examples: int
    seed: int
    time_s: float
    found: str = ""
    case: Any = None
    reason: str = ""
    n_raised: int = 0
    raised: str = ""

    def code(self, setup: Sequence[str] = ()) -> str:
        """The smallest case and the law that it breaks, as Python that runs where ``setup`` has made
        ``plugin``."""
        if self.case is None:
            return ""
        name, imports, text = as_code(self.case)
        law = f"from kdvfs_sim.testing.laws.{self.law.kind} import {self.law.name}"
        head = [*imports, law, *(line for line in setup if line.startswith("from "))]
        body = [line for line in setup if not line.startswith("from ")]
        return "\n".join([*head, "", *body, f"{name} = {text}", f"{self.law.name}(plugin, {name})"])


def run_law(
    law: Law,
    plugin: Any,
    *,
    n_examples: int = EXAMPLES,
    seed: int = 0,
    reason: str = "",
    shrink: bool = True,
) -> Verdict:
    """Try ``law`` on ``n_examples`` cases and shrink the first that breaks it.

    ``reason``: why it is known to break. A law about which the first ``n_examples`` cases say nothing is
    given up.
    """
    began = time.perf_counter()
    n_tried, n_judged, n_raised, raised, silent = 0, 0, 0, "", ""
    failure: tuple[str, Any] | None = None
    n_examples = 1 if law.once else n_examples
    try:
        cases = law.cases(plugin)
    except BaseException as error:
        if not theirs(error):
            raise
        failure, cases = (f"asked what it may be tried on, it raised {words(error)}", None), nothing()

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=n_examples,
        database=None,
        deadline=None,
        verbosity=Verbosity.quiet,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @hypothesis.given(case=cases)
    def trial(case: Any) -> None:
        nonlocal n_tried, n_judged, n_raised, raised, failure
        n_tried += 1
        if n_tried > n_examples and not n_judged and failure is None:
            raise _Silent
        try:
            law(plugin, case)
        except Broken as broken:
            failure = (str(broken), case)  # the last one that Hypothesis runs is the smallest
            raise
        except NoCase:
            hypothesis.reject()
        except BaseException as error:
            if not theirs(error):
                raise
            raised = str(error) if isinstance(error, Raised) else words(error)
            n_raised += 1
            hypothesis.reject()
        n_judged += 1

    with contextlib.redirect_stdout(sys.stderr):
        try:
            trial()
        except Broken:
            pass
        except Flaky:
            # what broke the law did not do so again: a plug-in that is not repeatable, which is what it broke
            silent = "the same case came out otherwise when tried again"
        except (_Silent, Unsatisfiable):
            silent = raised or "no case met the law's conditions"
    outcome: Outcome = "held" if n_judged else "not judged"
    found, case = "", None
    if failure is not None:
        found, case = failure
        outcome = "known" if reason else "broken"
    elif outcome == "not judged":
        found = silent
    elif reason:
        found = f"said to fail, and held this time: {reason}"
    return Verdict(
        law=law,
        outcome=outcome,
        n_judged=n_judged,
        n_examples=n_examples,
        seed=seed,
        time_s=time.perf_counter() - began,
        found=found,
        case=case,
        reason=reason,
        n_raised=n_raised,
        raised=raised,
    )


def check(
    plugin: Any,
    kind: Kind,
    *,
    only: Sequence[str] = (),
    known: Mapping[str, str] | None = None,
    n_examples: int = EXAMPLES,
    seed: int = 0,
) -> Iterator[Verdict]:
    """The verdicts on a plug-in, one law at a time.

    ``only``: names of laws; all if empty. ``known``: law to the reason why it is known to fail. Raises
    ValueError for a name that is no law of this kind.
    """
    laws = laws_of(kind)
    reasons = known or {}
    _check_names([*only, *reasons], laws)
    for law in laws:
        if not only or law.name in only:
            yield run_law(law, plugin, n_examples=n_examples, seed=seed, reason=reasons.get(law.name, ""))


def _check_names(names: Iterable[str], laws: Sequence[Law]) -> None:
    listed = [law.name for law in laws]
    for name in names:
        if name not in listed:
            raise ValueError(f"no law {name!r} of this kind; there are: {', '.join(listed)}")


def report(verdict: Verdict, *, setup: Sequence[str] = ()) -> str:
    """A verdict in words; a broken law with its smallest case as code and how to see it again.

    ``setup``: the lines of code that make ``plugin``.
    """
    law = verdict.law
    line = f"{verdict.outcome:<10} {law.name}"
    if verdict.outcome == "held":
        more = f"; {verdict.found}" if verdict.found else ""
        if verdict.n_raised:
            more += f"; in {verdict.n_raised} more {verdict.raised}"
        return f"{line}  ({verdict.n_judged} cases, {verdict.time_s:.1f} s{more})"
    if verdict.outcome == "not judged":
        tried = f" in all {verdict.n_raised} cases" if verdict.n_raised else ""
        return f"{line}  ({verdict.found}{tried})"
    if verdict.outcome == "known":
        return f"{line}  ({verdict.reason})"
    lines = [line, f"  law    {law.says}", f"  found  {verdict.found}"]
    if verdict.case is not None:
        lines += ["  case", *(f"    {row}".rstrip() for row in verdict.code(setup).splitlines())]
    lines.append(f"  again  --only {law.name} --seed {verdict.seed} --examples {verdict.n_examples}")
    return "\n".join(lines)
