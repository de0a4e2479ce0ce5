"""What two failures of one cause have in common: the text without what differs by chance."""

from __future__ import annotations

import re

_GENERAL = (
    (re.compile(r"0x[0-9a-fA-F]+"), "ADDRESS"),
    (re.compile(r"(?<![\w.])/(?:[\w.+@-]+/)*([\w.+@-]+)"), r"\1"),  # a path is its last part
    (re.compile(r"(?<![\w)\]])-?\d+(\.\d+)?(e[+-]?\d+)?|\d+"), "N"),
    (re.compile(r"\bN(xN)+"), "N"),
    (re.compile(r"N,?(, N)+"), "N"),
    (re.compile(r"(\(N,?\)|\[N\])(, (\(N,?\)|\[N\]))*"), "(N)"),
)
_BARE = re.compile(r"[\w.]+:")


def generalised(failure: str) -> str:
    """The first line of a failure without numbers, addresses and folders."""
    text = first_line(failure)
    for pattern, replacement in _GENERAL:
        text = pattern.sub(replacement, text)
    return text


def first_line(text: str) -> str:
    """Return the first line that says something, without a trailing blank.

    After the bare name of an exception, as of NumPy's assertions, that is the next one.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()][:2]
    if len(lines) > 1 and _BARE.fullmatch(lines[0]):
        return " ".join(lines)
    return lines[0] if lines else ""
