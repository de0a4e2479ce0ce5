"""Notations of an upstream issue: ``owner/repo#number`` or less of it, or its page."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from harness.errors import BadInputError

ISSUE = re.compile(r"([\w.-]+/[\w.-]+)#(\d+)")
_PAGE = re.compile(r"(?:https?://)?github\.com/([\w.-]+/[\w.-]+)/(?:issues|pull)/(\d+)(?:[/#?].*)?")
_SHORT = re.compile(r"[\w.-]+#\d+")
_NUMBER = re.compile(r"#?(\d+)")


def page(issue: str) -> str:
    """Return the issue's address; "" for a cause that is no issue (``finding NAME``)."""
    match = ISSUE.fullmatch(issue)
    return f"https://github.com/{match[1]}/issues/{match[2]}" if match else ""


def resolve(text: str, known: Iterable[str]) -> str:
    """Return the issue of ``known`` that a person means by ``text``.

    Raises BadInputError with near matches if it is none of them, or a number that several have.
    """
    issues = sorted(set(known))
    match = ISSUE.fullmatch(text) or _PAGE.fullmatch(text)
    if match:
        wanted = [f"{match[1]}#{match[2]}"]
    elif _SHORT.fullmatch(text):
        wanted = [issue for issue in issues if issue.lower().endswith(f"/{text}".lower())]
    elif match := _NUMBER.fullmatch(text):
        wanted = [issue for issue in issues if issue.endswith(f"#{match[1]}")]
    else:
        raise BadInputError(
            f"issue {text!r}: expected 'pytorch/xla#8854', its address on github.com, "
            "'xla#8854' or its number"
        )
    matches = [issue for issue in issues if issue.lower() in map(str.lower, wanted)]
    if len(matches) > 1:
        raise BadInputError(f"issue {text!r}: expected one of {', '.join(matches)}")
    if not matches:
        near = difflib.get_close_matches(wanted[0] if wanted else text, issues, n=3, cutoff=0.5)
        hint = f"; near it: {', '.join(near)}" if near else ""
        raise BadInputError(f"issue {text!r}: no case and no row names it{hint}")
    return matches[0]
