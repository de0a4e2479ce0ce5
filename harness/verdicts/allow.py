"""The allow-list: which cases a person accepts of a candidate, why, and until when."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cached_property

from harness.errors import BadInputError
from harness.expectations import glob_pattern
from harness.verdicts.comparison import ComparedCase, Comparison
from harness.verdicts.words import REFUSALS


@dataclass(frozen=True)
class AllowEntry:
    """One ``[[allow]]``. ``cases`` are ids or keys; only ``*`` and ``?`` are special in them."""

    cases: tuple[str, ...]
    verdict: str
    reason: str
    signed_off_by: str
    where: str  # file and number, for messages
    issue: str = ""
    until: date | None = None

    @cached_property
    def _patterns(self) -> list[re.Pattern[str]]:
        return [glob_pattern(case) for case in self.cases]

    def allows(self, case: ComparedCase) -> bool:
        """Whether it is about this case and this verdict."""
        return case.verdict == self.verdict and any(
            pattern.fullmatch(name) for pattern in self._patterns for name in {case.id, case.key}
        )


@dataclass(frozen=True)
class Allowed:
    """What a list allows of a comparison."""

    entries: Mapping[str, AllowEntry]  # by the case's key
    stale: tuple[AllowEntry, ...]  # those that allow nothing of it


def apply(entries: tuple[AllowEntry, ...], comparison: Comparison) -> Allowed:
    """Which cases are signed off. Raises BadInputError when two entries allow one case."""
    found: dict[str, AllowEntry] = {}
    used = set()
    for case in comparison.of(*REFUSALS):
        fits = [entry for entry in entries if entry.allows(case)]
        if len(fits) > 1:
            raise BadInputError(
                f"{fits[0].where} and {fits[1].where} match {case.key}: "
                "expected one entry at most for a case"
            )
        for entry in fits:
            found[case.key] = entry
            used.add(entry.where)
    return Allowed(found, tuple(entry for entry in entries if entry.where not in used))
