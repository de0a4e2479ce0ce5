"""The one error that a user caused and can correct."""

PARTIAL = 3  # the exit code of a command that did a part of its work and named the rest


class BadInputError(Exception):
    """A file, option or marker that can't be used; the message names it and what was expected.

    Commands and pytest end with exit code 2 on it.
    """


PARTIAL = 3  # the exit code of a command that was done in part; what it left out is named
INTERRUPTED = 130  # of one that Ctrl-C ended, as a shell says it of SIGINT
