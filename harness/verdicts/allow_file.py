"""The file of an allow-list."""

from __future__ import annotations

import re
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Annotated

from pydantic import Field, PrivateAttr

from harness.errors import BadInputError
from harness.expectations import glob_pattern
from harness.model.issues import ISSUE
from harness.tables import Table, Text, one_of, read_tables
from harness.verdicts.finding import Finding
from harness.verdicts.words import REFUSALS


class AllowEntry(Table):
    """Entry ``[[allow]]``. ``cases`` are ids or keys; only ``*`` and ``?`` are special in them."""

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
    _where: str = PrivateAttr("")

    @property
    def where(self) -> str:
        """File and number, for messages."""
        return self._where

    @cached_property
    def _patterns(self) -> list[re.Pattern[str]]:
        return [glob_pattern(case) for case in self.cases]

    def allows(self, case: Finding) -> bool:
        """Return whether the entry is about this case and its verdict."""
        return case.verdict == self.verdict and any(
            pattern.fullmatch(name) for pattern in self._patterns for name in {case.key, *case.ids}
        )


def load(path: Path, today: date) -> tuple[AllowEntry, ...]:
    """Read the list. Raises BadInputError naming the file, the entry and the key.

    An entry whose ``until`` is before ``today`` has expired, which is an error.
    """
    entries = list(read_tables(path, "allow", AllowEntry))
    for where, entry in entries:
        entry._where = where
        if entry.until is not None and entry.until < today:
            raise BadInputError(
                f"{where}: key 'until': expired on {entry.until}: remove the entry, or have "
                f"{entry.signed_off_by} sign it off again"
            )
    return tuple(entry for _, entry in entries)
