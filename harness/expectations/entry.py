"""Entry of an expectation file, and how an outcome is judged by it."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from harness.expectations.condition import ALWAYS, Condition
from harness.expectations.failure_pattern import describes
from harness.model.outcome import Kind, Outcome


@dataclass(frozen=True)
class Expectation:
    """Entry of a file under ``fixtures/expectations/``."""

    path: Path
    number: int  # in its file, from 1
    cases: tuple[str, ...]
    cause: str  # an upstream issue, or ``finding NAME``: a section of docs/findings.md
    reason: str
    outcome: Kind
    signature: str
    condition: Condition = ALWAYS
    line: int | None = None  # where it begins in its file, from 1

    @property
    def where(self) -> str:
        """File and line, for messages."""
        return place(self.path, self.number, self.line)

    @cached_property
    def patterns(self) -> list[re.Pattern[str]]:
        """Regular expressions for the entry's globs."""
        return [glob_pattern(case) for case in self.cases]

    def matches(self, case_id: str) -> bool:
        """Return whether one of the entry's globs matches the case's id."""
        return any(pattern.fullmatch(case_id) for pattern in self.patterns)

    def describes(self, outcome: Outcome) -> bool:
        """Return whether the outcome is the declared failure."""
        return outcome.kind == self.outcome and describes(self.signature, outcome.message)


def place(path: Path, number: int, line: int | None) -> str:
    """Return ``a.toml:12``, or ``a.toml#3`` with the entry's number if its line is not known."""
    return f"{path}#{number}" if line is None else f"{path}:{line}"


def glob_pattern(glob: str) -> re.Pattern[str]:
    """Compile a glob of ``*`` and ``?``; brackets stand for themselves, as case ids have many."""
    # The standard library's translation never backtracks over a star that has matched.
    return re.compile(fnmatch.translate(glob.replace("[", "[[]")))


def judge(outcome: Outcome, expectation: Expectation | None) -> Outcome:
    """Compare the actual outcome with the expectation and return the outcome; skips stay skips."""
    if outcome.kind == Kind.SKIPPED:
        return outcome
    if outcome.xfail is not None:  # pytest's own marker comes first
        worked = outcome.kind == Kind.PASSED
        return Outcome(Kind.UNEXPECTED_PASS if worked else Kind.EXPECTED_FAILURE, outcome.xfail)
    if expectation is None:
        return outcome
    entry = f"{expectation.where} ({expectation.cause}: {expectation.reason})"
    if outcome.kind == Kind.PASSED:
        where = f" from {expectation.condition}" if expectation.condition else ""
        return Outcome(Kind.UNEXPECTED_PASS, f"passes now: the entry {entry} can go{where}")
    if expectation.describes(outcome):
        return Outcome(Kind.EXPECTED_FAILURE, f"{expectation.cause}: {expectation.reason}")
    return replace(
        outcome,
        note=f"not the failure that {entry} declares: "
        f"{expectation.outcome} with {expectation.signature!r}",
    )
