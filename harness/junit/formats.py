"""Older formats of reports, brought up to the present one in this one place."""

from __future__ import annotations

import re
from collections.abc import Mapping

from harness.junit.names import EXPECTED_BY_ENTRY, EXPECTED_BY_PYTEST, FORMAT
from harness.model.outcome import Kind

FORMATS = ("2", FORMAT)
# How format 2 began the failure of a case that had crashed or hung, and no other failure.
_CRASHED = re.compile(r"SIG[A-Z0-9]+\b|exited with status")
_HUNG = re.compile(r"no result after|hung in")


def current(said: Mapping[str, str], written: str) -> dict[str, str]:
    """A case's properties as the present format has them; ``written`` is the report's.

    Format 2 has neither ``actual`` nor ``expected_by``, and an expected failure says only in words
    how the case failed. Its ``deadline`` is not known, nor what an expectation declared that did
    not come true.
    """
    if written == FORMAT or "outcome" not in said:
        return dict(said)
    added = {"actual": str(actual(said))}
    expected = said["outcome"] == Kind.EXPECTED_FAILURE
    if expected and not said.get("failure"):
        added["expected_by"] = EXPECTED_BY_PYTEST
    elif said.get("expectation"):
        added["expected_by"] = EXPECTED_BY_ENTRY
        if expected:
            added["expected"] = added["actual"]
    return {**said, **added}


def actual(said: Mapping[str, str]) -> Kind | str:
    """The actual outcome by a case's properties, which format 2, or an older history, may have.

    What is no outcome is returned as it is.
    """
    outcome = said["outcome"]
    if outcome not in (Kind.EXPECTED_FAILURE, Kind.UNEXPECTED_PASS):
        return outcome
    if found := said.get("actual"):
        return found
    if outcome == Kind.UNEXPECTED_PASS:
        return Kind.PASSED
    failure = said.get("failure", "")
    if said.get("signal") or _CRASHED.match(failure):
        return Kind.CRASHED
    return Kind.HUNG if _HUNG.match(failure) else Kind.FAILED
