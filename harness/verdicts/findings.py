"""What a comparison says: verdicts, and what is known of each case that has one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from harness.verdicts.side import Side


class Verdict(StrEnum):
    """A case on the candidate, held against the base; what matters most comes first."""

    REGRESSED = "regressed"
    NEWLY_UNMEASURED = "newly unmeasured"
    FLAKY = "flaky"
    FIXED = "fixed"
    STILL_BROKEN = "still broken"
    NEWLY_MEASURED = "newly measured"
    UNCHANGED = "unchanged"


VERDICTS = list(Verdict)
# What works on one side only, and may prove flaky when it is rerun.
DIFFERS = (Verdict.REGRESSED, Verdict.FIXED, Verdict.FLAKY)


@dataclass(frozen=True)
class Tally:
    """How often a case worked, broke and gave no answer on one side."""

    works: int = 0
    broken: int = 0
    unmeasured: int = 0

    @property
    def always_works(self) -> bool:
        """Whether every run that measured it says so."""
        return self.works > 0 and not self.broken

    @property
    def always_breaks(self) -> bool:
        """Whether every run that measured it says so."""
        return self.broken > 0 and not self.works

    @property
    def differs(self) -> bool:
        """Whether its runs disagree."""
        return self.works > 0 and self.broken > 0

    def __str__(self) -> str:
        named = {"ok": self.works, "broken": self.broken, "no answer": self.unmeasured}
        return ", ".join(f"{count} {name}" for name, count in named.items() if count) or "not run"


@dataclass(frozen=True)
class Finding:
    """What became of one case from the base to the candidate.

    ``layer`` and ``failure`` are those of the side where it broke, the candidate's if both did;
    ``failure`` is the first line of the message, and the cause of a case newly unmeasured.
    ``component`` is the pin that carries the difference, once that is known.

    ``rerun_cases`` are the keys of the cases whose reruns say that the verdict is stable: its own
    key if the case was rerun itself, else those of the representatives of its cause; none if it
    rests on its first run alone. ``attributed_case`` is the key of the one case in which
    ``component`` was found: its own or a representative's.
    """

    key: str
    id: str
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
    rerun_cases: tuple[str, ...] = ()
    attributed_case: str = ""

    @property
    def rerun_itself(self) -> bool:
        """Whether this very case was rerun."""
        return self.key in self.rerun_cases

    @property
    def undecided(self) -> bool:
        """Whether it may be a regression, which more runs would show.

        It is when one side always works or always breaks and the other's runs differ, so that the
        candidate may be the worse. A case whose runs differ on both sides is as flaky as it was.
        """
        if self.verdict != Verdict.FLAKY:
            return False
        return (self.base.always_works and self.candidate.differs) or (
            self.base.differs and self.candidate.always_breaks
        )


@dataclass(frozen=True)
class Open:
    """What a comparison still waits for; false once it is final."""

    reruns: int = 0  # cases that will be rerun
    attributions: int = 0  # causes whose component will be looked for

    def __bool__(self) -> bool:
        return bool(self.reruns or self.attributions)

    def __str__(self) -> str:
        counts = {"to rerun": (self.reruns, "case"), "to attribute": (self.attributions, "cause")}
        return ", ".join(
            f"{count} {noun}{'s' * (count > 1)} {what}"
            for what, (count, noun) in counts.items()
            if count
        )


@dataclass(frozen=True)
class Comparison:
    """All cases of both sides. Findings are in the order of Verdict, then by key."""

    base: Side
    candidate: Side
    findings: tuple[Finding, ...]
    open: Open = Open()

    def of(self, *verdicts: Verdict) -> tuple[Finding, ...]:
        """The findings with one of these verdicts."""
        return tuple(finding for finding in self.findings if finding.verdict in verdicts)

    @cached_property
    def counts(self) -> Mapping[Verdict, int]:
        """How many cases have each verdict."""
        return Counter(finding.verdict for finding in self.findings)
