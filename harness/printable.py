"""Text of unknown origin, for a terminal and for the log of a CI job.

Names, messages and reports are untrusted. Whatever would control a terminal, reorder or hide the
text around it, or start a command of GitHub's runner, is shown and has no effect.
"""

from __future__ import annotations

import re
import textwrap

# What Unicode calls default ignorable: bidirectional controls, joiners, tags, fillers. Only the
# variation selectors after emoji are left, which hide nothing.
INVISIBLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_INVISIBLE = re.compile(f"[{INVISIBLE}]")
# The runner trims a line before it looks for "::", and takes "##[" anywhere in it.
_COMMANDS = re.compile(r"^(?= *::)|(?<=#)(?=#\[)")


def printable(text: str) -> str:
    r"""Return the text as one line that is safe to print anywhere.

    What a terminal would obey or hide is escaped (``\x1b``), line breaks included, and so is the
    beginning of a runner's command (``\::error::``). A case's id stays as it is, to be copied.
    """
    return _COMMANDS.sub(r"\\", escaped(text))


def escaped(text: str) -> str:
    r"""Escape each character that can't be seen, as in ``\x1b``."""
    if text.isprintable() and not _INVISIBLE.search(text):
        return text
    return "".join(c if _is_visible(c) else c.encode("unicode_escape").decode() for c in text)


def folded(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """Return the text in lines of ``width``, behind ``first`` and then ``rest``.

    A word that is longer than a line, such as a case's id, stays whole.
    """
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _is_visible(character: str) -> bool:
    return character.isprintable() and not _INVISIBLE.match(character)
