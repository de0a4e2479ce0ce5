"""Cases whose outcomes differ on unchanged versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from harness.dashboard import shapes
from harness.dashboard.changes import Change, of
from harness.dashboard.page_maker import Build
from harness.dashboard.rows import WORKS, Point, StackLine
from harness.dashboard.site_facts import Facts

_LISTED = 500


@dataclass(frozen=True)
class Flaky:
    """A case that was flaky on one line on one of the nights shown."""

    name: str
    line: StackLine
    turns: int  # from working to broken or back, between runs of the same versions
    failed: int
    ran: int
    strip: shapes.Strip
    tonight: Change | None


def turns(facts: Facts, points: Sequence[Point]) -> int:
    """Count the turns between working and broken in successive runs of the same versions."""
    ran = [point for point in points if point.outcome != "skipped"]
    return sum(
        (a.outcome in WORKS) != (b.outcome in WORKS) and _same(facts, a.run, b.run)
        for a, b in pairwise(ran)
    )


def _same(facts: Facts, run: str, other: str) -> bool:
    return facts.run[run].versions == facts.run[other].versions


def listed(
    facts: Facts, name: str, line: StackLine, points: Sequence[Point], tonight: Change | None
) -> Flaky | None:
    """Return the line for the list, if the case is flaky on it."""
    if not tonight and (name, *line) not in facts.flaky:
        return None
    ran = [point for point in points if point.outcome != "skipped"]
    failed = sum(point.outcome not in WORKS for point in ran)
    outcomes = {p.night: p.outcome for p in points}
    return Flaky(
        name,
        line,
        turns(facts, points),
        failed,
        len(ran),
        shapes.strip(facts.nights, outcomes, f"{failed} of {len(ran)} failed"),
        tonight,
    )


def publish(build: Build, flaky: Sequence[Flaky]) -> None:
    """Write the page; cases that turn most come first."""
    rows = sorted(flaky, key=lambda f: (f.tonight is None, -f.turns, f.name, f.line))
    build.page(
        "flaky.html",
        "flaky.html",
        rows=rows[:_LISTED],
        more=max(len(rows) - _LISTED, 0),
        stacks=build.facts.stacks,
        nights=build.facts.nights,
        tonight=len(of(build.changes, "flaky")),
    )
