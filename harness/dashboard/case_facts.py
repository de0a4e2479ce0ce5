"""Content of a case's page, as text; a template and a script show it, and decide nothing."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from itertools import groupby, takewhile
from urllib.parse import quote

from harness.dashboard import shapes
from harness.dashboard.began import began
from harness.dashboard.changes import Change
from harness.dashboard.page_maker import Build
from harness.dashboard.rows import Failure, Latest, Moved, Number, Point, StackLine, cost
from harness.dashboard.site_facts import Facts
from harness.dashboard.units import day, kind, number, plural, seconds, urgency
from harness.diagnosis.cause import by_cause
from harness.model.issues import ISSUE, page
from harness.model.scriptable import becomes_script

_SILENT = "It left no message."


@dataclass(frozen=True)
class CaseVerdict:
    """Verdict of the night on a case for one configuration."""

    verdict: str
    kind: str
    line: str


@dataclass(frozen=True)
class CaseIssue:
    """An upstream issue that a case names."""

    issue: str
    page: str
    after: str  # the comma between two


@dataclass(frozen=True)
class RunDay:
    """The day of a run, what is known of the run, and what changed with it."""

    day: str
    page: str  # "" for a run that has none
    words: str = ""
    steps: Sequence[str] = ()


@dataclass(frozen=True)
class Series:
    """A case on one line over the nights."""

    line: str
    outcome: str
    kind: str
    reused: str  # of the last result, when it was measured if not in its run
    since: RunDay  # the first run of the outcome that it has now
    strip: shapes.Strip
    counts: str


@dataclass(frozen=True)
class LinesAlike:
    """A reason or a value of a case, and the configurations that have it."""

    text: str
    lines: str


@dataclass(frozen=True)
class SeenFailure:
    """A failure once, wherever it was seen."""

    outcome: str
    kind: str
    times: str
    message: str
    began: RunDay
    lines: str


@dataclass(frozen=True)
class RecordedNumber:
    """A number that the harness recorded, on the lines where it is one."""

    property: str
    steady: Sequence[LinesAlike]  # values that never moved
    plots: Sequence[shapes.Plot]


@dataclass(frozen=True)
class RepeatCommand:
    """Command that repeats a case, and a heading that says where."""

    place: str
    command: str


@dataclass(frozen=True)
class CaseFacts:
    """Content of a case's page, as text: all that ``templates/case_body.html`` shows."""

    name: str
    area: str
    area_query: str
    title: str
    first: str
    last: str
    verdicts: Sequence[CaseVerdict]
    issues: Sequence[CaseIssue]
    series: Sequence[Series]
    skips: Sequence[LinesAlike]  # why it is not measured now
    failures_title: str
    failures: Sequence[SeenFailure]
    commands: Sequence[RepeatCommand]
    durations: Sequence[shapes.Plot]
    numbers: Sequence[RecordedNumber]


class CaseReader:
    """Reader of what the pages of cases show."""

    def __init__(self, build: Build) -> None:
        self._build = build
        self._latest: dict[str, list[Latest]] = defaultdict(list)
        for row in build.facts.latest:
            self._latest[row.name].append(row)
        self.changes: dict[str, list[Change]] = defaultdict(list)
        for change in build.changes:
            self.changes[change.case].append(change)
        nights = build.facts.nights
        self._nights = plural(len(nights), "night")
        self._first, self._last = (day(nights[0]), day(nights[-1])) if nights else ("", "")
        self._series = cache(self._uncached_series)  # quiet cases are alike

    def read(self, name: str, lines: Mapping[StackLine, Sequence[Point]]) -> CaseFacts:
        """Return what the page of a case says; ``lines`` are its points from ``by_line``."""
        facts = self._build.facts
        now = self._latest.get(name, [])
        reused = {row.line: row.reused for row in now}
        area = now[0].area if now else ""
        failures = _failures(facts, facts.failures.get(name, []))
        count = plural(len(failures), "distinct failure")
        return CaseFacts(
            name=name if name.strip() else "(no name)",
            area=area,
            area_query=quote(area, safe=""),
            title=f"Outcome over {self._nights} and {plural(len(lines), 'line')}",
            first=self._first,
            last=self._last,
            verdicts=[
                CaseVerdict(c.verdict, c.verdict.replace(" ", "-"), str(c.line))
                for c in self.changes.get(name, [])
            ],
            issues=_issues(now),
            series=[
                self._series(
                    line, tuple([(p.run, p.outcome) for p in points]), reused.get(line, "")
                )
                for line, points in lines.items()
            ],
            skips=_skips(now),
            failures_title=count if failures else "No failure on record",
            failures=failures,
            commands=commands(name, now, facts.stacks),
            durations=[plot for each in lines.items() if (plot := _durations(facts, *each))],
            numbers=recorded(facts, facts.numbers.get(name, []), facts.moved.get(name, [])),
        )

    def _uncached_series(
        self, line: StackLine, outcomes: Sequence[tuple[str, str]], reused: str
    ) -> Series:
        facts = self._build.facts
        last = outcomes[-1][1]
        alike = takewhile(lambda each: each[1] == last, reversed(outcomes))
        *_, (since, _) = alike
        by_night = {facts.run[run].night: outcome for run, outcome in outcomes}
        counts = Counter(outcome for _, outcome in outcomes)
        return Series(
            line=str(line),
            outcome=last or "not run",
            kind=kind(last),
            reused=reused,
            since=RunDay(day(facts.run[since].time), self._build.run_page(since)),
            strip=shapes.strip(facts.nights, by_night, f"Outcomes on {line}"),
            counts=", ".join(f"{count} {outcome}" for outcome, count in counts.items()),
        )


def _skips(rows: Sequence[Latest]) -> list[LinesAlike]:
    """Return why the case is not measured now, and on which lines."""
    skipped = (row for row in rows if row.outcome == "skipped")
    return _alike((row.message or _SILENT, row.line) for row in skipped)


def _alike(pairs: Iterable[tuple[str, StackLine]]) -> list[LinesAlike]:
    by_text: dict[str, list[StackLine]] = {}
    for text, line in pairs:
        by_text.setdefault(text, []).append(line)
    return [LinesAlike(text, _joined(lines)) for text, lines in by_text.items()]


def recorded(
    facts: Facts, numbers: Sequence[Number], moved: Sequence[Moved]
) -> list[RecordedNumber]:
    """Return plots of what moved, and the value of what never did."""
    values: dict[tuple[str, StackLine], dict[date, float]] = {}
    for m in moved:
        values.setdefault((m.property, StackLine.of(m)), {})[m.night] = m.value
    result = []
    for name, members in groupby(sorted(numbers, key=lambda n: n.property), lambda n: n.property):
        steady = []
        plots = []
        for n in members:
            line = StackLine.of(n)
            nights = values.get((name, line), {})
            plot = shapes.plot(facts.nights, nights, number, name, str(line))
            if plot:
                plots.append(plot)
            else:
                steady.append((f"{n.last:g}", line))
        result.append(RecordedNumber(name, _alike(steady), plots))
    return result


def commands(name: str, rows: Sequence[Latest], stacks: Sequence[str]) -> list[RepeatCommand]:
    """Return what repeats the case where it is worst; a case of another tool has only its name."""
    if "::" not in name:
        return []
    quoted = shlex.quote(name)
    row = min(
        rows, key=lambda r: (urgency(r.outcome), -stacks.index(r.stack), cost(r.lane)), default=None
    )
    result = [RepeatCommand("Here", f"uv run pytest {quoted}")]
    if row and row.lane:
        where = f" --lane {shlex.quote(row.lane)} --topology {shlex.quote(row.topology)}"
        result = [RepeatCommand("On this machine's stack", f"uv run pytest {quoted}{where}")]
        matrix = (
            f"uv run xla-harness matrix --stacks {shlex.quote(row.stack)} "
            f"--lanes {shlex.quote(row.lane)} -- {quoted}"
        )
        result.append(RepeatCommand(f"On stack {row.stack}", matrix))
    if name.startswith("suites/") and becomes_script(name):
        script = f"uv run xla-harness repro {quoted}"
        result.append(RepeatCommand("As one script, without pytest", script))
    return result


def _joined(lines: Iterable[StackLine]) -> str:
    return "; ".join(map(str, lines))


def by_line(facts: Facts, points: Sequence[Point]) -> dict[StackLine, list[Point]]:
    """Return the points of each line, the newest stack first."""
    groups = {StackLine(*key): list(each) for key, each in groupby(points, lambda p: p[1:4])}
    order = {stack: -at for at, stack in enumerate(facts.stacks)}
    lines = sorted(groups, key=lambda line: (order[line.stack], cost(line.lane), line.topology))
    return {line: groups[line] for line in lines}


def _durations(facts: Facts, line: StackLine, points: Sequence[Point]) -> shapes.Plot | None:
    ran = {p.night: p.duration for p in points if p.outcome != "skipped"}
    return shapes.plot(facts.nights, ran, seconds, "Duration", str(line))


def _failures(facts: Facts, failures: Sequence[Failure]) -> list[SeenFailure]:
    """Return the failures, each cause once, in the order in which they began."""
    causes = sorted(by_cause(failures), key=lambda members: members[0].first_run)
    return [_failure(facts, members) for members in causes]


def _failure(facts: Facts, members: Sequence[Failure]) -> SeenFailure:
    first = members[0]
    since = began(facts, first.start, facts.before_failures)
    layer = f", at {first.layer}" if first.layer else ""
    times = plural(sum(failure.times for failure in members), "time")
    last = max(failure.last for failure in members)
    return SeenFailure(
        outcome=first.outcome,
        kind=kind(first.outcome),
        times=f"{times}{layer}, last seen {day(last)}",
        message=first.message or _SILENT,
        began=RunDay(since.day, since.page, since.words, since.steps),
        lines=_joined(map(StackLine.of, members)),
    )


def _issues(rows: Sequence[Latest]) -> list[CaseIssue]:
    issues = dict.fromkeys(issue for row in rows for issue in row.upstream or ())
    declared = [row.expectation for row in rows if row.expectation]
    names = list(issues | dict.fromkeys(e for e in declared if ISSUE.fullmatch(e)))
    return [CaseIssue(n, page(n), "" if n == names[-1] else ", ") for n in names]
