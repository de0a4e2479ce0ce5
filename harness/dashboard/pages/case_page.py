"""A page for each case: over time and stacks, its failures, its numbers, how to repeat it."""

from __future__ import annotations

from harness.dashboard.case_facts import CaseReader, by_line
from harness.dashboard.page_maker import Build
from harness.dashboard.pages.flaky_page import Flaky, listed
from harness.dashboard.pages.shared_page import SharedPages
from harness.render.page_names import case_page


def publish(build: Build) -> list[Flaky]:
    """Publish every case; in passing, since every point is read here, list the flaky lines."""
    facts = build.facts
    flaky: list[Flaky] = []
    cases = CaseReader(build)
    shared = SharedPages(build)
    for name, points in facts.points():
        lines = by_line(facts, points)
        tonight = {c.line: c for c in cases.changes.get(name, []) if c.verdict == "flaky"}
        rows = (listed(facts, name, *each, tonight.get(each[0])) for each in lines.items())
        flaky += [row for row in rows if row]
        case = cases.read(name, lines)
        if name in build.own_pages:
            build.page("case.html", case_page(name), case=case)
        shared.add(name, case)
    shared.publish()
    return flaky
