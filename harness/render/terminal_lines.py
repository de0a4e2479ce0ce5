"""Building blocks of all results in the terminal: headings, and lines that fit."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from harness.printable import escaped
from harness.verdicts.groups import Group

WIDTH = 80


def title(text: str) -> str:
    """Return a heading across the terminal."""
    return f"{f' {text} ':-^{WIDTH}}"[:WIDTH]


def wrapped(text: str, indent: int = 0, first: str = "") -> Iterator[str]:
    """``text`` in lines that fit, its first one behind ``first``."""
    yield from textwrap.wrap(
        escaped(" ".join(text.split())),
        WIDTH,
        initial_indent=first or " " * indent,
        subsequent_indent=" " * indent,
        break_on_hyphens=False,  # a case's id must be copied whole
    )


def heading(members: Sequence[Group]) -> str:
    """Return the heading of the groups of one verdict: ``regressed: 5 (3 expected)``."""
    size, expected = sum(map(len, members)), sum(len(group) for group in members if group.expected)
    return title(f"{members[0].verdict}: {size}" + (f" ({expected} expected)" if expected else ""))
