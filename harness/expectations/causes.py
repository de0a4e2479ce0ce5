"""What an entry may name as its cause: an upstream issue, or a finding that is described."""

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
    """The findings that a Markdown file describes, a section each; None, for any, without a file.

    A section is a heading that is a finding's name, as ``## empty-guard-is-removed``. Raises
    BadInputError for a file that can't be read or has no such section.
    """
    if path is None:
        return None
    found = frozenset(_SECTION.findall(read_text(path)))
    if not found:
        raise BadInputError(
            f"{path}: expected findings, as sections with the heading '## some-name'"
        )
    return found


def cause_of(
    where: str, issue: str | None, finding: str | None, findings: Collection[str] | None = None
) -> str:
    """The one of the two that is given, as an entry's cause.

    Raises BadInputError, which starts with ``where``, unless it is exactly one, in its form, and,
    for a finding, one of ``findings`` unless that is None.
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
