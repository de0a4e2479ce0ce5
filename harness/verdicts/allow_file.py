"""The file of an allow-list."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Annotated

from pydantic import Field

from harness.errors import BadInputError
from harness.model.issues import ISSUE
from harness.tables import Table, Text, one_of, read_tables
from harness.verdicts.allow import AllowEntry
from harness.verdicts.words import REFUSALS


class _Entry(Table):
    cases: tuple[Text, ...] = Field(
        description="a list of case ids, with * and ?", strict=False, min_length=1
    )
    verdict: Annotated[str, one_of(REFUSALS)] = Field(
        description=" or ".join(f"'{verdict}'" for verdict in REFUSALS)
    )
    reason: Text = Field(description="a text")
    signed_off_by: Text = Field(description="a text")
    issue: str = Field(
        default="", description="'owner/repo#number'", pattern=f"^(?:{ISSUE.pattern})$"
    )
    until: date | None = Field(default=None, description="a date, as 2026-12-31")


def load(path: Path, today: date) -> tuple[AllowEntry, ...]:
    """Read the list. Raises BadInputError naming the file, the entry and the key.

    An entry whose ``until`` is before ``today`` has expired, which is an error.
    """
    entries = [
        AllowEntry(**dict(entry), where=where)
        for where, entry in read_tables(path, "allow", _Entry)
    ]
    for entry in entries:
        if entry.until is not None and entry.until < today:
            raise BadInputError(
                f"{entry.where}: key 'until': expired on {entry.until}: remove the entry, or have "
                f"{entry.signed_off_by} sign it off again"
            )
    return tuple(entries)
