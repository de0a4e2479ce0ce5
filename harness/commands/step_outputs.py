"""KEY=VALUE lines, as a workflow's step appends them to ``$GITHUB_OUTPUT``."""

from __future__ import annotations

from collections.abc import Mapping

from harness.commands.output import show
from harness.errors import BadInputError


def print_outputs(values: Mapping[str, object]) -> None:
    """Print a line for each value.

    Raises BadInputError, before any is printed, for a value that would be more than its line: what
    stands behind a line break would be taken for an output of its own.
    """
    lines = [f"{name}={value}" for name, value in values.items()]
    for line in lines:
        if not line.isprintable():
            raise BadInputError(f"output {line[:200]!r}: expected one line of printable characters")
    show("\n".join(lines))
