"""One entry, and how an outcome is judged in its light."""

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
    """One entry of a file under ``fixtures/expectations/``."""

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
        """Its globs, compiled."""
        return [glob_pattern(case) for case in self.cases]

    def matches(self, case_id: str) -> bool:
        """Whether one of its globs is the case's id."""
        return any(pattern.fullmatch(case_id) for pattern in self.patterns)

    def describes(self, outcome: Outcome) -> bool:
        """Whether the outcome is the declared failure."""
        return outcome.kind == self.outcome and describes(self.signature, outcome.message)


def place(path: Path, number: int, line: int | None) -> str:
    """``a.toml:12``; ``a.toml#3``, its number, for an entry whose line is not known."""
    return f"{path}#{number}" if line is None else f"{path}:{line}"


def glob_pattern(glob: str) -> re.Pattern[str]:
    """``*`` and ``?`` as in a shell; brackets stand for themselves, as case ids have many."""
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
