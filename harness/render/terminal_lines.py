"""Building blocks of all results in the terminal: headings, and lines that fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.printable import escaped, folded
from harness.verdicts.groups import Group

WIDTH = 80


def title(text: str) -> str:
    """Return a heading across the terminal."""
    return f"{f' {text} ':-^{WIDTH}}"[:WIDTH]


def wrapped(text: str, indent: int = 0, first: str = "") -> Iterator[str]:
    """``text`` in lines that fit, its first one behind ``first``."""
    rest = " " * indent
    yield from folded(escaped(" ".join(text.split())), WIDTH, first or rest, rest)


def heading(members: Sequence[Group]) -> str:
    """Return the heading of the groups of one verdict: ``regressed: 5 (3 expected)``."""
    size, expected = sum(map(len, members)), sum(len(group) for group in members if group.expected)
    return title(f"{members[0].verdict}: {size}" + (f" ({expected} expected)" if expected else ""))
