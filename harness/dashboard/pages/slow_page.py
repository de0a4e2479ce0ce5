"""Page of durations: where the time goes, and what became slower."""

from __future__ import annotations

from collections import Counter

from harness.dashboard.changes import clusters, of
from harness.dashboard.page_maker import Build
from harness.dashboard.rows import Latest

_LISTED = 200


def publish(build: Build) -> None:
    """Write the page: what became slower, areas by their seconds, the slowest cases."""
    facts = build.facts
    ran = [row for row in facts.latest if row.outcome != "skipped"]
    seconds: Counter[tuple[str, str, str]] = Counter()
    for row in ran:
        seconds[row.area, row.stack, row.lane] += row.duration or 0  # type: ignore[assignment]
    build.page(
        "slow.html",
        "slow.html",
        slower=clusters(of(build.changes, "slower")),
        areas=sorted(seconds.items(), key=lambda each: -each[1]),
        most=max(seconds.values(), default=0),
        total=sum(seconds.values()),
        rows=sorted(ran, key=_slowness)[:_LISTED],
        size=len(ran),
        stacks=facts.stacks,
        lanes=facts.lanes,
    )


def _slowness(row: Latest) -> tuple[float, str]:
    return -(row.duration or 0), row.name
