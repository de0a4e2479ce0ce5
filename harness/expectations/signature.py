"""A signature for a failure that has none yet."""

from __future__ import annotations

import re

_LONGEST = 100  # characters of the message: enough to tell failures apart, little to read
# What differs from run to run, from machine to machine or from case to case.
_VARYING = re.compile(
    r"(?P<address>0x[0-9a-fA-F]+)"
    r"|(?P<path>(?<![\w.])/?(?:[\w.+-]+/)+[\w.+-]+)"
    r"|(?P<number>(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?!\w))"
)
_PATTERNS = {"address": "0x[0-9a-fA-F]+", "path": r"\S+", "number": r"-?[\d.]+(?:e[+-]?\d+)?"}
_NEEDLESS = re.compile(r"\\([ #&~-])")  # re.escape escapes what is special in other modes only


def signature_of(message: str) -> str:
    r"""A regular expression for the message's first line; ``^\s*$`` for a blank message.

    Addresses, paths and numbers match any other; a long line is cut at the end of a word.
    """
    line = first_line(message)
    pattern, end = "", 0
    for match in _VARYING.finditer(line):
        pattern += _escape(line[end : match.start()]) + _PATTERNS[match.lastgroup or ""]
        end = match.end()
    return pattern + _escape(line[end:]) or r"^\s*$"


def first_line(message: str) -> str:
    """The message's first line that says something, cut at the end of a word if it is long."""
    line = next((line.strip() for line in message.splitlines() if line.strip()), "")
    return line if len(line) <= _LONGEST else line[:_LONGEST].rpartition(" ")[0] or line[:_LONGEST]


def _escape(text: str) -> str:
    return _NEEDLESS.sub(r"\1", re.escape(text))
