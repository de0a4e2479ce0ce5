"""The verdicts on a night, in the order in which a person reads them, alike ones as one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from harness.dashboard.began import Began, began
from harness.dashboard.rows import BROKEN, StackLine, Start
from harness.dashboard.site_facts import Facts
from harness.dashboard.units import number, seconds
from harness.diagnosis.signature import headline
from harness.render.page_names import ordered
from harness.verdicts.finding import Finding
from harness.verdicts.groups import Group, grouped
from harness.verdicts.nightly import judge
from harness.verdicts.words import Verdict

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

# What the front page counts, in this order. A crash and a hang are one of these, and their outcome.
HEADLINES = (
    ("regressed", "worked on the baseline and is broken now"),
    ("new failure", "is broken now, and was never measured before or was broken as expected"),
    ("fixed", "was broken on the baseline and works now"),
    ("flaky", "outcomes differ on unchanged versions"),
    ("missing", "was measured on the baseline and is not now"),
    ("slower", "a duration or a recorded number is above the range of its last runs"),
    ("still failing", "was broken on an earlier night too"),
)
ALWAYS = ("regressed", "fixed", "flaky", "missing", "slower")  # said also when there is none
NEWS = ("regressed", "new failure", "missing")  # what somebody should look at first
_OUTCOMES = (Verdict.CRASHED, Verdict.HUNG)  # their cases have another verdict that counts them


@dataclass(frozen=True, kw_only=True)
class Change(Finding):
    """A finding of the night as a page shows it.

    ``message`` is what went wrong, what is gone, or from what to what a number rose; a missing case
    has no cause, and what became slower has its number as its signature.
    """

    began: Began | None = None  # None for a flaky case: it has no first run

    @property
    def line(self) -> StackLine:
        """Configuration that the change is about: its stack, lane and topology."""
        return StackLine.of(self)

    @property
    def start(self) -> Start:
        """The run in which what it says began."""
        return Start(self.case, *self.line, self.since)


@dataclass(frozen=True)
class ChangeGroup(Group):
    """Changes with one verdict and one cause, across cases and stacks."""

    members: tuple[Change, ...]

    @property
    def tells_apart(self) -> bool:
        """Return whether the messages of the changes differ."""
        return len({change.message for change in self.members}) > 1

    @property
    def names(self) -> list[str]:
        """The cases, each once."""
        return list(dict.fromkeys(change.case for change in self.members))

    @property
    def stacks(self) -> list[str]:
        """The stacks, each once."""
        return ordered([change.stack for change in self.members])

    @property
    def outcomes(self) -> list[str]:
        """Distinct outcomes of the broken cases."""
        return list(dict.fromkeys(c.outcome for c in self.members if c.outcome in BROKEN))

    @property
    def began(self) -> list[tuple[Began, list[str]]]:
        """Distinct beginnings of the changes, with what changed then and on which stacks."""
        stacks_by_run: dict[tuple[object, ...], tuple[Began, list[str]]] = {}
        for change in self.members:
            if change.began:
                began = change.began
                key = (began.day, began.is_first, began.before is None, *began.changed)
                stacks_by_run.setdefault(key, (began, []))[1].append(began.stack)
        by_time = sorted(stacks_by_run.values(), key=lambda each: each[0].run)
        return [(began, ordered(stacks)) for began, stacks in by_time]

    @property
    def areas(self) -> list[str]:
        """The areas, each once."""
        return ordered([change.area for change in self.members])


def judged(connection: DuckDBPyConnection, facts: Facts, nights: int) -> list[Change]:
    """Return the rules' verdicts on the newest night's runs, given the nights that the site shows.

    A failure that an expectation declares is no change that a page counts, and a case that broke in
    one run of the night is not still failing in a later one of it.
    """
    runs = [run.run for run in facts.runs if run.night == facts.night]
    findings = judge(connection, runs, nights).findings
    changes = [
        _change(verdict, facts)
        for verdict in findings
        if verdict.verdict not in _OUTCOMES and not verdict.expected
    ]
    changes = [c for c in changes if c.verdict != Verdict.STILL_FAILING or c.since not in runs]
    before = facts.measured_before([c.start for c in changes])
    return [
        change
        if change.verdict == Verdict.FLAKY
        else replace(change, began=began(facts, change.start, before))
        for change in changes
    ]


def clusters(changes: Iterable[Change]) -> tuple[ChangeGroup, ...]:
    """Group changes with one cause, the largest group first; without a signature, by area."""
    return grouped(changes, lambda change: change.cause or change.area, ChangeGroup)


def of(changes: Sequence[Change], verdict: str) -> list[Change]:
    """Return the changes with one verdict."""
    return [change for change in changes if change.verdict == verdict]


def _change(finding: Finding, facts: Facts) -> Change:
    text, signature = headline(finding.message), finding.signature
    if finding.verdict == Verdict.SLOWER:
        (rise,) = finding.costs
        show = seconds if rise.unit else number
        text, signature = f"{rise.what} {show(rise.was)} to {show(rise.now)}", rise.what
    elif finding.verdict == Verdict.MISSING:
        text, signature = f"skipped: {text}" if finding.outcome else "not in the run", ""
    elif finding.verdict == Verdict.FIXED:
        text = ""
    return replace(
        Change(**vars(finding)),
        area=finding.area or facts.areas.get(finding.case, ""),
        since=finding.since or finding.run,
        message=text,
        signature=signature,
    )
