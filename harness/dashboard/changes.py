"""The verdicts on a night, in the order in which a person reads them, alike ones as one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from duckdb import DuckDBPyConnection

from harness.dashboard.rows import StackLine
from harness.dashboard.site_facts import Facts
from harness.dashboard.units import number, seconds
from harness.diagnosis.signature import first_line
from harness.verdicts.verdicts import Kind, Verdict, judge

# What the first screen counts; the rest is on the pages of cases.
HEADLINES = (
    ("regressed", "passed on the run before, and does not now"),
    (
        "new failure",
        "broken, and never seen to work here: a new case, or one that failed as expected",
    ),
    ("crashed", "died of a signal or a fatal message"),
    ("hung", "gave no answer within its deadline"),
    ("fixed", "failed on the run before, and passes now"),
    ("flaky", "answers differ though the stack did not change"),
    ("missing", "ran before, and did not now"),
    ("slower", "takes longer, or counts more, than the noise of the runs before explains"),
)
STATES = ("crashed", "hung")  # verdicts on how a case is, not on how it changed
ALWAYS = ("regressed", "fixed", "flaky", "missing", "slower")  # said also when there is none


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


@dataclass(frozen=True)
class ChangeGroup:
    """Changes with one verdict and one signature, across cases and stacks."""

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
        return list(dict.fromkeys(change.line.stack for change in self.changes))

    @property
    def areas(self) -> list[str]:
        """The areas, each once."""
        return list(dict.fromkeys(change.area for change in self.changes))


def judged(connection: DuckDBPyConnection, facts: Facts, nights: int) -> list[Change]:
    """What the rules say of the newest night's runs, in view of the nights that the site shows."""
    runs = [run.run for run in facts.runs if run.night == facts.night]
    return [_change(verdict, facts) for verdict in judge(connection, runs, nights).found]


def clusters(changes: Iterable[Change]) -> list[ChangeGroup]:
    """Alike changes as one, the largest first: one signature, or, without one, one area."""
    together: dict[tuple[str, str, str], list[Change]] = {}
    for change in changes:
        alike = ("", change.signature) if change.signature else (change.area, "")
        together.setdefault((change.verdict, *alike), []).append(change)
    made = [ChangeGroup(tuple(members)) for members in together.values()]
    return sorted(made, key=lambda cluster: (-len(cluster.changes), cluster.first.name))


def of(changes: Sequence[Change], verdict: str) -> list[Change]:
    """Those with one verdict."""
    return [change for change in changes if change.verdict == verdict]


def _change(verdict: Verdict, facts: Facts) -> Change:
    text = first_line(verdict.message)
    signature = verdict.signature
    if verdict.kind == Kind.SLOWER:
        text, signature = _rise(verdict), verdict.number
    elif verdict.kind == Kind.MISSING:
        text = f"skipped: {text}" if verdict.outcome else "not in the run"
        signature = ""
    elif verdict.kind == Kind.FIXED:
        text = ""
    return Change(
        verdict=str(verdict.kind),
        name=verdict.case,
        area=verdict.area or facts.areas.get(verdict.case, ""),
        line=StackLine.of(verdict),
        run=verdict.run,
        since=verdict.since or verdict.run,
        text=text,
        signature=signature,
    )


def _rise(verdict: Verdict) -> str:
    show = seconds if verdict.number.startswith("duration") else number
    was, now = verdict.was or 0.0, verdict.now or 0.0
    return f"{verdict.number} {show(was)} to {show(now)}"
