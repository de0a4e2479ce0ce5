"""Outcomes of cases, and the only definition of what each one means."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Answer(StrEnum):
    """Answer of a run that measured a case. An expected one is broken too, as declared."""

    WORKS = "works"
    BROKEN = "broken"
    EXPECTED = "expected"


class Kind(StrEnum):
    """The outcomes; the values are what reports and files say."""

    PASSED = "passed"
    FAILED = "failed"
    CRASHED = "crashed"
    HUNG = "hung"
    CONFLICT = "conflict"
    SKIPPED = "skipped"
    EXPECTED_FAILURE = "expected failure"
    UNEXPECTED_PASS = "unexpected pass"

    @property
    def answer(self) -> Answer | None:
        """Answer that the outcome gives about the case; None if the case was not measured."""
        return _ANSWERS.get(self)

    @property
    def is_bad(self) -> bool:
        """Return whether the outcome makes the run fail."""
        return self in UNEXPECTED


_ANSWERS = {
    Kind.PASSED: Answer.WORKS,
    Kind.UNEXPECTED_PASS: Answer.WORKS,
    Kind.FAILED: Answer.BROKEN,
    Kind.CRASHED: Answer.BROKEN,
    Kind.HUNG: Answer.BROKEN,
    Kind.CONFLICT: Answer.BROKEN,
    Kind.EXPECTED_FAILURE: Answer.EXPECTED,
}
WORKS = tuple(kind for kind, answer in _ANSWERS.items() if answer is Answer.WORKS)
BROKEN = tuple(kind for kind, answer in _ANSWERS.items() if answer is not Answer.WORKS)
UNEXPECTED = (
    *(kind for kind, answer in _ANSWERS.items() if answer is Answer.BROKEN),
    Kind.UNEXPECTED_PASS,
)
# What one run of a case can come to, and an expectation can declare; a conflict is of several.
DECLARABLE = (Kind.FAILED, Kind.CRASHED, Kind.HUNG)
# The same as SQL that every engine reads. A skipped case has no row: it has no answer.
OUTCOMES_SQL = (
    "SELECT o.outcome, o.answer, o.unexpected FROM (VALUES\n    "  # noqa: S608 - words of ours
    + ",\n    ".join(
        f"('{kind}', '{answer}', {str(kind in UNEXPECTED).upper()})"
        for kind, answer in _ANSWERS.items()
    )
    + "\n) AS o (outcome, answer, unexpected)"
)
# What really happened, whatever was expected.
ACTUAL = (Kind.PASSED, *DECLARABLE, Kind.SKIPPED)


@dataclass(frozen=True)
class Outcome:
    """A case's outcome with the text that an expectation's signature is searched in."""

    kind: Kind
    message: str = ""
    signal: str = ""
    layer: str = ""  # of a failure that says so itself: harness.diagnosis.layers decides the others
    xfail: str | None = None  # the reason of pytest's own marker, which expected a failure
    note: str = ""  # what the expectation says of it

    @property
    def detail(self) -> str:
        """The message and the note."""
        return "\n".join(filter(None, (self.message, self.note)))
