"""Page of failure causes, each once, over all cases and stacks that it breaks today."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from harness.dashboard.began import Began, began
from harness.dashboard.page_maker import Build
from harness.dashboard.rows import BROKEN, Latest, StackLine
from harness.dashboard.site_facts import Facts
from harness.diagnosis.cause import by_cause
from harness.render.page_names import ordered, slug

_CASES = 200  # listed of one cause


@dataclass(frozen=True)
class FailureCause:
    """Failures of one cause, as of the last night of each line."""

    rows: Sequence[Latest]
    began: Began  # where it was seen first, in the whole history

    @property
    def layer(self) -> str:
        """Layer of the failures."""
        return self.rows[0].layer

    @property
    def signature(self) -> str:
        """Signature of the failures."""
        return self.rows[0].signature

    @property
    def anchor(self) -> str:
        """Anchor of the cause on its page."""
        return f"cause-{slug(self.signature, self.layer)}"

    @property
    def message(self) -> str:
        """Message of one of the failures, or the signature if none has a message."""
        return next((row.message for row in self.rows if row.message), self.signature)

    @property
    def expected(self) -> bool:
        """Return whether an expectation declares every failure."""
        return all(row.outcome == "expected failure" for row in self.rows)

    @property
    def stacks(self) -> list[str]:
        """Stacks on which the cases fail."""
        return ordered([row.stack for row in self.rows])

    @property
    def areas(self) -> list[str]:
        """Areas of the broken cases."""
        return ordered([row.area for row in self.rows])

    @property
    def issues(self) -> list[str]:
        """Issues or findings that expectations name, else the issues that all cases watch."""
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
        """Number of cases that the cause breaks."""
        return len({row.name for row in self.rows})


def publish(build: Build) -> list[FailureCause]:
    """Write the page, undeclared causes first, and return what it lists."""
    listed_causes = causes(build.facts)
    build.page(
        "failures.html",
        "failures.html",
        causes=listed_causes,
        stacks=build.facts.stacks,
        areas=ordered([area for cause in listed_causes for area in cause.areas]),
    )
    return listed_causes


def causes(facts: Facts) -> list[FailureCause]:
    """Return the causes as of the last night, undeclared ones first, then the largest."""
    starts = {
        (failure.name, StackLine.of(failure), failure.cause): failure.start
        for failures in facts.failures.values()
        for failure in failures
    }
    listed_causes = []
    for rows in by_cause(row for row in facts.latest if row.outcome in BROKEN):
        first = min((starts[row.name, row.line, row.cause] for row in rows), key=attrgetter("run"))
        since = began(facts, first, facts.before_failures)
        listed_causes.append(FailureCause(rows, since))
    return sorted(listed_causes, key=lambda c: (c.expected, -len(c.rows), c.signature, c.layer))
