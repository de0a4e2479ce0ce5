"""A comparison as data: both sides, and what is known of each case that one of them has."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from harness.errors import BadInputError
from harness.junit.report import Report, Result
from harness.left_out import LeftOut
from harness.model.case_id import file_of
from harness.model.outcome import Answer
from harness.model.versions import named_by
from harness.verdicts.costs import Cost
from harness.verdicts.differences import Difference
from harness.verdicts.words import Verdict, counted

# What works on one side only, and may prove flaky when it is rerun.
DIFFERS = (Verdict.REGRESSED, Verdict.FIXED, Verdict.FLAKY)


@dataclass(frozen=True)
class Side:
    """All that was run on one stack, its lanes, its shards and its reruns, by the case's key."""

    name: str  # the stack's, else its framework's version
    versions: Mapping[str, str]
    runs: Mapping[str, tuple[Result, ...]]  # a case's first run, then its reruns
    left_out: tuple[LeftOut, ...]  # the causes for which all first runs left cases out
    uncollected: Mapping[str, str]  # file to the first line of why
    wheels: Mapping[str, str] = field(default_factory=dict)  # package to SHA-256 of its own wheel

    @property
    def measured(self) -> int:
        """How many cases ran to an answer at least once."""
        return sum(any(run.measured for run in runs) for runs in self.runs.values())

    def framework_of(self, key: str) -> str:
        """Return the framework that a case asks; "" where only one can be asked, or none ran."""
        return next((run.framework for run in self.runs.get(key, ())), "")

    def why_missing(self, case: Result) -> str:
        """Why there is no run of a case that the other stack has."""
        file = file_of(case.id)
        if file in self.uncollected:
            return self.uncollected[file]
        for cause in self.left_out:
            if cause.axis and getattr(case, cause.axis) == cause.name:
                return f"left out: {cause}"
        return "not collected: the case is in no report of this stack"


def side(reports: Sequence[Report], reruns: Sequence[Report] = ()) -> Side:
    """The reports of one stack as one. Raises BadInputError when they are of several."""
    every = [*reports, *reruns]
    for other in every[1:]:
        for name, version in every[0].versions.items():
            if other.versions.get(name, version) != version:
                raise BadInputError(
                    f"{other.path}: expected {name} {version}, as in {every[0].path}, "
                    f"found {other.versions[name]}: reports of two stacks can't be one side"
                )
        if other.wheels != every[0].wheels:
            raise BadInputError(
                f"{other.path}: expected the same wheels as in {every[0].path}, found others: one "
                "was built again between the two runs"
            )
    runs: dict[str, list[Result]] = defaultdict(list)
    for report in every:
        for key, result in report.results.items():
            runs[key].append(result)
    left_out = [set(report.left_out) for report in reports]
    versions = every[0].versions if every else {}
    return Side(
        name=next((r.stack for r in every if r.stack), named_by(versions) or "no report"),
        versions=versions,
        runs={key: tuple(results) for key, results in runs.items()},
        left_out=tuple(sorted(set.intersection(*left_out))) if left_out else (),
        uncollected={f: why for r in every for f, why in r.uncollected.items()},
        wheels=every[0].wheels if every else {},
    )


@dataclass(frozen=True)
class Tally:
    """How often a case worked, broke and gave no answer on one side."""

    works: int = 0
    broken: int = 0  # as expected or not
    unmeasured: int = 0
    expected: int = 0  # of the broken ones, those that an expectation declares

    @property
    def always_works(self) -> bool:
        """Whether every run that measured it says so."""
        return self.works > 0 and not self.broken

    @property
    def always_breaks(self) -> bool:
        """Whether every run that measured it says so."""
        return self.broken > 0 and not self.works

    @property
    def is_flaky(self) -> bool:
        """Whether its runs, all of which are of one stack, disagree."""
        return self.works > 0 and self.broken > 0

    @property
    def answer(self) -> Answer | None:
        """What its runs say, unless they disagree; None if no run measured it."""
        if not self.broken:
            return Answer.WORKS if self.works else None
        return Answer.EXPECTED if self.expected == self.broken else Answer.BROKEN

    def __str__(self) -> str:
        named = {"ok": self.works, "broken": self.broken, "no answer": self.unmeasured}
        return ", ".join(f"{count} {name}" for name, count in named.items() if count) or "not run"


@dataclass(frozen=True)
class ComparedCase:
    """One case on the base and on the candidate.

    ``layer`` and ``failure`` are those of the side where it broke, the candidate's if both did;
    ``failure`` is the message, and, for a missing case, why it is missing.
    ``component`` is the pin that carries the difference, once that is known.

    ``rerun_cases`` are the keys of the cases whose reruns say that the verdict is stable: its own
    key if the case was rerun itself, else those of the representatives of its cause; none if it
    rests on its first run alone. ``attributed_case`` is the key of the one case in which
    ``component`` was found: its own or a representative's.
    """

    key: str
    id: str  # the candidate's, else the base's
    area: str
    lane: str
    verdict: Verdict
    base: Tally
    candidate: Tally
    layer: str = ""
    failure: str = ""
    issues: tuple[str, ...] = ()  # or one ``finding NAME``, as its expectation says
    note: str = ""
    component: str | None = None
    ids: tuple[str, ...] = ()  # the base's and the candidate's, which differ in the framework
    rerun_cases: tuple[str, ...] = ()
    attributed_case: str = ""
    costs: tuple[Cost, ...] = ()  # where the verdict is larger or slower: what rose
    changes: tuple[Difference, ...] = ()  # where it works on both: what else its facts say

    @property
    def rerun_itself(self) -> bool:
        """Whether this very case was rerun."""
        return self.key in self.rerun_cases

    @property
    def expected(self) -> bool:
        """Whether an expectation declares the failure that the case has on the candidate."""
        return self.candidate.answer is Answer.EXPECTED

    @property
    def declared(self) -> bool:
        """Whether it broke, and an expectation declares each failure that it has on either side."""
        broken = self.base.broken + self.candidate.broken
        return 0 < broken == self.base.expected + self.candidate.expected

    @property
    def undecided(self) -> bool:
        """Whether it may be a regression, which more runs would show.

        It is when one side always works or always breaks and the other's runs differ, so that the
        candidate may be the worse. A case whose runs differ on both sides is no regression: it was
        flaky before.
        """
        if self.verdict != Verdict.FLAKY:
            return False
        return (self.base.always_works and self.candidate.is_flaky) or (
            self.base.is_flaky and self.candidate.always_breaks
        )


@dataclass(frozen=True)
class Open:
    """What a comparison still waits for; false once it is final."""

    cases: bool = False  # whether all but the quick cases are still to run
    reruns: int = 0  # cases that will be rerun
    attributions: int = 0  # causes whose component will be looked for

    def __bool__(self) -> bool:
        return bool(self.cases or self.reruns or self.attributions)

    def __str__(self) -> str:
        if self.cases:
            return "all other cases"
        counts = {"to rerun": (self.reruns, "case"), "to attribute": (self.attributions, "cause")}
        return ", ".join(
            f"{count} {noun}{'s' * (count > 1)} {what}"
            for what, (count, noun) in counts.items()
            if count
        )


class Move(NamedTuple):
    """From the framework that the base asks to the one that the candidate asks."""

    base: str
    candidate: str

    def __str__(self) -> str:
        return f"{self.base} to {self.candidate}"


@dataclass(frozen=True)
class Comparison:
    """All cases of both sides. Findings are in the order of Verdict, then by key."""

    base: Side
    candidate: Side
    cases: tuple[ComparedCase, ...]
    open: Open = Open()
    move: Move | None = None
    not_run_on_base: frozenset[str] = frozenset()  # keys; expected to do the same there
    not_asked: tuple[str, ...] = ()  # lanes on which both stacks could have been compared

    def of(self, *verdicts: Verdict) -> tuple[ComparedCase, ...]:
        """The cases with one of these verdicts."""
        return tuple(case for case in self.cases if case.verdict in verdicts)

    @property
    def in_question(self) -> tuple[ComparedCase, ...]:
        """What differs and is rerun, as it may be flaky: all but what expectations declare."""
        differing = self.of(*DIFFERS)
        return tuple(c for c in differing if c.verdict == Verdict.FLAKY or not c.declared)

    def counted(self, verdict: Verdict) -> str:
        """How many cases have the verdict: ``5 regressed (3 expected)``; "" for none."""
        found = self.of(verdict)
        expected = sum(case.expected for case in found)
        return counted(len(found), expected, verdict) if found else ""

    @cached_property
    def lanes(self) -> tuple[str, ...]:
        """The lanes on which the candidate has measured a case, by name."""
        runs = (run for runs in self.candidate.runs.values() for run in runs)
        return tuple(sorted({run.lane for run in runs if run.measured and run.lane}))

    @cached_property
    def counts(self) -> Mapping[Verdict, int]:
        """How many cases have each verdict."""
        return Counter(case.verdict for case in self.cases)
