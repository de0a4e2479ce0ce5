"""Reading and checking expectation files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.errors import BadInputError
from harness.expectations import condition
from harness.expectations.condition import ALWAYS, Condition, Versions
from harness.expectations.entry import Expectation
from harness.expectations.signature import SignatureError, check
from harness.files import parse_toml, read_text
from harness.model.outcome import DECLARABLE, Kind

_REQUIRED = {"cases", "reason", "signature"}
_KEYS = _REQUIRED | {"issue", "finding", "outcome", "stack"}
_NOT_TEXT = {"cases", "stack"}
_ISSUE = re.compile(r"[\w.-]+/[\w.-]+#\d+")
_FINDING = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def read_all(folder: Path, known: Sequence[Versions]) -> Iterator[Expectation]:
    """The entries of every ``*.toml`` in ``folder``; ``known`` are the stacks that there are.

    Raises BadInputError naming the file and the key.
    """
    if not folder.is_dir():
        raise BadInputError(
            f"{folder}: expected a folder of expectation files, as a clone of the project has"
        )
    for path in sorted(folder.glob("*.toml")):
        yield from parse(path, read_text(path), known)


def parse(path: Path, text: str, known: Sequence[Versions]) -> list[Expectation]:
    """The entries in the text of the file ``path``; raises BadInputError as ``read_all``."""
    data = parse_toml(path, text)
    entries = data.pop("expectation", [])
    if data or not isinstance(entries, list):
        key = next(iter(data), "expectation")
        raise BadInputError(f"{path}: key {key!r}: expected only [[expectation]] tables")
    return [_entry(path, number, entry, known) for number, entry in enumerate(entries, 1)]


def cause_of(where: str, issue: str | None, finding: str | None) -> str:
    """The one of the two that is given, as an entry's cause; raises BadInputError otherwise."""
    if issue and not finding and _ISSUE.fullmatch(issue):
        return issue
    if finding and not issue and _FINDING.fullmatch(finding):
        return f"finding {finding}"
    raise BadInputError(
        f"{where}: expected either key 'issue', as 'pytorch/xla#8854', or key 'finding', "
        "a section of docs/findings.md"
    )


def _entry(path: Path, number: int, entry: Any, known: Sequence[Versions]) -> Expectation:
    where = f"{path}#{number}"
    if not isinstance(entry, dict):
        raise BadInputError(f"{where}: expected a table")
    for key in sorted(entry.keys() - _KEYS):
        raise BadInputError(f"{where}: unknown key {key!r}: expected {', '.join(sorted(_KEYS))}")
    for key in sorted(_REQUIRED - entry.keys()):
        raise BadInputError(f"{where}: key {key!r} is missing")
    cases = entry["cases"]
    if not (isinstance(cases, list) and cases and all(isinstance(c, str) for c in cases)):
        raise BadInputError(f"{where}: key 'cases': expected a list of case ids, with * and ?")
    for key in sorted(entry.keys() - _NOT_TEXT):
        if not isinstance(entry[key], str) or not entry[key].strip():
            raise BadInputError(f"{where}: key {key!r}: expected a text")
    return Expectation(
        path=path,
        number=number,
        cases=tuple(cases),
        cause=cause_of(where, entry.get("issue"), entry.get("finding")),
        reason=entry["reason"],
        outcome=_outcome(where, entry.get("outcome", "failed")),
        signature=_signature(where, entry["signature"]),
        condition=_condition(where, entry, known),
    )


def _condition(where: str, entry: Mapping[str, Any], known: Sequence[Versions]) -> Condition:
    return condition.read(where, entry["stack"], known) if "stack" in entry else ALWAYS


def _outcome(where: str, text: str) -> Kind:
    if text not in tuple(DECLARABLE):
        raise BadInputError(f"{where}: key 'outcome': {text!r}: expected {', '.join(DECLARABLE)}")
    return Kind(text)


def _signature(where: str, text: str) -> str:
    try:
        check(text)
    except SignatureError as error:
        raise BadInputError(
            f"{where}: key 'signature': {error}: expected a regular expression of RE2, which has "
            "neither lookaround nor backreferences"
        ) from error
    return text
