"""A page for each case: over time and stacks, its failures, its numbers, how to repeat it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import groupby

from harness.dashboard import shapes
from harness.dashboard.began import distinct
from harness.dashboard.changes import Change
from harness.dashboard.page_maker import Build
from harness.dashboard.pages.flaky_page import Flaky, listed
from harness.dashboard.rows import Latest, Moved, Number, Point, StackLine, cost
from harness.dashboard.site_facts import Facts
from harness.dashboard.units import urgency
from harness.model.issues import ISSUE
from harness.model.scriptable import becomes_script
from harness.render.page_names import case_page


@dataclass(frozen=True)
class Series:
    """A case on one line over the nights."""

    line: StackLine
    last: Point
    since: Point  # the first run of the outcome that it has now
    strip: Sequence[shapes.Block]
    durations: shapes.Plot | None
    counts: Mapping[str, int]


@dataclass(frozen=True)
class NumberPlots:
    """A number that the harness recorded, on the lines where it is one."""

    property: str
    steady: Sequence[tuple[str, Sequence[StackLine]]]  # values that never moved, and where
    plots: Sequence[tuple[StackLine, shapes.Plot]]


def publish(build: Build) -> list[Flaky]:
    """Every page; in passing, since every point is read here, the lines that are flaky."""
    facts = build.facts
    flaky: list[Flaky] = []
    latest: dict[str, list[Latest]] = {}
    for row in facts.latest:
        latest.setdefault(row.name, []).append(row)
    verdicts: dict[str, list[tuple[str, StackLine]]] = {}
    tonight: dict[tuple[str, StackLine], Change] = {}
    for change in build.changes:
        verdicts.setdefault(change.name, []).append((change.verdict, change.line))
        if change.verdict == "flaky":
            tonight[change.name, change.line] = change
    for name, points in facts.points():
        now = latest.get(name, [])
        lines = _by_line(facts, points)
        found = (listed(facts, line, tonight.get((name, place(line[0])))) for line in lines)
        flaky += [each for each in found if each]
        if not build.has_page(name):
            continue
        build.page(
            "case.html",
            case_page(name),
            name=name,
            area=next((row.area for row in now), ""),
            verdicts=verdicts.get(name, []),
            upstream=_issues(now),
            nights=facts.nights,
            series=[_series(facts, members) for members in lines],
            skips=skips(now),
            failures=distinct(facts, facts.failures.get(name, [])),
            numbers=recorded(facts, facts.numbers.get(name, []), facts.moved.get(name, [])),
            commands=commands(name, now, facts.stacks),
        )
    return flaky


def skips(rows: Sequence[Latest]) -> list[tuple[str, list[StackLine]]]:
    """Why the case is not measured now, and on which lines."""
    found: dict[str, list[StackLine]] = {}
    for row in rows:
        if row.outcome == "skipped":
            found.setdefault(row.message, []).append(row.line)
    return list(found.items())


def place(row: Point) -> StackLine:
    """Where it ran."""
    return StackLine.of(row)


def recorded(facts: Facts, numbers: Sequence[Number], moved: Sequence[Moved]) -> list[NumberPlots]:
    """Plots of what moved, the value of what never did."""
    found = []
    values: dict[tuple[str, StackLine], dict[date, float]] = {}
    for m in moved:
        line = StackLine.of(m)
        values.setdefault((m.property, line), {})[m.night] = m.value
    for name, members in groupby(sorted(numbers, key=lambda n: n.property), lambda n: n.property):
        steady: dict[str, list[StackLine]] = {}
        plots = []
        for n in members:
            line = StackLine.of(n)
            plot = shapes.plot(facts.nights, values.get((name, line), {}))
            if plot:
                plots.append((line, plot))
            else:
                steady.setdefault(f"{n.last:g}", []).append(line)
        found.append(NumberPlots(name, list(steady.items()), plots))
    return found


def commands(name: str, rows: Sequence[Latest], stacks: Sequence[str]) -> list[tuple[str, str]]:
    """What repeats the case where it is worst; a case of another tool has only its name."""
    if "::" not in name:
        return []
    quoted = shlex.quote(name)
    row = min(
        rows, key=lambda r: (urgency(r.outcome), -stacks.index(r.stack), cost(r.lane)), default=None
    )
    found = [("here", f"uv run pytest {quoted}")]
    if row and row.lane:
        place = f" --lane {shlex.quote(row.lane)} --topology {shlex.quote(row.topology)}"
        found = [("on this machine's stack", f"uv run pytest {quoted}{place}")]
        matrix = (
            f"uv run xla-harness matrix --stacks {shlex.quote(row.stack)} "
            f"--lanes {shlex.quote(row.lane)} -- {quoted}"
        )
        found.append((f"on stack {row.stack}", matrix))
    if name.startswith("suites/") and becomes_script(name):
        found.append(("as one script, without pytest", f"uv run xla-harness repro {quoted}"))
    return found


def _by_line(facts: Facts, points: Sequence[Point]) -> list[list[Point]]:
    """The points of each line, the newest stack first."""
    by_line = [list(each) for _, each in groupby(points, lambda p: p[1:4])]
    order = {stack: -at for at, stack in enumerate(facts.stacks)}
    return sorted(by_line, key=lambda ps: (order[ps[0].stack], cost(ps[0].lane), ps[0].topology))


def _series(facts: Facts, points: Sequence[Point]) -> Series:
    last = points[-1]
    since = last
    counts: dict[str, int] = {}
    for point in reversed(points):
        if point.outcome != last.outcome:
            break
        since = point
    for point in points:
        counts[point.outcome] = counts.get(point.outcome, 0) + 1
    ran = {p.night: p.duration for p in points if p.outcome != "skipped"}
    return Series(
        line=place(last),
        last=last,
        since=since,
        strip=shapes.strip(facts.nights, {p.night: p.outcome for p in points}),
        durations=shapes.plot(facts.nights, ran),
        counts=counts,
    )


def _issues(rows: Sequence[Latest]) -> list[str]:
    found = dict.fromkeys(issue for row in rows for issue in row.upstream or ())
    declared = [row.expectation for row in rows if row.expectation]
    return list(found | dict.fromkeys(e for e in declared if ISSUE.fullmatch(e)))
