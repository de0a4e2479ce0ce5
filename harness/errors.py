"""The one error that a user caused and can correct."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class BadInputError(Exception):
    """A file, option or marker that can't be used; the message names it and what was expected.

    Commands and pytest end with exit code 2 on it.
    """


PARTIAL = 3  # the exit code of a command that was done in part; what it left out is named
INTERRUPTED = 130  # of one that Ctrl-C ended, as a shell says it of SIGINT


def nearest(name: object, known: Iterable[str]) -> str:
    """Return what a message adds for an unknown name: the names that resemble it, or else all.

    Of names of several words, such as ``ci list``, the last word may be what was meant.
    """
    names = list(known)
    words = {word: name for name in names for word in (name.rpartition(" ")[2], name)}
    resembling = difflib.get_close_matches(str(name), words, n=3, cutoff=0.4)
    close = dict.fromkeys(words[word] for word in resembling)
    return f"did you mean {', '.join(close)}?" if close else f"expected one of {', '.join(names)}"
