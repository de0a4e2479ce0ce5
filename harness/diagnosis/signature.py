"""A failure's text in few words: what people read, and what two failures of one cause share."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

_GENERAL = (
    (re.compile(r"0x[0-9a-fA-F]+"), "ADDRESS"),
    (re.compile(r"(?<![\w.])/(?:[\w.+@-]+/)*([\w.+@-]+)"), r"\1"),  # a path is its last part
    (re.compile(r"(?<![\w)\]])-?\d+(\.\d+)?(e[+-]?\d+)?|\d+"), "N"),
    (re.compile(r"\bN(xN)+"), "N"),
    (re.compile(r"N,?(, N)+"), "N"),
    (re.compile(r"(\(N,?\)|\[N\])(, (\(N,?\)|\[N\]))*"), "(N)"),
)
_BARE = re.compile(r"[\w.]+:|.*\b\w*(Error|Exception):")
_ASSERTS = re.compile(r"(.*\W)?AssertionError\b|assert ")
_TRACEBACK = "Traceback (most recent call last):"
# What pytest and unittest add that repeats the statement, draws, or advises.
_NEEDLESS = re.compile(r"\+\s+(where|and)\s|\?[\s^+-]*$|assert (False|None|0)$|Use -v |Full diff:")
_MOST_LEADING = 3  # lines that announce each other
_MOST_DETAILS = 400  # characters: the figures that NumPy and torch.testing give before the arrays


def generalised(failure: str) -> str:
    """Return the first line of a failure without numbers, addresses and folders."""
    text = first_line(failure)
    for pattern, replacement in _GENERAL:
        text = pattern.sub(replacement, text)
    return text


def first_line(text: str) -> str:
    """Return the first line that says something, without a trailing blank.

    A line that ends with a colon, as the bare name of an exception does in NumPy's assertions,
    announces the next, and a traceback its last line. Signatures are made of it; people read
    ``headline``.
    """
    return " ".join(leading_lines(text))


def leading_lines(text: str) -> list[str]:
    """Return the lines that ``first_line`` is made of: up to the first that announces no other."""
    leading: list[str] = []
    for line in islice(_lines(text), _MOST_LEADING):
        leading.append(line)
        if not line.endswith(":"):
            break
    return leading


def headline(text: str) -> str:
    """Return the failure in one line, for people.

    That is its first line, and of an assertion also what differs, which NumPy, torch.testing and
    chex write into the lines below it.
    """
    leading = leading_lines(text)
    line = " ".join(leading)
    if not _ASSERTS.match(line):
        return line
    most = len(line) + _MOST_DETAILS
    for detail in islice(_lines(text), len(leading), None):
        if detail == _TRACEBACK:
            break
        if _NEEDLESS.match(detail):
            continue
        separator = " " if line[-1] in ".:,;!?" else "; "
        if len(line) + len(separator) + len(detail) > most:
            return f"{line}{separator}{detail}"[:most].rpartition(" ")[0] + " ..."
        line += separator + detail
    return line


def with_name_joined(text: str) -> str:
    """Return the text with the bare name of an exception in front of what it says, in one line."""
    first, _, rest = text.partition("\n")
    return f"{first.rstrip()} {rest.lstrip()}" if _BARE.fullmatch(first.rstrip()) else text


def _lines(text: str) -> Iterator[str]:
    """Yield the lines that say something; of a traceback that a line begins, only its last."""
    in_traceback = False
    for line in text.splitlines():
        if not line.strip() or (in_traceback and line[0].isspace()):
            continue
        before = line.strip().removesuffix(_TRACEBACK).rstrip()
        in_traceback = before != "" and before != line.strip()
        yield before or _TRACEBACK
