"""Files for other programs: the night as JSON, regressions as an Atom feed, a badge."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from harness.dashboard.changes import NEWS, Change
from harness.dashboard.page_maker import Build, as_json


@dataclass(frozen=True)
class Badge:
    """Text of the badge, and its color by the name that shields.io uses."""

    message: str
    color: str


def publish(build: Build) -> None:
    """Write the three files."""
    facts = build.facts
    red = news(build)
    counted = badge(build)
    build.site.write("data/night.json", as_json({"format": 1, **_night(build)}))
    build.site.write("badge.svg", build.render.page("badge.svg", "badge.svg", badge=counted))
    shield = {
        "schemaVersion": 1,
        "label": "xla regressions",
        "message": counted.message,
        "color": counted.color,
    }
    build.site.write("badge.json", as_json(shield))
    entries = [(identity(change), change) for change in red]
    updated = facts.runs[0].time if facts.runs else None
    text = build.render.page(
        "regressions.atom.xml",
        "regressions.atom",
        entries=entries,
        updated=updated,
        address=build.address,
    )
    build.site.write("regressions.atom", text)


def news(build: Build) -> list[Change]:
    """Return the changes that somebody should look at now."""
    return [change for change in build.changes if change.verdict in NEWS]


def badge(build: Build) -> Badge:
    """Red for a regression, a new failure or a missing case, grey before the first run."""
    if not build.facts.runs:
        return Badge("no runs", "lightgrey")
    red = len({change.case for change in news(build)})
    return Badge(f"{red} tonight", "red") if red else Badge("none tonight", "brightgreen")


def identity(change: Change) -> str:
    """Return an id that the same news has on every night, so that a reader shows it once."""
    parts = (change.verdict, change.case, *change.line, change.since)
    return f"urn:sha256:{sha256(chr(0).join(parts).encode('utf-8', 'surrogatepass')).hexdigest()}"


def _night(build: Build) -> dict[str, object]:
    return {
        "night": build.facts.night,
        "stacks": build.facts.stacks,
        "runs": [
            {
                "run": run.run,
                "time": run.time,
                "stack": run.stack,
                "commit": run.revision,
                "machine": run.machine,
                "versions": dict(run.versions),
                "cases": run.size,
            }
            for run in build.facts.runs
            if run.night == build.facts.night
        ],
        "changes": [
            {
                "verdict": change.verdict,
                "case": change.case,
                "area": change.area,
                "stack": change.stack,
                "lane": change.lane,
                "topology": change.topology,
                "run": change.run,
                "outcome": change.outcome,
                "layer": change.layer,
                "signature": change.signature,
                "text": change.message,
                "since": change.since,
                "changed": list(change.began.changed) if change.began else [],
                "page": build.case_page(change.case),
            }
            for change in build.changes
        ],
    }
