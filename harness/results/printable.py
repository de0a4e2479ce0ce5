"""Text of unknown origin for a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""The text with escapes (``\x1b``) for what would steer a terminal, line breaks included."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
