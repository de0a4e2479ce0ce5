"""Page of skipped cases, by reason, with the cheapest lane that would run them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.dashboard.page_maker import Build
from harness.dashboard.rows import Latest, cost
from harness.dashboard.site_facts import Facts
from harness.diagnosis.signature import first_line
from harness.render.page_names import ordered

_CASES = 100
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Skip:
    """Cases skipped for one reason, and where the same tests were measured."""

    reason: str
    rows: Sequence[Latest]
    remedies: Mapping[str, int]  # what runs them, and how many of them; "" is nothing so far

    @property
    def cases(self) -> list[str]:
        """The first of them."""
        return list(dict.fromkeys(row.name for row in self.rows))[:_CASES]

    @property
    def size(self) -> int:
        """Number of skipped cases."""
        return len({row.name for row in self.rows})

    @property
    def places(self) -> list[str]:
        """The stacks and lanes that skip them."""
        return ordered([f"{row.stack} {row.lane}".strip() for row in self.rows])


def publish(build: Build) -> None:
    """Write the page."""
    facts = build.facts
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for row in facts.latest:
        state = "skipped" if row.outcome == "skipped" else "measured"
        counts[row.area, row.lane][state] += 1
    build.page(
        "coverage.html",
        "coverage.html",
        skips=skips(facts),
        areas=ordered([row.area for row in facts.latest]),
        lanes=facts.lanes,
        counts=counts,
        alone=_alone(facts),
    )


def skips(facts: Facts) -> list[Skip]:
    """Group the skipped cases by reason, the reason with the most cases first."""
    ran: dict[str, set[tuple[str, str]]] = defaultdict(set)  # a test: where it is measured
    together: dict[str, dict[str, list[Latest]]] = defaultdict(lambda: defaultdict(list))
    for row in facts.latest:
        if row.outcome == "skipped":
            together[reason_of(row)][row.name].append(row)
        else:
            ran[test_of(row)].add((row.lane, row.stack))
    reasons = []
    for reason, cases in together.items():
        remedies: Counter[str] = Counter()
        for rows in cases.values():
            remedies[remedy(rows, ran[test_of(rows[0])], facts.stacks)] += 1
        every = [row for rows in cases.values() for row in rows]
        reasons.append(Skip(reason, every, dict(sorted(remedies.items()))))
    return sorted(reasons, key=lambda skip: (-skip.size, skip.reason))


def remedy(rows: Sequence[Latest], ran: set[tuple[str, str]], stacks: Sequence[str]) -> str:
    """Return the cheapest lane that runs a skipped case on a stack that skips it, or the newest."""
    here = {row.stack for row in rows}
    same = [lane for lane, stack in ran if stack in here]
    if same:
        return min(same, key=cost)
    if not ran:
        return ""
    lane, stack = min(ran, key=lambda each: (cost(each[0]), -stacks.index(each[1])))
    return f"{lane}, but on stack {stack}" if lane else f"stack {stack}"


def test_of(row: Latest) -> str:
    """The test without the lane and topology in its id: the same one elsewhere has the same."""
    place = f"[{row.lane}-{row.topology}"
    return row.name.replace(f"{place}-", "[", 1).replace(f"{place}]", "", 1)


def reason_of(row: Latest) -> str:
    """Return the reason for a skip; numbers, which only tell its cases apart, become ``N``."""
    first = first_line(row.message)
    return _NUMBER.sub("N", first) if first else "no reason given"


def _alone(facts: Facts) -> list[tuple[str, str, int]]:
    """Count, per area and lane, the tests that ran on this lane and never on a cheaper one."""
    lanes: dict[tuple[str, str], set[str]] = defaultdict(set)
    for row in facts.latest:
        if row.outcome != "skipped":
            lanes[row.area, test_of(row)].add(row.lane)
    sizes: Counter[tuple[str, str]] = Counter()
    for (area, _), ran in lanes.items():
        sizes[area, min(ran, key=cost)] += 1
    return [(area, lane, size) for (area, lane), size in sorted(sizes.items())]
