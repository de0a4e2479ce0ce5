"""Signatures: the regular expressions by which a declared failure is recognized.

A signature is anybody's text and is searched in any message, so it runs on RE2: its time is linear
in the message, whatever the expression is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache

import re2

from harness.diagnosis.signature import first_line as whole_first_line
from harness.diagnosis.signature import leading_lines

_LONGEST = 100  # characters of the message: enough to tell failures apart, little to read
# What differs from run to run, from machine to machine or from case to case.
_VARYING = re.compile(
    r"(?P<address>0x[0-9a-fA-F]+)"
    r"|(?P<path>(?<![\w.])/?(?:[\w.+-]+/)+[\w.+-]+)"
    r"|(?P<number>(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?!\w))",
    re.ASCII,  # RE2's classes, which the patterns below are made of, are of ASCII
)
_PATTERNS = {"address": "0x[0-9a-fA-F]+", "path": r"\S+", "number": r"-?[\d.]+(?:e[+-]?\d+)?"}
_BLANK = (r"^\s*$", r"^[\pZ\pC]*$")  # the second has the blanks beyond ASCII, too
_BETWEEN = (r"\s+", r"[\pZ\pC]+")
_NEEDLESS = re.compile(r"\\([ #&~-])")  # re.escape escapes what is special in other modes only


class SignatureError(ValueError):
    """A regular expression that RE2 does not take; the message says why."""


@cache
def _compiled(signature: str) -> re2._Regexp:
    options = re2.Options()
    options.dot_nl = True
    options.log_errors = False
    try:
        return re2.compile(signature, options)
    except re2.error as error:
        reason = error.args[0]
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise SignatureError(text) from error


def check(signature: str) -> None:
    """Raise SignatureError for what is no regular expression of RE2."""
    _compiled(signature)


def describes(signature: str, message: str) -> bool:
    """Return whether the signature, a regular expression, is found in the message."""
    return _compiled(signature).search(_utf8(message)) is not None


def _utf8(text: str) -> str:
    """Replace lone surrogates, which RE2 can't read."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def signature_of(message: str) -> str:
    r"""Return a regular expression for the message's first line; ``^\s*$`` for a blank message.

    It matches any address, path and number; a long line is cut at the end of a word. Where a line
    only announces the next one, as the bare name of an exception does, both belong to it.
    """
    message = _utf8(message)
    line = first_line(message)
    if not line:
        return next(blank for blank in _BLANK if describes(blank, message))
    parts = [_pattern(part) for part in _divided(line, leading_lines(message))]
    joined = (blank.join(parts) for blank in _BETWEEN)
    # Between two lines there may be a traceback: then the first stands alone.
    return next((pattern for pattern in joined if describes(pattern, message)), parts[0])


def first_line(message: str) -> str:
    """Return the message's first line that has content, cut at the end of a word if it is long."""
    line = whole_first_line(message)
    return line if len(line) <= _LONGEST else line[:_LONGEST].rpartition(" ")[0] or line[:_LONGEST]


def _divided(line: str, lines: Sequence[str]) -> Iterator[str]:
    """Yield the parts of ``line``, which is as much of the joined lines as it has."""
    start = 0
    for each in lines:
        if part := line[start : start + len(each)]:
            yield part
        start += len(each) + 1


def _pattern(line: str) -> str:
    pattern, end = "", 0
    for match in _VARYING.finditer(line):
        pattern += _escape(line[end : match.start()]) + _PATTERNS[match.lastgroup or ""]
        end = match.end()
    return pattern + _escape(line[end:])


def _escape(text: str) -> str:
    return _NEEDLESS.sub(r"\1", re.escape(text))
