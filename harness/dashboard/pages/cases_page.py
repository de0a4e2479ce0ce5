"""Lists of cases: all of them on all stacks, and those behind each cell of the heat map."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from harness.dashboard.page_maker import Build, as_json
from harness.dashboard.rows import Latest, cost
from harness.dashboard.units import urgency
from harness.render.page_names import cell_page

_LISTED = 5_000  # rows of a page; those of one that has more are in the data


@dataclass(frozen=True)
class CaseRow:
    """A case on one lane and topology, and what it said on each stack, "" where it did not run."""

    name: str
    area: str
    lane: str
    topology: str
    outcomes: tuple[str, ...]

    @property
    def has(self) -> str:
        """Distinct outcomes of the case, as text for the filter."""
        return "|".join(dict.fromkeys(filter(None, self.outcomes)))


def publish(build: Build) -> None:
    """Write the list of all cases, and a page for each cell."""
    _every_case(build)
    _each_cell(build)


def _every_case(build: Build) -> None:
    """Write the list of all cases, as a page and as data."""
    facts = build.facts
    rows = []
    by_place = sorted(facts.latest, key=lambda r: (r.name, cost(r.lane), r.topology))
    for (name, lane, topology), members in groupby(
        by_place, lambda r: (r.name, r.lane, r.topology)
    ):
        by_stack = {row.stack: row for row in members}
        area = next(iter(by_stack.values())).area
        outcomes = tuple(
            by_stack[stack].outcome if stack in by_stack else "" for stack in facts.stacks
        )
        rows.append(CaseRow(name, area, lane, topology, outcomes))
    shown = [row for row in rows if build.is_listed(row.name)]
    build.page(
        "cases.html",
        "cases.html",
        rows=shown[:_LISTED],
        size=len(rows),
        quiet=len({row.name for row in rows}) - len({row.name for row in shown}),
        more=max(len(shown) - _LISTED, 0),
        stacks=facts.stacks,
        areas=sorted({row.area for row in rows}),
        lanes=facts.lanes,
        outcomes=sorted({o for row in rows for o in row.outcomes if o}, key=urgency),
    )
    data = [
        {
            "case": row.name,
            "area": row.area,
            "lane": row.lane,
            "topology": row.topology,
            "outcomes": {s: o for s, o in zip(facts.stacks, row.outcomes, strict=True) if o},
        }
        for row in rows
    ]
    build.site.write("data/cases.json", as_json({"format": 1, "cases": data}))


def _each_cell(build: Build) -> None:
    """Write a page for each area on each stack and lane."""

    def place(row: Latest) -> tuple[str, str, str]:
        return row.area, row.stack, row.lane

    for (area, stack, lane), members in groupby(sorted(build.facts.latest, key=place), place):
        rows = sorted(members, key=lambda row: (urgency(row.outcome), row.name, row.topology))
        listed = rows[:_LISTED]
        build.page(
            "cell.html",
            cell_page(area, stack, lane),
            area=area,
            stack=stack,
            lane=lane,
            rows=listed,
            more=len(rows) - len(listed),
            outcomes=sorted({row.outcome for row in rows}, key=urgency),
            topologies=sorted({row.topology for row in rows}),
        )
