"""A finding: a verdict on a case with its cause, wherever it is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.diagnosis.cause import Cause
from harness.model.outcome import Answer
from harness.verdicts.costs import Cost
from harness.verdicts.differences import Difference
from harness.verdicts.words import Verdict


@dataclass(frozen=True)
class Tally:
    """Counts of how often a case worked, broke and gave no answer on one side."""

    works: int = 0
    broken: int = 0  # as expected or not
    unmeasured: int = 0
    expected: int = 0  # of the broken ones, those that an expectation declares

    @property
    def always_works(self) -> bool:
        """Return whether the case works in every run that measured it, and one did."""
        return self.works > 0 and not self.broken

    @property
    def always_breaks(self) -> bool:
        """Return whether the case breaks in every run that measured it, and one did."""
        return self.broken > 0 and not self.works

    @property
    def is_flaky(self) -> bool:
        """Return whether the case's runs, all of which are of one stack, disagree."""
        return self.works > 0 and self.broken > 0

    @property
    def answer(self) -> Answer | None:
        """Answer of the case's runs, where broken outweighs working; None if none measured it."""
        if not self.broken:
            return Answer.WORKS if self.works else None
        return Answer.EXPECTED if self.expected == self.broken else Answer.BROKEN

    def __str__(self) -> str:
        named = {"ok": self.works, "broken": self.broken, "no answer": self.unmeasured}
        return ", ".join(f"{count} {name}" for name, count in named.items() if count) or "not run"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A verdict on a case, on a night or in a comparison of two stacks.

    A night has a finding for each verdict of a case, of which there may be several, and knows the
    runs before it. A comparison has one for each case, and knows what both sides say of it.
    """

    key: str  # the case and where it ran; the same on both sides of a comparison
    case: str  # its id, on the candidate if it is there
    verdict: Verdict
    lane: str = ""
    topology: str = ""
    area: str = ""
    outcome: str = ""  # on the night; "" for a case that the run does not have
    expected: bool = False  # an expectation declares the failure
    message: str = ""  # of the failure, the base's if only that broke; why it is missing
    layer: str = ""
    signature: str = ""
    issues: tuple[str, ...] = ()  # or, in a comparison, one ``finding NAME`` of an expectation
    costs: tuple[Cost, ...] = ()  # what rose where the verdict is larger or slower
    # A night
    stack: str = ""
    run: str = ""  # whose facts these are
    before: str = ""  # the run that the case is compared with; "" for none
    since: str = ""  # the run with which the present answer began
    flaky: bool = False  # of a regression that stands: the case is flaky, too
    # A comparison
    base: Tally = Tally()
    candidate: Tally = Tally()
    ids: tuple[str, ...] = ()  # the base's and the candidate's, which differ in the framework
    note: str = ""
    changes: tuple[Difference, ...] = ()  # where it works on both: what else its facts say
    rerun_cases: tuple[str, ...] = ()  # keys of the reruns on which the verdict rests; its own, ...
    component: str | None = None  # the pin that is responsible, once that is known
    attributed_case: str = ""  # key of the case in which it was found: this, or a representative

    @property
    def cause(self) -> Cause:
        """Cause of the case's failure; false for a case that did not fail."""
        return Cause(self.layer, self.signature)

    @property
    def rerun_itself(self) -> bool:
        """Return whether this very case was rerun, and not only representatives of its cause."""
        return self.key in self.rerun_cases

    @property
    def declared(self) -> bool:
        """Return whether the case broke, and expectations declare its failures on both sides."""
        broken = self.base.broken + self.candidate.broken
        return 0 < broken == self.base.expected + self.candidate.expected

    @property
    def undecided(self) -> bool:
        """Return whether the case may be a regression, which more runs would show.

        It is when one side always works or always breaks and the other's runs differ, so that the
        candidate may be the worse. A case whose runs differ on both sides is no regression: it was
        flaky before.
        """
        if self.verdict != Verdict.FLAKY:
            return False
        return (self.base.always_works and self.candidate.is_flaky) or (
            self.base.is_flaky and self.candidate.always_breaks
        )


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Findings of a night or a comparison, in the order of Verdict, then by case."""

    findings: tuple[Finding, ...]

    def of(self, *verdicts: Verdict) -> tuple[Finding, ...]:
        """Return the findings with one of these verdicts."""
        return tuple(each for each in self.findings if each.verdict in verdicts)

    def counted(self, verdict: Verdict) -> str:
        """Return how many cases have the verdict: ``5 regressed (3 expected)``; "" for none."""
        return counted(self.of(verdict), verdict)


def counted(findings: Sequence[Finding], verdict: Verdict) -> str:
    """Return how many, and how many an expectation declares: ``5 regressed (3 expected)``."""
    expected = sum(finding.expected for finding in findings)
    more = f" ({expected} expected)" if expected else ""
    return f"{len(findings)} {verdict}{more}" if findings else ""
