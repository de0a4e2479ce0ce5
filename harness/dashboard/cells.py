"""Behind each cell of the heat map: its cases, what is wrong first."""

from __future__ import annotations

from itertools import groupby

from harness.dashboard.build import Build
from harness.dashboard.names import cell_page
from harness.dashboard.rows import Latest

_ORDER = (
    "crashed",
    "hung",
    "failed",
    "conflict",
    "unexpected pass",
    "expected failure",
    "skipped",
    "passed",
)


def publish(build: Build) -> None:
    """A page for each area on each stack and lane."""

    def place(row: Latest) -> tuple[str, str, str]:
        return row.area, row.stack, row.lane

    for (area, stack, lane), members in groupby(sorted(build.facts.latest, key=place), place):
        rows = sorted(members, key=lambda row: (urgency(row.outcome), row.name, row.topology))
        build.page(
            "cell.html",
            cell_page(area, stack, lane),
            area=area,
            stack=stack,
            lane=lane,
            rows=rows,
            outcomes=sorted({row.outcome for row in rows}, key=urgency),
            topologies=sorted({row.topology for row in rows}),
        )


def urgency(outcome: str) -> int:
    """Sorts outcomes by how much they want to be read."""
    return _ORDER.index(outcome) if outcome in _ORDER else len(_ORDER)
