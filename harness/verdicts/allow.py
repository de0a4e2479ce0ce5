"""The allow-list: which findings a person accepts of a candidate, why, and until when."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.errors import BadInputError
from harness.expectations import glob_pattern
from harness.files import read_toml
from harness.model.issues import ISSUE
from harness.verdicts.findings import Comparison, Finding
from harness.verdicts.words import REFUSALS

_TEXTS = ("reason", "signed_off_by")
_REQUIRED = {"cases", "verdict", *_TEXTS}
_KEYS = _REQUIRED | {"issue", "until"}


@dataclass(frozen=True)
class AllowEntry:
    """One ``[[allow]]``. ``cases`` are ids or keys; only ``*`` and ``?`` are special in them."""

    where: str  # file and number, for messages
    cases: tuple[str, ...]
    verdict: str
    reason: str
    signed_off_by: str
    issue: str = ""
    until: date | None = None

    @cached_property
    def _patterns(self) -> list[re.Pattern[str]]:
        return [glob_pattern(case) for case in self.cases]

    def allows(self, finding: Finding) -> bool:
        """Whether it is about this case and this verdict."""
        return finding.verdict == self.verdict and any(
            pattern.fullmatch(name)
            for pattern in self._patterns
            for name in {finding.id, finding.key}
        )


@dataclass(frozen=True)
class Allowed:
    """What a list allows of a comparison."""

    entries: Mapping[str, AllowEntry]  # by the finding's key
    stale: tuple[AllowEntry, ...]  # those that allow nothing of it


def load(path: Path, today: date) -> tuple[AllowEntry, ...]:
    """Read the list. Raises BadInputError naming the file, the entry and the key.

    An entry whose ``until`` is before ``today`` has expired, which is an error.
    """
    data = read_toml(path)
    entries = data.pop("allow", [])
    if data or not isinstance(entries, list):
        key = next(iter(data), "allow")
        raise BadInputError(f"{path}: key {key!r}: expected only [[allow]] tables")
    return tuple(_entry(f"{path}#{number}", e, today) for number, e in enumerate(entries, 1))


def apply(entries: tuple[AllowEntry, ...], comparison: Comparison) -> Allowed:
    """Which findings are signed off. Raises BadInputError when two entries allow one finding."""
    found: dict[str, AllowEntry] = {}
    used = set()
    for finding in comparison.of(*REFUSALS):
        fits = [entry for entry in entries if entry.allows(finding)]
        if len(fits) > 1:
            raise BadInputError(
                f"{fits[0].where} and {fits[1].where} match {finding.key}: "
                "expected one entry at most for a case"
            )
        for entry in fits:
            found[finding.key] = entry
            used.add(entry.where)
    return Allowed(found, tuple(entry for entry in entries if entry.where not in used))


def _entry(where: str, entry: Any, today: date) -> AllowEntry:
    if not isinstance(entry, dict):
        raise BadInputError(f"{where}: expected a table")
    for key in sorted(entry.keys() - _KEYS):
        raise BadInputError(f"{where}: unknown key {key!r}: expected {', '.join(sorted(_KEYS))}")
    for key in sorted(_REQUIRED - entry.keys()):
        raise BadInputError(f"{where}: key {key!r} is missing")
    cases = entry["cases"]
    if not (isinstance(cases, list) and cases and all(isinstance(c, str) and c for c in cases)):
        raise BadInputError(f"{where}: key 'cases': expected a list of case ids, with * and ?")
    for key in _TEXTS:
        if not isinstance(entry[key], str) or not entry[key].strip():
            raise BadInputError(f"{where}: key {key!r}: expected a text")
    if entry["verdict"] not in list(REFUSALS):
        expected = " or ".join(f"'{verdict}'" for verdict in REFUSALS)
        raise BadInputError(f"{where}: key 'verdict': {entry['verdict']!r}: expected {expected}")
    issue = entry.get("issue", "")
    if "issue" in entry and not (isinstance(issue, str) and ISSUE.fullmatch(issue)):
        raise BadInputError(f"{where}: key 'issue': {issue!r}: expected 'owner/repo#number'")
    return AllowEntry(
        where=where,
        cases=tuple(cases),
        verdict=entry["verdict"],
        reason=entry["reason"],
        signed_off_by=entry["signed_off_by"],
        issue=issue,
        until=_until(where, entry.get("until"), today, entry["signed_off_by"]),
    )


def _until(where: str, value: Any, today: date, signer: str) -> date | None:
    if value is None:
        return None
    if not isinstance(value, date) or isinstance(value, datetime):
        raise BadInputError(f"{where}: key 'until': {value!r}: expected a date, as 2026-12-31")
    if value < today:
        raise BadInputError(
            f"{where}: key 'until': expired on {value}: remove the entry, or have {signer} "
            "sign it off again"
        )
    return value
