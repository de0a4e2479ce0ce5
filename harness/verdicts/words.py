"""The verdicts, each word once, and the rule about change.

docs/glossary.md says what each word means. The rules over a history are statements in ``sql/``,
which join the relation ``CHANGES_SQL``.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import product

from harness.model.outcome import Answer


class Verdict(StrEnum):
    """A case compared with its baseline. The most important verdicts come first."""

    REGRESSED = "regressed"
    MISSING = "missing"
    NEW_FAILURE = "new failure"
    CRASHED = "crashed"
    HUNG = "hung"
    FLAKY = "flaky"
    LARGER = "larger"
    SLOWER = "slower"
    CHANGED = "changed"
    FIXED = "fixed"
    STILL_FAILING = "still failing"
    NEWLY_MEASURED = "newly measured"
    UNCHANGED = "unchanged"


VERDICTS = list(Verdict)
# The verdicts on a night. A case that is unchanged has none there.
NIGHTLY: list[Verdict] = [
    v
    for v in VERDICTS
    if v not in (Verdict.LARGER, Verdict.CHANGED, Verdict.NEWLY_MEASURED, Verdict.UNCHANGED)
]
REFUSALS = (Verdict.REGRESSED, Verdict.MISSING)


def change(was: Answer | None, now: Answer | None) -> Verdict:
    """Return the verdict from a case's answers on the baseline and now; None is not measured.

    A failure that an expectation declares is a failure, too: its verdict is marked *expected*.
    """
    if now is None:
        return Verdict.MISSING if was else Verdict.UNCHANGED
    if now is Answer.WORKS:
        changed = Verdict.FIXED if was else Verdict.NEWLY_MEASURED
        return Verdict.UNCHANGED if was is Answer.WORKS else changed
    if was is Answer.WORKS:
        return Verdict.REGRESSED
    if now is Answer.BROKEN and was is not Answer.BROKEN:
        return Verdict.NEW_FAILURE
    return Verdict.STILL_FAILING if was else Verdict.NEWLY_MEASURED


# The same as SQL that every engine reads. An answer that was not measured is ''.
CHANGES_SQL = (
    "SELECT c.was, c.now, c.verdict FROM (VALUES\n    "  # noqa: S608 - words of ours
    + ",\n    ".join(
        f"('{was or ''}', '{now or ''}', '{change(was, now)}')"
        for was, now in product((None, *Answer), repeat=2)
    )
    + "\n) AS c (was, now, verdict)"
)
