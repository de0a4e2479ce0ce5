"""What upstream is known to get wrong: read, checked and held against outcomes.

A case without an entry is expected to pass. Every entry is strict: a pass is red, and so is a
failure of another kind or with another text.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.errors import BadInputError
from harness.outcome import BROKEN, Kind, Outcome

_REQUIRED = {"cases", "reason", "signature"}
_KEYS = _REQUIRED | {"issue", "finding", "outcome"}
_ISSUE = re.compile(r"[\w.-]+/[\w.-]+#\d+")
_FINDING = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True)
class Expectation:
    """One entry of a file under ``fixtures/expectations/``."""

    where: str  # file and number, for messages
    cases: tuple[str, ...]
    cause: str  # an upstream issue, or ``finding NAME``: a section of docs/findings.md
    reason: str
    outcome: Kind
    signature: str

    @cached_property
    def _patterns(self) -> list[re.Pattern[str]]:
        return [glob_pattern(case) for case in self.cases]

    def unmatched(self, ids: Iterable[str]) -> list[str]:
        """Those of its globs that match none of ``ids``."""
        known = list(ids)
        return [
            glob
            for glob, pattern in zip(self.cases, self._patterns, strict=True)
            if not any(pattern.fullmatch(id_) for id_ in known)
        ]

    def matches(self, case_id: str) -> bool:
        """Whether one of its globs is the case's id."""
        return any(pattern.fullmatch(case_id) for pattern in self._patterns)

    def describes(self, outcome: Outcome) -> bool:
        """Whether the outcome is the declared failure."""
        return (
            outcome.kind == self.outcome
            and re.search(self.signature, outcome.message, re.DOTALL) is not None
        )


def glob_pattern(glob: str) -> re.Pattern[str]:
    """``*`` and ``?`` as in a shell; brackets stand for themselves, as case ids have many."""
    escaped = re.escape(glob).replace(r"\*", ".*").replace(r"\?", ".")
    return re.compile(escaped, re.DOTALL)


class Expectations:
    """All entries; at most one for a case."""

    def __init__(self, entries: Iterable[Expectation] = ()) -> None:
        self.entries = tuple(entries)

    @classmethod
    def load(cls, folder: Path) -> Expectations:
        """Read every ``*.toml`` in ``folder``; raises BadInputError naming the file and the key."""
        if not folder.is_dir():
            raise BadInputError(f"{folder}: expected a folder of expectation files")
        return cls(entry for path in sorted(folder.glob("*.toml")) for entry in _read(path))

    @classmethod
    def load_optional(cls, folder: Path | None) -> Expectations:
        """As ``load``; nothing is expected to fail where there is no folder."""
        return cls() if folder is None else cls.load(folder)

    def find(self, case_id: str) -> Expectation | None:
        """The case's entry; raises BadInputError if there are two."""
        found = [entry for entry in self.entries if entry.matches(case_id)]
        if len(found) > 1:
            both = " and ".join(entry.where for entry in found)
            raise BadInputError(f"{both} match {case_id}: expected one entry at most for a case")
        return found[0] if found else None

    def unmatched(self, ids: Iterable[str], root: Path) -> list[str]:
        """Globs that match no collected case though their file was collected, or is not in
        ``root``: the case is gone or misspelt.
        """
        known = set(ids)
        files = {id_.split("::", 1)[0] for id_ in known}
        return [
            f"{entry.where}: {glob} matches no case"
            for entry in self.entries
            for glob in entry.unmatched(known)
            if (file := glob.split("::", 1)[0]) in files or not _may_exist(root, file)
        ]


def _may_exist(root: Path, file: str) -> bool:
    return "*" in file or "?" in file or (root / file).is_file()


def judge(outcome: Outcome, expectation: Expectation | None) -> Outcome:
    """The outcome in the light of what was expected. Skips stay skips."""
    if expectation is None or outcome.kind in (Kind.SKIPPED, Kind.EXPECTED_FAILURE):
        return outcome
    entry = f"{expectation.where} ({expectation.cause}: {expectation.reason})"
    if outcome.kind == Kind.PASSED:
        return Outcome(Kind.UNEXPECTED_PASS, f"passes now: the entry {entry} can go")
    if expectation.describes(outcome):
        return Outcome(Kind.EXPECTED_FAILURE, f"{expectation.cause}: {expectation.reason}")
    return Outcome(
        outcome.kind,
        f"{outcome.message}\nnot the failure that {entry} declares: "
        f"{expectation.outcome} with {expectation.signature!r}",
        outcome.signal,
    )


def _read(path: Path) -> list[Expectation]:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInputError(f"{path}: {error}") from error
    entries = data.pop("expectation", [])
    if data or not isinstance(entries, list):
        key = next(iter(data), "expectation")
        raise BadInputError(f"{path}: key {key!r}: expected only [[expectation]] tables")
    return [_entry(f"{path}#{number}", entry) for number, entry in enumerate(entries, 1)]


def _entry(where: str, entry: Any) -> Expectation:
    if not isinstance(entry, dict):
        raise BadInputError(f"{where}: expected a table")
    for key in sorted(entry.keys() - _KEYS):
        raise BadInputError(f"{where}: unknown key {key!r}: expected {', '.join(sorted(_KEYS))}")
    for key in sorted(_REQUIRED - entry.keys()):
        raise BadInputError(f"{where}: key {key!r} is missing")
    cases = entry["cases"]
    if not (isinstance(cases, list) and cases and all(isinstance(c, str) for c in cases)):
        raise BadInputError(f"{where}: key 'cases': expected a list of case ids, with * and ?")
    for key in sorted(entry.keys() - {"cases"}):
        if not isinstance(entry[key], str) or not entry[key].strip():
            raise BadInputError(f"{where}: key {key!r}: expected a text")
    return Expectation(
        where=where,
        cases=tuple(cases),
        cause=_cause(where, entry),
        reason=entry["reason"],
        outcome=_outcome(where, entry.get("outcome", "failed")),
        signature=_signature(where, entry["signature"]),
    )


def _cause(where: str, entry: Mapping[str, str]) -> str:
    issue, finding = entry.get("issue"), entry.get("finding")
    if issue and not finding and _ISSUE.fullmatch(issue):
        return issue
    if finding and not issue and _FINDING.fullmatch(finding):
        return f"finding {finding}"
    raise BadInputError(
        f"{where}: expected either key 'issue', as 'pytorch/xla#8854', or key 'finding', "
        "a section of docs/findings.md"
    )


def _outcome(where: str, text: str) -> Kind:
    if text not in tuple(BROKEN):
        raise BadInputError(f"{where}: key 'outcome': {text!r}: expected {', '.join(BROKEN)}")
    return Kind(text)


def _signature(where: str, text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise BadInputError(f"{where}: key 'signature': {error}") from error
    return text
