"""A case's failures, each once: when it began, and what changed with the run in which it did."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from harness.dashboard.rows import Failure, ShownRun, StackLine
from harness.dashboard.site_facts import Facts


@dataclass(frozen=True)
class Distinct:
    """A failure once, wherever it was seen."""

    failures: Sequence[Failure]
    changed: Sequence[str]  # what else changed with the run in which it began
    began: str

    @property
    def first(self) -> Failure:
        """Where it was seen first."""
        return self.failures[0]

    @property
    def lines(self) -> Sequence[StackLine]:
        """Where it was seen."""
        return [StackLine.of(f) for f in self.failures]

    @property
    def times(self) -> int:
        """In how many runs."""
        return sum(failure.times for failure in self.failures)


def distinct(facts: Facts, failures: Iterable[Failure]) -> list[Distinct]:
    """Each failure once, in the order in which they began, with what changed then."""
    together: dict[str, list[Failure]] = {}
    for failure in failures:
        together.setdefault(failure.signature, []).append(failure)
    return [Distinct(members, *_began(facts, members[0])) for members in together.values()]


def steps(before: ShownRun, after: ShownRun) -> list[str]:
    """Which components changed from a run to another one, and from what to what."""
    names = dict.fromkeys([*before.versions, *after.versions])
    found = [
        f"{name} {before.versions.get(name, 'unknown')} to {after.versions.get(name, 'unknown')}"
        for name in names
        if before.versions.get(name) != after.versions.get(name)
    ]
    if before.revision != after.revision:
        found.append(f"commit {before.revision or 'unknown'} to {after.revision or 'unknown'}")
    if before.machine != after.machine:
        found.append(f"machine {before.machine or 'unknown'} to {after.machine or 'unknown'}")
    return found


def _began(facts: Facts, failure: Failure) -> tuple[list[str], str]:
    """What changed with the run in which a failure began, and a sentence about that run."""
    line = StackLine.of(failure)
    runs = facts.lines.get(line, [])
    after = facts.run.get(failure.first_run)
    if after is None:
        return [], "It began before the nights shown here."
    at = bisect_left(runs, after.run, key=attrgetter("run"))
    if at == 0:
        before = _stack_before(facts, line)
        if before is None:
            return [], "The first run on record already had it."
        return steps(before, after), (
            f"The first run on stack {line.stack} already had it. Against {before.stack}:"
        )
    return steps(runs[at - 1], after), "Against the run before it:"


def _stack_before(facts: Facts, line: StackLine) -> ShownRun | None:
    """The last run of the stack before this one, on the same lane and topology."""
    older = facts.stacks[: facts.stacks.index(line.stack)] if line.stack in facts.stacks else []
    for stack in reversed(older):
        runs = facts.lines.get(line._replace(stack=stack))
        if runs:
            return runs[-1]
    return None
