"""What makes a case flaky. ``harness/verdicts/sql/flaky.sql`` is the same rule for a history."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

WINDOW = 7  # runs


def is_flaky(runs: Sequence[Sequence[bool]]) -> bool:
    """Whether a case is flaky as of the last of these runs, which all have the same versions.

    ``runs`` are those that measured the case, the oldest first. Each is a list of the case's
    attempts in that run, with one element for a case that was not run again: whether it works.

    A case is flaky if, within the last ``WINDOW`` runs, the attempts of one run disagree, or the
    answer, which is that of a run's last attempt, changed at least twice. One change alone has a
    cause that stays.
    """
    recent = runs[-WINDOW:]
    if any(len(set(attempts)) > 1 for attempts in recent):
        return True
    return sum(one[-1] != other[-1] for one, other in pairwise(recent)) > 1
