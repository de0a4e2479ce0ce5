"""Markup for GitHub: Markdown, and annotations on the files of a pull request.

Text of unknown origin has no effect in either: no markup, no link, no mention, no other command.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from harness.model.case_id import file_of
from harness.model.issues import page
from harness.printable import escaped, printable

ANNOTATIONS = 10  # GitHub shows no more of a step
_MOST_TEXT = 200  # characters of a failure
_SPECIAL = re.compile(r"([\\`*\[\]<>#|~&]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")
# GitHub looks for mentions, issues and addresses in the text that it shows, however that is spelled
# in the source. What must not be one is parted by a space of no width, as Renovate does it.
_ACTING = re.compile(
    r"(?<=[@\uff20\ufe6b])|(?<=#)(?=\d)|(?<=\bGH-)(?=\d)|(?<=www)(?=\.)|(?<=:)(?=//)", re.IGNORECASE
)
_PARTED = "&#8203;"
_LONGEST_RUN = re.compile(r"`+")


def plain(text: str) -> str:
    """Text that Markdown shows as it is: no markup, no link, no mention, on one line."""
    parted = _ACTING.sub("\0", escaped(" ".join(text.split())))
    return _SPECIAL.sub(r"\\\1", parted).replace("@", "&#64;").replace("\0", _PARTED)


def code(text: str) -> str:
    """Return a code span of any text for a table's cell: it may have backticks and pipes."""
    line = escaped(" ".join(text.split()))
    if len(line) > _MOST_TEXT:
        line = line[: _MOST_TEXT - 1] + "…"
    if not line:
        return ""
    fence = "`" * (max(map(len, _LONGEST_RUN.findall(line)), default=0) + 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{pad}{line}{pad}{fence}".replace("|", "\\|")


def link(issue: str) -> str:
    """Return a link to the issue; a finding of ours as text."""
    address = page(issue)
    return f"[{issue}]({address})" if address else plain(issue)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a Markdown table, whose cells have no bare pipe, and the empty line after it."""
    yield f"| {' | '.join(head)} |"
    yield "|" + " --- |" * len(head)
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def annotation(level: str, case: str, title: str, text: str) -> str:
    """Return the command, one line; ``level`` is error or warning. The text is escaped."""
    file = file_of(case)
    place = f"file={_property(file)}," if file.endswith(".py") else ""
    return f"::{level} {place}title={_property(title)}::{_data(text)}"


def _data(text: str) -> str:
    return printable(text).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
