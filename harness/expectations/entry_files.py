"""Reading and checking expectation files."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness.errors import BadInputError
from harness.expectations import blocks, condition
from harness.expectations.causes import cause_of
from harness.expectations.condition import ALWAYS, Condition, Versions
from harness.expectations.entry import Expectation, place
from harness.expectations.failure_pattern import SignatureError, check
from harness.files import parse_toml, read_text
from harness.model.outcome import DECLARABLE, Kind

_REQUIRED = {"cases", "reason", "signature"}
_KEYS = _REQUIRED | {"issue", "finding", "outcome", "stack"}
_NOT_TEXT = {"cases", "stack"}


class _At(NamedTuple):
    """Position of an entry: its file, and its number and first line there, both from 1."""

    path: Path
    number: int
    line: int | None


def read_all(
    folder: Path, known: Sequence[Versions], findings: Collection[str] | None = None
) -> Iterator[Expectation]:
    """Yield the entries of every ``*.toml`` in ``folder``; ``known`` are all stacks.

    ``findings`` are those that an entry may name, None for any. Raises BadInputError naming the
    file, the line and the key.
    """
    if not folder.is_dir():
        raise BadInputError(
            f"{folder}: expected a folder of expectation files, as a clone of the project has"
        )
    for path in sorted(folder.glob("*.toml")):
        yield from parse(path, read_text(path), known, findings)


def parse(
    path: Path, text: str, known: Sequence[Versions], findings: Collection[str] | None = None
) -> list[Expectation]:
    """Return the entries in the text of the file ``path``; raise BadInputError as ``read_all``."""
    data = parse_toml(path, text)
    entries = data.pop("expectation", [])
    if data or not isinstance(entries, list):
        key = next(iter(data), "expectation")
        raise BadInputError(f"{path}: key {key!r}: expected only [[expectation]] tables")
    lines = blocks.lines(text, len(entries))
    return [
        _entry(_At(path, number, line), entry, known, findings)
        for number, (line, entry) in enumerate(zip(lines, entries, strict=True), 1)
    ]


def _entry(
    at: _At, entry: Any, known: Sequence[Versions], findings: Collection[str] | None
) -> Expectation:
    where = place(*at)
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
        path=at.path,
        number=at.number,
        cases=tuple(cases),
        cause=cause_of(where, entry.get("issue"), entry.get("finding"), findings),
        reason=entry["reason"],
        outcome=_outcome(where, entry.get("outcome", "failed")),
        signature=_signature(where, entry["signature"]),
        condition=_condition(where, entry, known),
        line=at.line,
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
