"""All cases on all stacks: the page that searches end on."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from harness.dashboard.build import Build
from harness.dashboard.cells import urgency
from harness.dashboard.render import as_json
from harness.dashboard.rows import cost


@dataclass(frozen=True)
class Row:
    """A case on one lane and topology, and what it said on each stack, "" where it did not run."""

    name: str
    area: str
    lane: str
    topology: str
    outcomes: tuple[str, ...]

    @property
    def has(self) -> str:
        """Its outcomes for the filter."""
        return "|".join(dict.fromkeys(filter(None, self.outcomes)))


def publish(build: Build) -> None:
    """The list, as a page and as data."""
    facts = build.facts
    rows = []
    by_place = sorted(facts.latest, key=lambda r: (r.name, cost(r.lane), r.topology))
    for (name, lane, topology), members in groupby(
        by_place, lambda r: (r.name, r.lane, r.topology)
    ):
        answers = {row.stack: row for row in members}
        area = next(iter(answers.values())).area
        outcomes = tuple(
            answers[stack].outcome if stack in answers else "" for stack in facts.stacks
        )
        rows.append(Row(name, area, lane, topology, outcomes))
    build.page(
        "cases.html",
        "cases.html",
        rows=rows,
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
