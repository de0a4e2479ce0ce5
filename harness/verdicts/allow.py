"""The allow-list: which cases a person accepts of a candidate, why, and until when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import BadInputError
from harness.verdicts.comparison import Comparison
from harness.verdicts.words import REFUSALS

if TYPE_CHECKING:
    from harness.verdicts.allow_file import AllowEntry


@dataclass(frozen=True)
class Allowed:
    """Cases of a comparison that a list of allowed ones covers, and the list's stale entries."""

    entries: Mapping[str, AllowEntry]  # by the case's key
    stale: tuple[AllowEntry, ...]  # those that allow nothing of it


def apply(entries: tuple[AllowEntry, ...], comparison: Comparison) -> Allowed:
    """Return which cases are signed off. Raise BadInputError if two entries allow one case."""
    by_case: dict[str, AllowEntry] = {}
    used = set()
    for case in comparison.of(*REFUSALS):
        fits = [entry for entry in entries if entry.allows(case)]
        if len(fits) > 1:
            raise BadInputError(
                f"{fits[0].where} and {fits[1].where} match {case.key}: "
                "expected one entry at most for a case"
            )
        for entry in fits:
            by_case[case.key] = entry
            used.add(entry.where)
    return Allowed(by_case, tuple(entry for entry in entries if entry.where not in used))
