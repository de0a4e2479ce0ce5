"""The verdicts on a night, in the order in which a person reads them, alike ones as one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from harness.dashboard.began import Began, began
from harness.dashboard.rows import BROKEN, StackLine, Start
from harness.dashboard.site_facts import Facts
from harness.dashboard.units import day, number, seconds
from harness.diagnosis.cause import Cause
from harness.diagnosis.signature import headline
from harness.render.page_names import ordered
from harness.verdicts.nightly import NightVerdict, judge
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


@dataclass(frozen=True)
class Change:
    """A verdict on a case on one line. ``since`` is the run in which what it says began."""

    verdict: str
    name: str
    area: str
    line: StackLine
    run: str
    since: str
    text: str  # what went wrong, what is gone, or from what to what a number rose
    signature: str = ""
    layer: str = ""
    outcome: str = ""  # of the run; "" for a case that the run does not have
    began: Began | None = None  # None for a flaky case: it has no first run

    @property
    def cause(self) -> Cause:
        """What such changes have in common; false for one that has no cause."""
        return Cause(self.layer, self.signature)

    @property
    def start(self) -> Start:
        """The run in which what it says began."""
        return Start(self.name, *self.line, self.since)


@dataclass(frozen=True)
class ChangeGroup:
    """Changes with one verdict and one cause, across cases and stacks."""

    changes: tuple[Change, ...]

    @property
    def first(self) -> Change:
        """The one that stands for all."""
        return self.changes[0]

    @property
    def tells_apart(self) -> bool:
        """Whether its members say different things."""
        return len({change.text for change in self.changes}) > 1

    @property
    def names(self) -> list[str]:
        """The cases, each once."""
        return list(dict.fromkeys(change.name for change in self.changes))

    @property
    def stacks(self) -> list[str]:
        """The stacks, each once."""
        return ordered([change.line.stack for change in self.changes])

    @property
    def outcomes(self) -> list[str]:
        """Its broken cases' outcomes, each once."""
        return list(dict.fromkeys(c.outcome for c in self.changes if c.outcome in BROKEN))

    @property
    def began(self) -> list[tuple[Began, list[str]]]:
        """When it began and what changed then, each combination once, with the stacks."""
        found: dict[tuple[object, ...], tuple[Began, list[str]]] = {}
        for change in self.changes:
            if change.began:
                began = change.began
                key = (day(began.time), began.is_first, began.before is None, *began.changed)
                found.setdefault(key, (began, []))[1].append(began.stack)
        by_time = sorted(found.values(), key=lambda each: each[0].run)
        return [(began, ordered(stacks)) for began, stacks in by_time]

    @property
    def areas(self) -> list[str]:
        """The areas, each once."""
        return ordered([change.area for change in self.changes])


def judged(connection: DuckDBPyConnection, facts: Facts, nights: int) -> list[Change]:
    """What the rules say of the newest night's runs, in view of the nights that the site shows.

    A failure that an expectation declares is no change that a page counts, and a case that broke in
    one run of the night is not still failing in a later one of it.
    """
    runs = [run.run for run in facts.runs if run.night == facts.night]
    found = judge(connection, runs, nights).found
    changes = [
        _change(verdict, facts)
        for verdict in found
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


def clusters(changes: Iterable[Change]) -> list[ChangeGroup]:
    """Changes with one cause as one, the largest first; without a signature those of one area."""
    together: dict[tuple[str, ...], list[Change]] = {}
    for change in changes:
        alike = change.cause or ("", "", change.area)
        together.setdefault((change.verdict, *alike), []).append(change)
    made = [ChangeGroup(tuple(members)) for members in together.values()]
    return sorted(made, key=lambda cluster: (-len(cluster.changes), cluster.first.name))


def of(changes: Sequence[Change], verdict: str) -> list[Change]:
    """Those with one verdict."""
    return [change for change in changes if change.verdict == verdict]


def _change(verdict: NightVerdict, facts: Facts) -> Change:
    text = headline(verdict.message)
    signature = verdict.signature
    if verdict.verdict == Verdict.SLOWER:
        text, signature = _rise(verdict), verdict.number
    elif verdict.verdict == Verdict.MISSING:
        text = f"skipped: {text}" if verdict.outcome else "not in the run"
        signature = ""
    elif verdict.verdict == Verdict.FIXED:
        text = ""
    return Change(
        verdict=str(verdict.verdict),
        name=verdict.case,
        area=verdict.area or facts.areas.get(verdict.case, ""),
        line=StackLine.of(verdict),
        run=verdict.run,
        since=verdict.since or verdict.run,
        text=text,
        signature=signature,
        layer=verdict.layer,
        outcome=verdict.outcome,
    )


def _rise(verdict: NightVerdict) -> str:
    show = seconds if verdict.number.startswith("duration") else number
    was, now = verdict.was or 0.0, verdict.now or 0.0
    return f"{verdict.number} {show(was)} to {show(now)}"
