"""GitHub's lines that put a message beside a file of a pull request."""

from __future__ import annotations

from harness.printable import printable

ANNOTATIONS = 10  # GitHub shows no more of a step


def annotation(level: str, case: str, title: str, text: str) -> str:
    """One line; ``level`` is error or warning. Its text can't begin another command."""
    file = case.partition("::")[0]
    place = f"file={_property(file)}," if file.endswith(".py") else ""
    return f"::{level} {place}title={_property(title)}::{_data(text)}"


def _data(text: str) -> str:
    return printable(text).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
