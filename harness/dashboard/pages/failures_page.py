"""Each cause of failure once, over all cases and stacks that it breaks today."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from harness.dashboard.page_maker import Build
from harness.dashboard.page_names import ordered
from harness.dashboard.rows import BROKEN, Latest, StackLine
from harness.dashboard.site_facts import Facts

_CASES = 200  # listed of one cause


@dataclass(frozen=True)
class FailureCause:
    """Failures with one signature, as of the last night of each line."""

    signature: str
    rows: Sequence[Latest]
    began: datetime

    @property
    def message(self) -> str:
        """What one of them says."""
        return next((row.message for row in self.rows if row.message), self.signature)

    @property
    def expected(self) -> bool:
        """Whether every one of them is declared."""
        return all(row.outcome == "expected failure" for row in self.rows)

    @property
    def stacks(self) -> list[str]:
        """Where."""
        return ordered([row.stack for row in self.rows])

    @property
    def areas(self) -> list[str]:
        """Of what."""
        return ordered([row.area for row in self.rows])

    @property
    def layers(self) -> list[str]:
        """At which layer of the stack."""
        return ordered([row.layer for row in self.rows if row.layer])

    @property
    def issues(self) -> list[str]:
        """What the expectations of its cases name, else the issues that all its cases watch."""
        declared = [row.expectation for row in self.rows if row.expectation]
        if declared:
            return ordered(declared)
        watched = [set(row.upstream or ()) for row in self.rows]
        return ordered(list(set.intersection(*watched)))

    @property
    def cases(self) -> list[str]:
        """The first of its cases."""
        return list(dict.fromkeys(row.name for row in self.rows))[:_CASES]

    @property
    def size(self) -> int:
        """How many cases it breaks."""
        return len({row.name for row in self.rows})


def publish(build: Build) -> None:
    """The page; what nobody declared comes first."""
    found = causes(build.facts)
    build.page(
        "failures.html",
        "failures.html",
        causes=found,
        stacks=build.facts.stacks,
        areas=ordered([area for cause in found for area in cause.areas]),
    )


def causes(facts: Facts) -> list[FailureCause]:
    """Those of the last night, undeclared ones first, then the largest."""
    began: dict[tuple[str, StackLine, str], datetime] = {
        (f.name, StackLine.of(f), f.signature): f.first
        for failures in facts.failures.values()
        for f in failures
    }
    together: dict[str, list[Latest]] = {}
    for row in facts.latest:
        if row.outcome in BROKEN:
            together.setdefault(row.signature or row.name, []).append(row)
    found = [
        FailureCause(
            signature,
            rows,
            min(began.get((row.name, row.line, row.signature), row.time) for row in rows),
        )
        for signature, rows in together.items()
    ]
    return sorted(found, key=lambda c: (c.expected, -len(c.rows), c.signature))
