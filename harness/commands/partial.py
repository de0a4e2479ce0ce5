"""Messages and exit code of a command that used what was sound, and left out the rest."""

from __future__ import annotations

from collections.abc import Sequence

from harness.commands.output import say
from harness.errors import PARTIAL

_SHOWN = 200


def told(faults: Sequence[str]) -> int:
    """Name what was left out; the exit code that says so, 0 for nothing."""
    for fault in faults[:_SHOWN]:
        say(f"left out: {fault}")
    if len(faults) > _SHOWN:
        say(f"left out: ... and {len(faults) - _SHOWN} more")
    return PARTIAL if faults else 0
