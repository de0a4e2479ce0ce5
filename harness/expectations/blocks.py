"""An expectation file's text cut into its entries, and put together again."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from harness.errors import BadInputError
from harness.files import parse_toml

_HEADER = re.compile(r"^[ \t]*\[\[[ \t]*expectation[ \t]*\]\]", re.MULTILINE)


def split(path: Path, text: str) -> tuple[str, list[tuple[str, str, str]]]:
    """Return the text before the first entry and, for each entry, its own comment, its body, and
    the text between it and the next entry's comment.
    """
    starts = [match.start() for match in _HEADER.finditer(text)]
    entries = parse_toml(path, text).get("expectation", [])
    bodies = [text[start:end] for start, end in zip_longest(starts, starts[1:])]
    if not _same(bodies, entries):
        raise BadInputError(f"{path}: can't be rewritten: expected [[expectation]] tables only")
    head = text[: starts[0]] if starts else text
    head, own = _own_comment(head)
    blocks: list[tuple[str, str, str]] = []
    for body in bodies:
        content = _content(body)
        after, next_own = _own_comment(body[len(content) :])
        if len(blocks) + 1 == len(bodies):
            after, next_own = after + next_own, ""
        blocks.append((own, content, after))
        own = next_own
    return head, blocks


def lines(text: str, count: int) -> list[int] | list[None]:
    """Return the line of each of the text's ``count`` entries, from 1; None if they are unknown.

    They are unknown if entries are not ``[[expectation]]`` tables, or if a text of several lines
    contains something like their header.
    """
    starts = [match.start() for match in _HEADER.finditer(text)]
    if len(starts) != count:
        return [None] * count
    return [text.count("\n", 0, text.index("[", start)) + 1 for start in starts]


def _same(bodies: Iterable[str], entries: Sequence[Any]) -> bool:
    """Return whether the text was cut where its entries begin, not inside a multi-line string."""
    try:
        return [tomllib.loads(body)["expectation"] for body in bodies] == [[e] for e in entries]
    except tomllib.TOMLDecodeError:
        return False


def _content(body: str) -> str:
    """Return the body without the blank lines and comments after its last key."""
    lines = body.splitlines(keepends=True)
    while lines and (not lines[-1].strip() or lines[-1].lstrip().startswith("#")):
        lines.pop()
    return "".join(lines)


def _own_comment(text: str) -> tuple[str, str]:
    """Split ``text`` before the comment lines that it ends with."""
    lines = text.splitlines(keepends=True)
    start = len(lines)
    while start and lines[start - 1].lstrip().startswith("#"):
        start -= 1
    return "".join(lines[:start]), "".join(lines[start:])


def join(head: str, pieces: Sequence[tuple[str, str]]) -> str:
    """Join the pieces; of a removed entry, only the blank lines after it are left."""
    result = head
    for body, after in pieces:
        if not body and not after.partition("\n")[0].strip():
            result = _without_blank_end(result)
        result += body + after
    return result if head else result.lstrip("\r\n")


def _without_blank_end(text: str) -> str:
    lines = text.splitlines(keepends=True)
    while lines and not lines[-1].strip():
        lines.pop()
    return "".join(lines)
