"""Causes that an entry may name: an upstream issue, or a finding that is described."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from pathlib import Path

from harness.errors import BadInputError
from harness.files import read_text

_ISSUE = re.compile(r"[\w.-]+/[\w.-]+#\d+")
_FINDING = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_SECTION = re.compile(r"^#{1,6} +([a-z0-9]+(?:-[a-z0-9]+)*) *$", re.MULTILINE)


def read_findings(path: Path | None) -> frozenset[str] | None:
    """Return the findings that a Markdown file describes; None, for any, without a file.

    A finding is a section under its name, such as ``## empty-guard-is-removed``. Raises
    BadInputError for a file that can't be read or has no such section.
    """
    if path is None:
        return None
    findings = frozenset(_SECTION.findall(read_text(path)))
    if not findings:
        raise BadInputError(
            f"{path}: expected findings, as sections with the heading '## some-name'"
        )
    return findings


def cause_of(
    where: str, issue: str | None, finding: str | None, findings: Collection[str] | None = None
) -> str:
    """Return an entry's cause, which is its issue or its finding.

    Raises BadInputError, which starts with ``where``, unless exactly one of the two is given, in
    the right form, and a finding is one of ``findings`` if there are any.
    """
    if issue and not finding and _ISSUE.fullmatch(issue):
        return issue
    if finding and not issue and _FINDING.fullmatch(finding):
        if findings is not None and finding not in findings:
            close = difflib.get_close_matches(finding, sorted(findings), n=3)
            near = f"did you mean {', '.join(close)}? " if close else ""
            raise BadInputError(
                f"{where}: key 'finding': {finding!r}: {near}expected a section of the file that "
                "ini xla_findings names"
            )
        return f"finding {finding}"
    raise BadInputError(
        f"{where}: expected either key 'issue', as 'pytorch/xla#8854', or key 'finding', "
        "the name of a section of the file that ini xla_findings names"
    )
