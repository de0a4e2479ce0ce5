"""How many planted faults each area's cases see, over time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date

from harness.dashboard import shapes
from harness.dashboard.page_maker import Build
from harness.dashboard.rows import Number, StackLine
from harness.dashboard.site_facts import Facts
from harness.sensitivity.score import PERCENT, SEEN, UNSEEN


@dataclass(frozen=True)
class Sensitivity:
    """An area on a line: its last score, and all of them if it moved."""

    name: str  # of the case that stands for the area in a report
    area: str
    line: StackLine
    percent: float
    seen: int
    unseen: int
    trend: shapes.Plot | None


def publish(build: Build) -> None:
    """The page."""
    rows = sorted(_rows(build.facts), key=lambda row: (row.percent, row.area))
    build.page("sensitivity.html", "sensitivity.html", rows=rows)


def _rows(facts: Facts) -> Iterator[Sensitivity]:
    for name, numbers in facts.numbers.items():
        values: dict[StackLine, dict[str, Number]] = {}
        for number in numbers:
            values.setdefault(StackLine.of(number), {})[number.property] = number
        for line, found in values.items():
            if {PERCENT, SEEN, UNSEEN} <= found.keys():
                yield Sensitivity(
                    name,
                    facts.areas.get(name, ""),
                    line,
                    found[PERCENT].last,
                    int(found[SEEN].last),
                    int(found[UNSEEN].last),
                    shapes.plot(facts.nights, _moved(facts, name, line)),
                )


def _moved(facts: Facts, name: str, line: StackLine) -> dict[date, float]:
    return {
        value.night: value.value
        for value in facts.moved.get(name, [])
        if value.property == PERCENT and StackLine.of(value) == line
    }
