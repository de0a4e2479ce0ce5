"""The front page: what changed, the heat map, each cause with since when, what still fails."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from harness.dashboard import shapes
from harness.dashboard.changes import ALWAYS, HEADLINES, ChangeGroup, clusters, of
from harness.dashboard.page_maker import Build
from harness.dashboard.pages.runs_page import Summary, summaries
from harness.dashboard.rows import BAD, WORKS, Latest, Trend, cost
from harness.dashboard.site_facts import Facts
from harness.render.page_names import cell_page, natural

_TREND = 14  # nights in a cell's small line
_SHOWN = 8  # clusters of a verdict on the first screen; the rest is one click away
_LEVELS = ((1.0, "h5"), (0.95, "h4"), (0.8, "h3"), (0.5, "h2"), (0.000001, "h1"), (0.0, "h0"))


@dataclass(frozen=True)
class Headline:
    """Headline for one verdict of the night: the number of cases, and the changes behind it."""

    verdict: str
    meaning: str
    cases: int
    clusters: Sequence[ChangeGroup]

    @property
    def label(self) -> str:
        """The verdict behind its number."""
        return (
            f"{self.verdict}s"
            if self.verdict.endswith("failure") and self.cases != 1
            else self.verdict
        )

    @property
    def states(self) -> list[tuple[str, int]]:
        """Numbers of cases that crashed and that hung; a case that did both counts in both."""
        changes = [change for group in self.clusters for change in group.members]
        cases = {
            state: {change.case for change in changes if change.outcome == state}
            for state in ("crashed", "hung")
        }
        return [(state, len(names)) for state, names in cases.items() if names]

    @property
    def shown(self) -> Sequence[ChangeGroup]:
        """Groups of changes on the first screen."""
        return self.clusters[:_SHOWN]

    @property
    def more(self) -> int:
        """Number of groups that the first screen leaves out."""
        return max(len(self.clusters) - _SHOWN, 0)


@dataclass(frozen=True)
class HeatCell:
    """An area on a stack and lane."""

    page: str
    works: int
    measured: int
    unexpected: int
    step: float | None  # percentage points since the night before; None without one
    spark: str

    @property
    def rate(self) -> float:
        """Share of the measured cases that work, from 0 to 1."""
        return self.works / self.measured if self.measured else 0.0

    @property
    def level(self) -> str:
        """Class of the cell in the style sheet."""
        if not self.measured:
            return "hx"
        return next(name for least, name in _LEVELS if self.rate >= least)

    @property
    def percent(self) -> str:
        """Percentage of measured cases that work; ``100 %`` only when every case works."""
        if not self.measured:
            return "skipped"
        if self.works == self.measured:
            return "100 %"
        return f"{min(self.rate * 100, 99.9):.1f} %"


def publish(build: Build) -> None:
    """Write the first page."""
    facts = build.facts
    columns = _columns(facts)
    build.page(
        "front.html",
        "index.html",
        night=facts.night,
        headlines=headlines(build),
        columns=columns,
        groups=[(stack, len(list(each))) for stack, each in groupby(columns, lambda c: c[0])],
        heat=heat(facts, columns),
        tonight=_tonight(facts),
        totals=_totals(facts),
        nights=len(facts.nights),
        set_aside=build.set_aside,
    )


def headlines(build: Build) -> list[Headline]:
    """Return the verdicts that every morning is about, and the others that have cases."""
    headings = []
    for verdict, meaning in HEADLINES:
        changes = of(build.changes, verdict)
        if changes or verdict in ALWAYS:
            cases = len({change.case for change in changes})
            headings.append(Headline(verdict, meaning, cases, clusters(changes)))
    return headings


def heat(
    facts: Facts, columns: Sequence[tuple[str, str]]
) -> list[tuple[str, list[HeatCell | None]]]:
    """Return the areas, each with a cell for every column, or None where none of its cases ran."""
    rows: dict[tuple[str, str, str], list[Latest]] = defaultdict(list)
    for row in facts.latest:
        rows[row.area, row.stack, row.lane].append(row)
    return [
        (
            area,
            [
                cell(area, *column, rows[area, *column], facts.trends[area, *column])
                if (area, *column) in rows
                else None
                for column in columns
            ],
        )
        for area in sorted({row.area for row in facts.latest}, key=natural)
    ]


def cell(area: str, stack: str, lane: str, rows: Sequence[Latest], trend: Trend) -> HeatCell:
    """Return the cell with the latest outcomes and the trend up to them."""
    rates = [works / measured for _, works, measured in trend.nights[-_TREND:] if measured]
    step = (rates[-1] - rates[-2]) * 100 if len(rates) > 1 else None
    return HeatCell(
        page=cell_page(area, stack, lane),
        works=sum(row.outcome in WORKS for row in rows),
        measured=sum(row.outcome != "skipped" for row in rows),
        unexpected=sum(row.outcome in BAD for row in rows),
        step=step,
        spark=shapes.spark(rates) if len(set(rates)) > 1 else "",
    )


def _columns(facts: Facts) -> list[tuple[str, str]]:
    """Stack and lane of each column; the newest stack first, since that is what one asks about."""
    pairs = {(row.stack, row.lane) for row in facts.latest}
    order = {stack: -at for at, stack in enumerate(facts.stacks)}
    return sorted(pairs, key=lambda pair: (order[pair[0]], cost(pair[1])))


def _tonight(facts: Facts) -> list[Summary]:
    return [each for each in summaries(facts) if each.run.night == facts.night]


def _totals(facts: Facts) -> dict[str, int]:
    return {
        "cases": len({row.name for row in facts.latest}),
        "outcomes": len(facts.latest),
        "stacks": len(facts.stacks),
        "works": sum(row.outcome in WORKS and row.outcome not in BAD for row in facts.latest),
        "expected": sum(row.outcome == "expected failure" for row in facts.latest),
        "unexpected": sum(row.outcome in BAD for row in facts.latest),
        "skipped": sum(row.outcome == "skipped" for row in facts.latest),
    }
