"""Changing expectation files and nothing else in them: what stays, stays byte for byte."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import tomlkit
from tomlkit.items import Array, String, Table

from harness.expectations import blocks


@dataclass(frozen=True)
class Part:
    """Replacement for an entry, or one of several that replace it."""

    cases: tuple[tuple[str, ...], ...]  # by old glob: the globs in its place
    stack: Mapping[str, str]  # ranges by component, {} for every stack


@dataclass(frozen=True)
class New:
    """An entry to add."""

    cases: Sequence[str]
    stack: Mapping[str, str]
    cause: tuple[str, str]  # key and value: an issue or a finding
    reason: str
    outcome: str
    signature: str


def changed(path: Path, text: str, parts: Mapping[int, Sequence[Part]], new: Sequence[New]) -> str:
    """Return the file's text with entries replaced by their parts, or removed, and new ones added.

    ``parts`` are by the entry's number, from 1; an entry with no parts is removed. The comment
    directly above an entry belongs to it; a section's comment stays. Raises BadInputError for a
    file whose entries are not plain ``[[expectation]]`` tables.
    """
    newline = "\r\n" if "\r\n" in text else "\n"
    head, entries = blocks.split(path, text)
    pieces = []
    for number, (own, body, after) in enumerate(entries, 1):
        if number in parts:
            ended = body if body.endswith("\n") else body + newline
            bodies = [_entry(ended, part) for part in parts[number]]
            pieces.append((own + newline.join(bodies) if bodies else "", after))
        else:
            pieces.append((own + body, after))
    result = blocks.join(head, pieces)
    for entry in new:
        result = result + ("" if result.endswith("\n") or not result else newline)
        result += (newline if result else "") + _new(entry).replace("\n", newline)
    return result


def _entry(body: str, part: Part) -> str:
    document = tomlkit.parse(body)
    entry = cast("Table", cast("Any", document["expectation"])[0])
    _set_cases(cast("Array", entry["cases"]), part.cases)
    if dict(entry.get("stack", {})) != dict(part.stack):
        entry["stack"] = _stack(part.stack)
    return tomlkit.dumps(document)


def _set_cases(array: Array, wanted: Sequence[Sequence[str]]) -> None:
    """Put each glob's replacements in its place, from the end so that the numbers hold."""
    for number in range(len(wanted) - 1, -1, -1):
        globs = wanted[number]
        if list(globs) == [array[number]]:
            continue
        if not globs:
            del array[number]
            continue
        array[number] = _text(globs[0])
        for offset, glob in enumerate(globs[1:], 1):
            array.insert(number + offset, _text(glob))


def _new(entry: New) -> str:
    document = tomlkit.document()
    table = tomlkit.table()
    cases = tomlkit.array()
    cases.extend(map(_text, entry.cases))
    table["cases"] = cases.multiline(multiline=len(entry.cases) > 1)
    key, value = entry.cause
    table[key] = value
    table["reason"] = _text(entry.reason)
    if entry.outcome != "failed":
        table["outcome"] = entry.outcome
    table["signature"] = _text(entry.signature)
    if entry.stack:
        table["stack"] = _stack(entry.stack)
    tables = tomlkit.aot()
    tables.append(table)
    document["expectation"] = tables
    return tomlkit.dumps(document).strip("\n") + "\n"


def _stack(ranges: Mapping[str, str]) -> Any:
    inside = ", ".join(f"{key} = {json.dumps(text)}" for key, text in ranges.items())
    return tomlkit.parse(f"stack = {{ {inside} }}\n").item("stack")


def _text(text: str) -> String:
    """Return the text as a literal string, which needs no escapes, where that is possible."""
    plain = "'" not in text and text.isprintable()
    return tomlkit.string(text, literal="\\" in text and plain)
