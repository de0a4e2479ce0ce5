"""A comparison as data: both sides, and what is known of each case that one of them has."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from harness.errors import BadInputError
from harness.junit.properties import REUSED
from harness.junit.report import Report
from harness.junit.result import Result
from harness.model.case_id import file_of
from harness.model.versions import named_by
from harness.verdicts.finding import Finding, Findings
from harness.verdicts.words import Verdict

# What works on one side only, and may prove flaky when it is rerun.
DIFFERS = (Verdict.REGRESSED, Verdict.FIXED, Verdict.FLAKY)


@dataclass(frozen=True)
class Side:
    """Side of a comparison: all runs of one stack, of every lane, shard and rerun, by case key."""

    name: str  # the stack's, else its framework's version
    versions: Mapping[str, str]
    runs: Mapping[str, tuple[Result, ...]]  # a case's first run, then its reruns
    left_out: tuple[str, ...]  # the causes for which all first runs left cases out
    uncollected: Mapping[str, str]  # file to the first line of why
    wheels: Mapping[str, str] = field(default_factory=dict)  # package to SHA-256 of its own wheel

    @property
    def measured(self) -> int:
        """Number of cases that ran to an answer at least once."""
        return sum(any(run.measured for run in runs) for runs in self.runs.values())

    @property
    def reused(self) -> list[str]:
        """Return when and on which stack each result that an earlier run measured was measured."""
        return sorted(filter(None, map(self.reused_of, self.runs)))

    def reused_of(self, key: str) -> str | None:
        """Return when and on which stack a case was measured; None if in its first run here."""
        return next((run.properties.get(REUSED) for run in self.runs.get(key, ())), None)

    def framework_of(self, key: str) -> str:
        """Return the framework that a case asks; "" where only one can be asked, or none ran."""
        return next((run.framework for run in self.runs.get(key, ())), "")

    def why_missing(self, case: Result) -> str:
        """Return why this stack has no run of a case that the other stack has."""
        file = file_of(case.id)
        if file in self.uncollected:
            return self.uncollected[file]
        places = {"lane": case.lane, "topology": case.topology, "framework": case.framework}
        for cause in self.left_out:
            if cause.startswith(tuple(f"{axis} {name}: " for axis, name in places.items())):
                return f"left out: {cause}"
        return "not collected: the case is in no report of this stack"


def side(reports: Sequence[Report], reruns: Sequence[Report] = ()) -> Side:
    """Combine the reports of one stack. Raises BadInputError if they are of several."""
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
class Open:
    """Work that a comparison still waits for; false once it is final."""

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
            f"{count} {noun}{'s' * (count > 1)} {state}"
            for state, (count, noun) in counts.items()
            if count
        )


class Move(NamedTuple):
    """Change of framework, from the one that the base asks to the candidate's."""

    base: str
    candidate: str

    def __str__(self) -> str:
        return f"{self.base} to {self.candidate}"


@dataclass(frozen=True, kw_only=True)
class Comparison(Findings):
    """Comparison of two stacks: all cases of both sides, each with its verdict."""

    base: Side
    candidate: Side
    open: Open = Open()
    move: Move | None = None
    not_run_on_base: frozenset[str] = frozenset()  # keys; expected to do the same there
    not_asked: tuple[str, ...] = ()  # lanes on which both stacks could have been compared

    @property
    def in_question(self) -> tuple[Finding, ...]:
        """Cases that differ and are rerun: the flaky ones, and those that nothing declares."""
        differing = self.of(*DIFFERS)
        return tuple(c for c in differing if c.verdict == Verdict.FLAKY or not c.declared)

    @cached_property
    def lanes(self) -> tuple[str, ...]:
        """The lanes on which the candidate has measured a case, by name."""
        runs = (run for runs in self.candidate.runs.values() for run in runs)
        return tuple(sorted({run.lane for run in runs if run.measured and run.lane}))

    @cached_property
    def counts(self) -> Mapping[Verdict, int]:
        """Number of cases with each verdict."""
        return Counter(case.verdict for case in self.findings)
