"""What became of a case."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
    def is_bad(self) -> bool:
        """Whether it makes the run red."""
        return self in (*BROKEN, Kind.CONFLICT, Kind.UNEXPECTED_PASS)


WORKS = (Kind.PASSED, Kind.UNEXPECTED_PASS)
# What one run of a case can come to, and an expectation can declare; a conflict is of several.
BROKEN = (Kind.FAILED, Kind.CRASHED, Kind.HUNG)
# What really happened, whatever was expected.
ACTUAL = (Kind.PASSED, *BROKEN, Kind.SKIPPED)


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
